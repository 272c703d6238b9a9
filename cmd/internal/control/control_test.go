package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(asServer); dir != "" {
		serveForever(dir)
	}
	goleak.VerifyTestMain(m)
}

// start serves sample from dir and returns what stops it.
func start(t *testing.T, dir string) (stop func()) {
	t.Helper()
	return serve(t, dir, sampleRoutes())
}

func serve(t *testing.T, dir string, r *Routes) (stop func()) {
	t.Helper()
	s, err := Listen(dir)
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(ctx, slog.New(slog.NewTextHandler(t.Output(), nil)), r)
	}()
	return func() { cancel(); <-done }
}

func TestStatusCrossesTheSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run") // made by Listen
	defer start(t, dir)()
	got, err := NewClient(dir).StatusOf(t.Context(), nil)
	fatal.If(t, err)
	if diff := cmp.Diff(sample, got); diff != "" {
		t.Errorf("status (-sent +received):\n%s", diff)
	}
	for name, want := range map[string]os.FileMode{
		"":              os.ModeDir | 0o755,
		"svcproxy.sock": os.ModeSocket | 0o660,
		"svcproxy.lock": 0o600,
	} {
		fi, err := os.Stat(filepath.Join(dir, name))
		fatal.If(t, err)
		if fi.Mode() != want {
			t.Errorf("mode of %q is %v, want %v", name, fi.Mode(), want)
		}
	}
}

func TestOneDaemonPerRunDirectory(t *testing.T) {
	dir := t.TempDir()
	stop := start(t, dir)
	_, err := Listen(dir)
	want := fmt.Sprintf("claiming run directory %s: another svcproxy (pid %d) is running; give each its own --run-dir", dir, os.Getpid())
	if err == nil || err.Error() != want {
		t.Errorf("second Listen: %v\n         want: %s", err, want)
	}
	if !NewClient(dir).Running(t.Context()) {
		t.Error("the first one does not answer any more")
	}
	stop()
	start(t, dir)()
}

func TestStaleSocketIsReplaced(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketPath(dir)})
	fatal.If(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	if NewClient(dir).Running(t.Context()) {
		t.Fatal("a dead socket answers")
	}
	defer start(t, dir)()
	if _, err := NewClient(dir).StatusOf(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestRunDirectoryWithTooLongAName(t *testing.T) {
	long := "/" + strings.Repeat("x", 100)
	want := "control socket " + long + "/svcproxy.sock: path is longer than 107 bytes; choose a shorter --run-dir"
	if _, err := Listen(long); err == nil || err.Error() != want {
		t.Errorf("Listen: %v\n  want: %s", err, want)
	}
}

func TestErrorWhenNobodyAnswers(t *testing.T) {
	c := NewClient(t.TempDir())
	if _, err := c.StatusOf(t.Context(), nil); !errors.Is(err, ErrUnreachable) {
		t.Errorf("Status: %v, want ErrUnreachable", err)
	}
	if c.Running(t.Context()) {
		t.Error("Running() = true")
	}
}

// A daemon that ends while it is asked does not answer: who waits asks the next one.
func TestDaemonEndsMeanwhile(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"with an error": func(w http.ResponseWriter, req *http.Request) {
			<-req.Context().Done()
			reply(w, req, nil, context.Cause(req.Context()))
		},
		"before its turn": func(w http.ResponseWriter, req *http.Request) {
			<-req.Context().Done()
			newTurns(1, 1).handler(http.NotFoundHandler()).ServeHTTP(w, req)
		},
		"without a word": func(w http.ResponseWriter, req *http.Request) {
			w.WriteHeader(http.StatusOK)
			<-req.Context().Done()
		},
		"in the middle": func(w http.ResponseWriter, req *http.Request) {
			fmt.Fprint(w, `{"version":`)
			w.(http.Flusher).Flush()
			<-req.Context().Done()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, asked := t.TempDir(), make(chan struct{})
			var r Routes
			r.mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, req *http.Request) {
				close(asked)
				answer(w, req)
			})
			stop := serve(t, dir, &r)
			go func() { <-asked; stop() }()
			if _, err := NewClient(dir).StatusOf(t.Context(), nil); !errors.Is(err, ErrUnreachable) {
				t.Errorf("Status: %v, want ErrUnreachable", err)
			}
		})
	}
}

func TestOtherVersionAnswers(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", socketPath(dir))
	fatal.If(t, err)
	srv := &http.Server{Handler: http.NotFoundHandler()}
	defer srv.Close()
	go srv.Serve(l)
	_, err = NewClient(dir).StatusOf(t.Context(), nil)
	want := "asking " + socketPath(dir) + " for /v1/status: 404 Not Found; is it another version of svcproxy?"
	if err == nil || err.Error() != want {
		t.Errorf("Status: %v\n  want: %s", err, want)
	}
}

