package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier/report"
)

// aChange has values that are dangerous in a shell.
var aChange = changes.Change{
	Object: report.Object{Kind: "file", Service: "a/b", Name: "x\x00y\nSVCPROXY_KIND=z\x1b[31m\xff$(id)"},
	State:  "stale", Was: "accepted", Reason: strings.Repeat("é", 2*maxValue), At: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
}

// script writes a shell script with this mode to a temporary directory, and returns its path.
func script(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	path := filepath.Join(dir, "notify")
	fatal.If(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	fatal.If(t, os.Chmod(path, mode))
	return path
}

// called calls the target that the settings name, and returns its error as text.
func (w *world) called(s configs.Notify, list ...changes.Change) string {
	w.Helper()
	to := w.targetOf(s)
	defer to.close()
	ctx, cancel := context.WithTimeout(w.Context(), max(s.Timeout, pace.Scale(10*time.Second)))
	if s.Timeout > 0 {
		ctx, cancel = context.WithTimeout(w.Context(), s.Timeout)
	}
	defer cancel()
	if err := to.call(ctx, list); err != nil {
		return err.Error()
	}
	return ""
}

// A program gets a change in its environment. Each value is one line, whatever it contains. The rest of the environment of
// this process is not passed on.
func TestEnvironment(t *testing.T) {
	w := newWorld(t, configs.Notify{})
	t.Setenv("SECRET", "x")
	out := filepath.Join(t.TempDir(), "out")
	if got := w.called(configs.Notify{Command: []string{script(t, `test "$1" = "a b" && env | sort >`+out, 0o700), "a b"}}, aChange); got != "" {
		t.Fatal(got)
	}
	text, err := os.ReadFile(out)
	fatal.If(t, err)
	want := []string{
		"LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PWD=/",
		"SVCPROXY_KIND=file", `SVCPROXY_NAME=x\x00y\nSVCPROXY_KIND=z\x1b[31m` + "\uFFFD$(id)", "SVCPROXY_NODE=lb1",
		"SVCPROXY_REASON=" + strings.Repeat("é", maxValue) + "…", "SVCPROXY_SERVICE=a/b", "SVCPROXY_STATE=stale", "SVCPROXY_TIME=2026-01-02T03:04:05Z", "SVCPROXY_WAS=accepted",
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, "_=") && !strings.HasPrefix(line, "OLDPWD=") && !strings.HasPrefix(line, "SHLVL=") {
			lines = append(lines, line)
		}
	}
	if got, want := strings.Join(lines, "\n"), strings.Join(want, "\n"); got != want {
		t.Errorf("the environment is\n%s\nwant\n%s", got, want)
	}
}

