//go:build netns

package monitoring

import (
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
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

// hosts is how many there are, of which one is a daemon.
const hosts = 500

// A site is a Prometheus with the shipped rules, and again with those that wait for
// nothing, that scrapes a daemon, named real, and what stands for many others.
type site struct {
	*lab.Daemon
	t     *testing.T
	host  *lab.Host
	edits int

	others string // address of what stands for the other hosts
}

func newSite(t *testing.T) *site {
	s := &site{t: t, host: &lab.Host{Namespace: netnstest.Make(t), Role: "node"}}
	binary, err := lab.Build(t.TempDir())
	fatal.If(t, err)
	s.Daemon, err = lab.NewDaemonOn(s.host, lab.Dual{}, binary)
	fatal.If(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("svcproxy:\n%s", s.LogTail(100))
		}
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	})
	s.others = s.serve()
	s.troubled(true)
	s.edit()
	fatal.If(t, s.Start())
	s.prometheus()
	return s
}

// troubled has the host have, or not have, what a panel or an alert is about: a router that does not answer, a service that is
// not announced for that, and one without endpoints.
func (s *site) troubled(is bool) {
	settings := fmt.Sprintf("mode = \"nftables\"\nsources = [\"file\", \"http\"]\n[http]\nurls = [\"http://%s/served.toml\"]\n[metrics]\ntraffic = true\nservice_labels = [\"team\"]\n", s.others)
	if !is {
		fatal.If(s.t, s.Settings(settings))
		fatal.If(s.t, s.RemoveFile("idle.toml"))
		return
	}
	fatal.If(s.t, s.Settings(settings+"[bgp]\nas = 64500\nrouter_id = \"192.0.2.9\"\nport = 0\n[[bgp.peers]]\naddress = \"192.0.2.254\"\nas = 64501\n"))
	fatal.If(s.t, s.WriteFile("idle.toml", `[[services]]
name = "idle"
vips = ["10.96.0.20"]
ports = [{ port = 80 }]
labels = { team = "x" }

[[services]]
name = "announced"
vips = ["10.96.0.21"]
ports = [{ port = 80 }]
endpoints = [{ address = "192.0.2.1" }]
announce = ["bgp"]
`))
}