// What people's scripts read must not change by accident.
func TestJSONKeysOfStatusStay(t *testing.T) {
	b, err := json.Marshal(Status{Faults: []source.Fault{{
		Pos: source.Position{File: "svcproxy.toml", Line: 1, Col: 8}, Msg: "m", Hint: "h", Warning: true,
	}}, Loop: report.Status{}})
	fatal.If(t, err)
	want := `{"version":"","pid":0,"started":"0001-01-01T00:00:00Z","ready":false,"healthy":false,` +
		`"settings":{"config_dir":"","mode":"","families":null,"node_name":"","node_port_addresses":null},` +
		`"sources":null,"loop":{"families":null,"services":null},` +
		`"settings_faults":[{"pos":{"file":"svcproxy.toml","line":1,"col":8},"message":"m","hint":"h","warning":true}]}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// sample holds a hostile name in every string that can come from a file.
var sample = Status{
	Daemon: Daemon{
		Version: "1.0", PID: 7, Started: now.Add(-26 * time.Hour), Ready: true, Healthy: true,
		Settings: Settings{
			ConfigDir: "/etc/svcproxy", Mode: "iptables", Families: []string{"ipv4", "ipv6"},
			NodeName: "host1", Zone: "a", NodePortAddresses: []string{"192.0.2.1", "2001:db8::1"},
		},
	},
	Sources: []source.Status{{Source: "file", Synced: true, Files: []source.FileStatus{
		{Path: "/etc/svcproxy/a.toml", State: source.Accepted, Since: now.Add(-90 * time.Second), Services: 2},
		{Path: "/etc/svcproxy/\x1b[2Jb.toml", State: source.Stale, Since: now.Add(-time.Hour), Services: 1, Faults: []source.Fault{
			{Pos: source.Position{File: "\x1b[2Jb.toml", Line: 2, Col: 1}, Msg: `unknown key "x"`},
			{Pos: source.Position{File: "c.toml", Line: 3, Col: 1}, Msg: "no address", Warning: true},
		}},
		{Path: "d.toml", State: source.Refused, Since: now, Services: 1, Faults: []source.Fault{
			{Pos: source.Position{File: "d.toml", Line: 1, Col: 1}, Msg: "taken"},
		}},
	}}},
	Loop: report.Status{
		Families: []report.FamilyStatus{
			{Family: "ipv4", LastSync: now.Add(-3 * time.Second), Took: 12345678, Unserved: "service default/web:http: no such scheduler"},
			{Family: "ipv6", Error: "iptables-restore: line 2\nfailed", FailingSince: now.Add(-time.Minute)},
		},
		Services: []report.ServiceStatus{{
			Namespace: "default", Name: "web", Unit: "/etc/svcproxy/a.toml",
			Frontends: []report.FrontendStatus{
				{Address: "10.96.0.10:80/tcp", Kind: "vip", Action: "balance", Targets: 1, Endpoints: 2},
				{Address: "node-port:30080/tcp", Kind: "node-port", Action: "drop", Endpoints: 2,
					Reason: "policy local: no endpoint on this node; usable elsewhere: 1"},
			},
			Endpoints: []report.EndpointStatus{
				{Address: "192.168.10.11:8080", Local: true, State: "ready", Weight: 1},
				{Address: "192.168.10.12:8080", State: "weight 0"},
			},
			Warnings: []string{"10.96.0.10 is on eth0"},
		}, {Namespace: "default", Name: "idle", Unit: "/etc/svcproxy/a.toml"}},
	},
	Warnings: []string{"IPv4 forwarding is off"},
	Restart:  []string{"mode"},
}

func sampleRoutes() *Routes {
	r := new(Routes)
	Get(r, "/v1/status", func(context.Context, url.Values) (Status, error) { return sample, nil })
	return r
}

// Questions and errors cross the socket, and who asks is known.
func TestQuestionsAndErrorsCrossTheSocket(t *testing.T) {
	r := new(Routes)
	Post(r, "/v1/echo", func(_ context.Context, p Peer, q string) (string, error) {
		if p.PID != os.Getpid() || p.UID != uint32(os.Geteuid()) {
			t.Errorf("asked by %v", p)
		}
		if q == "" {
			return "", errors.New("nothing to say")
		}
		return q + q, nil
	})
	dir := t.TempDir()
	defer serve(t, dir, r)()
	var said string
	if err := NewClient(dir).Tell(t.Context(), "/v1/echo", "ab", &said); err != nil || said != "abab" {
		t.Errorf("answered %q, error %v", said, err)
	}
	if err := NewClient(dir).Tell(t.Context(), "/v1/echo", "", &said); err == nil || err.Error() != "nothing to say" {
		t.Errorf("error %v", err)
	}
	if err := NewClient(dir).Tell(t.Context(), "/v1/other", "", &said); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("error %v", err)
	}
}