// The error of a program is one line.
func TestCommandsThatFail(t *testing.T) {
	w := newWorld(t, configs.Notify{})
	bad, open := script(t, `echo "no
luck"; exit 3`, 0o700), script(t, "exit 0", 0o777)
	for _, tt := range []struct {
		name, path, want string
		timeout          time.Duration
	}{
		{"a good one", script(t, "exit 0", 0o700), "", 0},
		{"it fails", bad, `"` + bad + `": exit code 3: no`, 0},
		{"it is not there", "/nonexistent", `"/nonexistent": no such file or directory`, 0},
		{"others can change it", open, fmt.Sprintf("%q: %s can be changed by everybody: it does not run as user %d", open, open, os.Geteuid()), 0},
		{"it hangs", "/bin/sleep", "", 0},
	} {
		s := configs.Notify{Command: []string{tt.path}}
		if tt.name == "it hangs" {
			s.Command = append(s.Command, "1000")
			s.Timeout, tt.want = pace.Scale(300*time.Millisecond), `"/bin/sleep": the program timed out`
		}
		if got := w.called(s, aChange); !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A program does not run if other users can change the settings that name it.
func TestSettingsOfOthers(t *testing.T) {
	w := newWorld(t, configs.Notify{})
	fatal.If(t, os.Chmod(w.Settings, 0o666))
	out := filepath.Join(t.TempDir(), "out")
	s := configs.Notify{Command: []string{script(t, "touch "+out, 0o700)}}
	if got := w.called(s, aChange); !strings.HasPrefix(got, "its program does not run: ") || !strings.HasSuffix(got, "svcproxy.toml can be changed by everybody") {
		t.Error(got)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("it runs")
	}
	fatal.If(t, os.Remove(w.Settings))
	if got := w.called(s, aChange); !strings.HasPrefix(got, "checking who can change svcproxy.toml: ") {
		t.Error(got)
	}
}

// A Notifier ends at once, even if a program or server hangs.
func TestEndWhileItHangs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and does not answer
	fatal.If(t, err)
	defer l.Close()
	began := filepath.Join(t.TempDir(), "began")
	for _, s := range []configs.Notify{
		{Command: []string{script(t, "touch "+began+"; exec sleep 1000", 0o700)}}, {URL: "http://" + l.Addr().String() + "/"},
	} {
		w := newWorld(t, configs.Notify{Command: s.Command, URL: s.URL, Timeout: time.Minute})
		close(w.ready)
		end := w.run()
		pace.Until(t, "the beginning", func() bool { last, _, _ := w.Changes.Position(); return last > 0 })
		w.set("a", "stale")
		if s.URL != "" {
			conn, err := l.Accept()
			fatal.If(t, err)
			defer conn.Close()
		} else {
			pace.Until(t, "a call", func() bool { _, err := os.Stat(began); return err == nil })
		}
		start := time.Now()
		if end(); pace.Over(start, time.Second) {
			t.Errorf("%v: ended after %v", s, time.Since(start))
		}
	}
}

// A server gets changes as JSON. A bounded part of its answer is read.
func TestPost(t *testing.T) {
	w := newWorld(t, configs.Notify{})
	var got message
	var elsewhere int
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/good":
			if err := json.Unmarshal(body, &got); err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || r.UserAgent() != "svcproxy/v1" {
				t.Errorf("%s %v: %s, %v", r.Method, r.Header, body, err)
			}
			rw.WriteHeader(http.StatusNoContent)
		case "/bad":
			rw.WriteHeader(http.StatusBadGateway)
		case "/elsewhere":
			http.Redirect(rw, r, other.URL, http.StatusTemporaryRedirect)
		case "/here":
			http.Redirect(rw, r, "/good", http.StatusTemporaryRedirect)
		case "/endless":
			for {
				if _, err := rw.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		case "/headers":
			for i := range 100 {
				rw.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 1<<10))
			}
		case "/slow":
			<-r.Context().Done()
		}
	}))
	defer srv.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	closed.Close()
	for _, tt := range []struct{ url, want string }{
		{srv.URL + "/good", ""},
		{srv.URL + "/endless", ""},
		{srv.URL + "/bad", "posting to its url: the answer has status 502"},
		{srv.URL + "/elsewhere", "posting to its url: the answer is a redirection (307), which is not followed"},
		{srv.URL + "/here", "posting to its url: the answer is a redirection (307), which is not followed"},
		{srv.URL + "/headers", "posting to its url: net/http: HTTP/1.x transport connection broken: net/http: server response headers exceeded 65536 bytes; aborted"},
		{srv.URL + "/slow", "posting to its url: it timed out"},
		{"http://" + closed.Addr().String() + "/secret", "posting to its url: dial tcp " + closed.Addr().String() + ": connect: connection refused"},
	} {
		s := configs.Notify{URL: tt.url}
		if strings.HasSuffix(tt.url, "/slow") {
			s.Timeout = 100 * time.Millisecond
		}
		if got := w.called(s, aChange, changes.Change{Object: report.Object{Kind: "mode", Name: "mode"}, State: "ipvs"}); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.url, got, tt.want)
		}
	}
	if got.Node != "lb1" || len(got.Changes) != 2 || got.Changes[0].Kind != "file" || got.Changes[0].Was != "accepted" || got.Changes[1].State != "ipvs" {
		t.Errorf("%+v", got)
	}
	if elsewhere > 0 {
		t.Error("a redirect to another origin is followed")
	}
}

// The example script reports what has happened. It neither executes a value of a change nor treats it as an option.
func TestExample(t *testing.T) {
	example, err := filepath.Abs("../../../configs/examples/notify/notify")
	fatal.If(t, err)
	bin, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	fatal.If(t, os.WriteFile(filepath.Join(bin, "logger"), []byte("#!/bin/sh\nprintf '%s|' \"$@\" >>"+out+"\n"), 0o700))
	for _, tt := range []struct {
		kind, service, name, state, was, reason string
		want                                    string
	}{
		{"endpoint", "prod/shop", "10.0.0.1", "down", "up", "refused", "daemon.err|--|prod/shop: endpoint 10.0.0.1 is down (refused)|"},
		{"endpoint", "prod/shop", "10.0.0.1", "up", "down", "", "daemon.notice|--|prod/shop: endpoint 10.0.0.1 is up|"},
		{"endpoint", "prod/shop", "10.0.0.1", "draining", "up", "disk", ""},
		{"address", "prod/shop", "10.96.0.10:80/tcp", "all down", "balance", "", "daemon.crit|--|prod/shop: 10.96.0.10:80/tcp has no endpoint that works|"},
		{"announcement", "", "192.0.2.80 bgp", "announced", "", "", "daemon.notice|--|lb1 announces 192.0.2.80 bgp|"},
		{"announcement", "", "192.0.2.80 bgp", "", "announced", "", "daemon.warning|--|lb1 does not announce 192.0.2.80 bgp: no service has it|"},
		{"file", "", "$(id) -p x;", "stale", "accepted", "`id`", "daemon.notice|--|file $(id) -p x;: accepted -> stale (`id`)|"},
	} {
		_ = os.Remove(out)
		ch := changes.Change{Object: report.Object{Kind: tt.kind, Service: tt.service, Name: tt.name}, State: tt.state, Was: tt.was, Reason: tt.reason}
		cmd := exec.Command("/bin/sh", example)
		cmd.Env = append(environment("lb1", &ch), "PATH="+bin+":/usr/bin:/bin")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", tt.want, err, text)
		}
		text, _ := os.ReadFile(out)
		if got := strings.TrimPrefix(string(text), "-t|svcproxy-notify|-p|"); got != tt.want {
			t.Errorf("%s, want %s", got, tt.want)
		}
	}
}