// prometheus starts Prometheus, which runs until the test ends.
func (s *site) prometheus() {
	s.t.Helper()
	rules := read(s.t, filepath.Join(shipped, "svcproxy.rules.yml"))
	now := strings.Replace(regexp.MustCompile(`for: \S+`).ReplaceAllString(rules, "for: 0s"), "name: svcproxy", "name: now", 1)
	dir := s.t.TempDir()
	for name, text := range map[string]string{"rules.yml": rules, "now.yml": now, "prometheus.yml": config(s.others)} {
		fatal.If(s.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	cmd := exec.Command("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:9090", "--log.level=warn")
	cmd.Dir = dir
	p, err := s.host.Launch(cmd, filepath.Join(dir, "log"))
	fatal.If(s.t, err)
	s.t.Cleanup(func() {
		if err := p.End(unix.SIGTERM, pace.Scale(time.Minute)); err != nil || s.t.Failed() {
			s.t.Logf("prometheus: %v\n%s", err, p.LogTail(10_000))
		}
	})
}

// serve serves metrics of hosts where nothing is wrong, and a service file, and returns the address.
func (s *site) serve() string {
	var l net.Listener
	fatal.If(s.t, s.host.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/served.toml" {
			fmt.Fprint(w, "[[services]]\nname = \"served\"\nvips = [\"10.96.0.22\"]\nports = [{ port = 80 }]\nendpoints = [{ address = \"192.0.2.1\" }]\n")
			return
		}
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

// edit changes a service of both families, and has everything compared with the kernel.
func (s *site) edit() {
	s.edits++
	fatal.If(s.t, s.WriteFile("web.toml", fmt.Sprintf(`[[services]]
name = "web"
vips = ["10.96.0.10", "fd00:96::10"]
ports = [{ port = 80 }]
endpoints = [{ address = "192.0.2.%d" }, { address = "2001:db8::%d" }]
health_check = { type = "exec", command = ["/bin/true"], interval = "20s", timeout = "20s" }
`, 1+s.edits%200, 1+s.edits%200)))
	if s.Running() {
		_ = s.Signal(unix.SIGHUP)
	}
}

// A sample is one of the answer to a query.
type sample struct {
	Metric map[string]string
	Value  [2]any // time, and the value as a text
}

// query asks Prometheus. It may not be there yet.
func (s *site) query(expr string) ([]sample, error) {
	_, text, err := s.host.Get("http://127.0.0.1:9090/api/v1/query?" + url.Values{"query": {expr}}.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error string
		Data  struct{ Result []sample }
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Error != "" {
		return nil, fmt.Errorf("%s: %s %w", expr, answer.Error, err)
	}
	return answer.Data.Result, nil
}

// eventually waits up to a minute until check returns nil.
func (s *site) eventually(what string, check func() error) {
	s.t.Helper()
	err := pace.Poll(time.Minute, func() error {
		time.Sleep(250 * time.Millisecond) // it scrapes once in a second
		return check()
	})
	if err != nil {
		s.t.Fatalf("not %s: %v", what, err)
	}
}

// gives waits until an expression gives this many samples, and returns the last.
func (s *site) gives(expr string, n int) (last sample) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d samples of %s", n, expr), func() error {
		list, err := s.query(expr)
		if err != nil || len(list) != n {
			return fmt.Errorf("%d samples, %v: %v", len(list), list[:min(len(list), 5)], err)
		}
		if n > 0 {
			last = list[n-1]
		}
		return nil
	})
	return last
}

// A bad file on one of 500 hosts is told, of that host and of no other, until it is
// repaired; and every query of the dashboard has an answer.
func TestPrometheus(t *testing.T) {
	s := newSite(t)
	s.gives(`up == 1`, hosts)
	t.Run("dashboard", func(t *testing.T) { s.dashboard(t) })
	if got := s.gives(`ALERTS{alertname="SvcproxyServicesRefuse",alertstate="firing",service!=""}`, 1).Metric; got["service"] != "idle" || got["label_team"] != "x" {
		t.Errorf("the rules that wait for nothing fire %v", got)
	}
	s.troubled(false)
	s.gives(`ALERTS`, 0)
	fatal.If(t, s.WriteFile("bad.toml", "[[services]]\nname = 7\n"))
	if got := s.gives(`ALERTS{alertstate="pending"}`, 1).Metric; got["alertname"] != "SvcproxyBadConfig" || got["instance"] != "real" {
		t.Errorf("the shipped rules tell of %v", got)
	}
	if got := s.gives(`ALERTS{alertstate="firing"}`, 1).Metric; got["alertname"] != "SvcproxyBadConfig" || got["instance"] != "real" {
		t.Errorf("the rules that wait for nothing fire %v", got)
	}
	fatal.If(t, s.RemoveFile("bad.toml"))
	s.gives(`ALERTS`, 0)
}

// dashboard asks what the dashboard asks, until each query has a number for an answer.
func (s *site) dashboard(t *testing.T) {
	left := queries(t)
	s.eventually("an answer to all queries", func() error {
		s.edit()
		left = slices.DeleteFunc(left, func(expr string) bool {
			list, err := s.query(expr)
			return err == nil && slices.ContainsFunc(list, func(one sample) bool { return one.Value[1] != "NaN" })
		})
		if len(left) > 0 {
			return fmt.Errorf("no number for\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}

// queries returns those of all panels, with the variables of Grafana replaced.
func queries(t *testing.T) (list []string) {
	t.Helper()
	variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", "real")
	for _, p := range panels(t) {
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
