//go:build netns

package monitoring

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

// hosts is how many there are, of which one is a daemon.
const hosts = 500

// A site is a Prometheus with the shipped rules, and again with those that wait for
// nothing, that scrapes a daemon, named real, and what stands for many others.
type site struct {
	t      *testing.T
	dir    string
	daemon *exec.Cmd
	client *http.Client
	edits  int
}

func newSite(t *testing.T) *site {
	netnstest.Enter(t)
	s := &site{t: t, dir: t.TempDir(), client: clientHere(t)}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	binary, err := lab.Build(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"etc", "state", "run"} {
		if err := os.Mkdir(filepath.Join(s.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.edit()
	s.daemon = s.start(binary, "run", "--mode", "nftables", "--config-dir", "etc", "--state-dir", "state", "--run-dir", "run")
	rules := read(t, filepath.Join(shipped, "svcproxy.rules.yml"))
	s.write("rules.yml", rules)
	s.write("now.yml", strings.Replace(regexp.MustCompile(`for: \S+`).ReplaceAllString(rules, "for: 0s"), "name: svcproxy", "name: now", 1))
	s.write("prometheus.yml", config(s.others()))
	s.start("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:9090", "--log.level=warn")
	return s
}

// others serves metrics of hosts where nothing is wrong, and returns their address.
func (s *site) others() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "svcproxy_config_last_reload_successful 1\nsvcproxy_held_changes 0\n")
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	s.t.Cleanup(func() { server.Close(); <-served })
	return l.Addr().String()
}

func config(others string) string {
	var b strings.Builder
	b.WriteString("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml, now.yml]\n" +
		"scrape_configs:\n- job_name: svcproxy\n  static_configs:\n  - {targets: ['127.0.0.1:10349'], labels: {instance: real}}\n" +
		"- job_name: others\n  scrape_interval: 5s\n  static_configs:\n")
	for i := range hosts - 1 {
		fmt.Fprintf(&b, "  - {targets: ['%s'], labels: {instance: other-%d, __metrics_path__: /%d}}\n", others, i, i)
	}
	return b.String()
}

// start starts a program that runs until the test ends, and fails the test if it ends before.
func (s *site) start(name string, args ...string) *exec.Cmd {
	s.t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || s.t.Failed() {
			s.t.Logf("%s: %v\n%s", filepath.Base(name), err, &out)
		}
	})
	return cmd
}

func (s *site) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// edit changes a service of both families, and has everything compared with the kernel.
func (s *site) edit() {
	s.edits++
	s.write("etc/web.toml", fmt.Sprintf(`[[services]]
name = "web"
vips = ["10.96.0.10", "fd00:96::10"]
ports = [{ port = 80 }]
endpoints = [{ address = "192.0.2.%d" }, { address = "2001:db8::%d" }]
health_check = { type = "exec", command = ["/bin/true"], interval = "20s", timeout = "20s" }
`, 1+s.edits%200, 1+s.edits%200))
	if s.daemon != nil {
		_ = s.daemon.Process.Signal(syscall.SIGHUP)
	}
}

// A sample is one of the answer to a query.
type sample struct {
	Metric map[string]string
	Value  [2]any // time, and the value as a text
}

// query asks Prometheus. It may not be there yet.
func (s *site) query(expr string) ([]sample, error) {
	resp, err := s.client.Get("http://127.0.0.1:9090/api/v1/query?" + url.Values{"query": {expr}}.Encode())
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Error string
		Data  struct{ Result []sample }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Error != "" {
		return nil, fmt.Errorf("%s: %s %w", expr, answer.Error, err)
	}
	return answer.Data.Result, nil
}

// clientHere returns a client of the network namespace that the test is in.
func clientHere(t *testing.T) *http.Client {
	dialed := make(chan func() (net.Conn, error), 1)
	dial := netnstest.Here(t, func() {
		c, err := net.Dial("tcp", "127.0.0.1:9090")
		dialed <- func() (net.Conn, error) { return c, err }
	})
	tr := &http.Transport{MaxConnsPerHost: 1, DialContext: func(context.Context, string, string) (net.Conn, error) {
		go dial()
		return (<-dialed)()
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// eventually waits up to a minute for ok, which says what is not so yet.
func (s *site) eventually(what string, not func() string) {
	s.t.Helper()
	for start := time.Now(); ; time.Sleep(250 * time.Millisecond) {
		why := not()
		if why == "" {
			return
		}
		if pace.Over(start, time.Minute) {
			s.t.Fatalf("not %s: %s", what, why)
		}
	}
}

// gives waits until an expression gives this many samples, and returns the last.
func (s *site) gives(expr string, n int) (last sample) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d samples of %s", n, expr), func() string {
		list, err := s.query(expr)
		if err != nil || len(list) != n {
			return fmt.Sprintf("%d samples, %v: %v", len(list), list[:min(len(list), 5)], err)
		}
		if n > 0 {
			last = list[n-1]
		}
		return ""
	})
	return last
}

// A bad file on one of 500 hosts is told, of that host and of no other, until it is
// repaired; and every query of the dashboard has an answer.
func TestPrometheus(t *testing.T) {
	s := newSite(t)
	s.gives(`up == 1`, hosts)
	t.Run("dashboard", func(t *testing.T) { s.dashboard(t) })
	s.gives(`ALERTS`, 0)
	s.write("etc/bad.toml", "[[services]]\nname = 7\n")
	if got := s.gives(`ALERTS{alertstate="pending"}`, 1).Metric; got["alertname"] != "SvcproxyBadConfig" || got["instance"] != "real" {
		t.Errorf("the shipped rules tell of %v", got)
	}
	if got := s.gives(`ALERTS{alertstate="firing"}`, 1).Metric; got["alertname"] != "SvcproxyBadConfig" || got["instance"] != "real" {
		t.Errorf("the rules that wait for nothing fire %v", got)
	}
	if err := os.Remove(filepath.Join(s.dir, "etc/bad.toml")); err != nil {
		t.Fatal(err)
	}
	s.gives(`ALERTS`, 0)
}

// dashboard asks what the dashboard asks, until each query has a number for an answer.
func (s *site) dashboard(t *testing.T) {
	left := queries(t)
	s.eventually("an answer to all queries", func() string {
		s.edit()
		left = slices.DeleteFunc(left, func(expr string) bool {
			list, err := s.query(expr)
			return err == nil && slices.ContainsFunc(list, func(one sample) bool { return one.Value[1] != "NaN" })
		})
		return strings.Join(left, "\n")
	})
}

// queries returns those of all panels, with the variables of Grafana replaced.
func queries(t *testing.T) (list []string) {
	t.Helper()
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, filepath.Join(shipped, "dashboard.json"))), &d); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", "real")
	for _, p := range d.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("panel %q asks nothing", p.Title)
		}
		for _, q := range p.Targets {
			expr := variables.Replace(q.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("panel %q has an unknown variable: %s", p.Title, q.Expr)
			}
			list = append(list, expr)
		}
	}
	return list
}
