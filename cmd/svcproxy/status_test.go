package main

import (
	"bufio"
	"context"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// serveStatus answers as a daemon would that has these services.
func serveStatus(t *testing.T, dir string, services ...report.ServiceStatus) {
	t.Helper()
	var asked atomic.Int64
	selected := func(query url.Values) (list []report.ServiceStatus, err error) {
		which, err := control.SelectionOf(query)
		for _, s := range services {
			if which.Matches(source.Key{Namespace: s.Namespace, Name: s.Name}, s.Labels) {
				list = append(list, s)
			}
		}
		return list, err
	}
	r := new(control.Routes)
	control.Get(r, "/v1/services", func(_ context.Context, q url.Values) ([]report.ServiceStatus, error) { return selected(q) })
	control.Get(r, "/v1/status", func(_ context.Context, q url.Values) (control.Status, error) {
		list, err := selected(q)
		return control.Status{Loop: report.Status{Services: list}}, err
	})
	control.Get(r, control.DrainPath, func(context.Context, url.Values) ([]conditions.Drained, error) { return nil, nil })
	control.Get(r, "/v1/summary", func(_ context.Context, q url.Values) (control.Summary, error) {
		most, err := control.MostOf(q)
		return control.Summary{Daemon: control.Daemon{Ready: true, Healthy: true, Version: "v1"}, Totals: report.Totals{Services: int(asked.Add(1))}, Left: control.Left{Problems: 2 * control.All / (most + 1)}}, err
	})
	serveRoutes(t, dir, r)
}

// serveRoutes answers at the control socket below a directory.
func serveRoutes(t *testing.T, dir string, r *control.Routes) {
	t.Helper()
	s, err := control.Listen(filepath.Join(dir, "run"))
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(ctx, slog.New(slog.DiscardHandler), r) }()
	t.Cleanup(func() { cancel(); <-done })
}

func service(name, action, reason string) report.ServiceStatus {
	return report.ServiceStatus{Namespace: "default", Name: name, Place: name + ".toml:1:1",
		Frontends: []report.FrontendStatus{{Address: "10.96.0.1:80/tcp", Kind: "vip", Action: action, Reason: reason, Targets: 1, Endpoints: 1}},
		Endpoints: []report.EndpointStatus{{Address: "10.0.0.1", State: "ready", Weight: 1}}}
}

func TestStatus(t *testing.T) {
	dir := etc(t, nil)
	serveStatus(t, dir, service("fine", "balance", ""), service("idle", "reject", "no endpoints"))
	const usage = "\nRun 'svcproxy --help' for usage.\n"
	for _, tt := range []struct {
		args           string
		code           int
		stdout, stderr string // the beginning of what is said
	}{
		{"status --check fine", 0, "", ""},
		{"status --check default/f*", 0, "", ""},
		{"status --check fine idle", 1, "", "default/idle 10.96.0.1:80/tcp REJECTS no endpoints (idle.toml:1:1)\n"},
		{"status --check gone", 1, "", "no service is gone\n"},
		{"status --check", 1, "", "1,073,741,824 problems\n"},
		{"status idle", 0, "SERVICE  default/idle  (idle.toml:1:1)\nADDRESS ", ""},
		{"status gone", 1, "", "no service is gone\n"},
		{"status idle -o json", 0, `{"version":"","pid":0,`, ""},
		{"status gone -o json", 1, "", "no service is gone\n"},
		{"status --all", 0, "SERVICE       ADDRESS           KIND  READY  ACTION\ndefault/fine  10.96.0.1:80/tcp  vip   1/1    balance\ndefault/idle ", ""},
		{"status --sort problems", 0, "SERVICE       ADDRESS           KIND  READY  ACTION\ndefault/idle ", ""},
		{"status --problems", 0, "svcproxy v1 ", ""},
		{"status --problems -o json", 0, `{"version":"v1",`, ""},
		{"status", 0, "svcproxy v1 ", ""},
		{"status -o wide", 0, "svcproxy ", ""},

		{"status --sort x", 2, "", `svcproxy: unknown sort key "x"; want addresses, endpoints, file, name, problems, ready` + usage},
		{"status [", 2, "", `svcproxy: "[" is no name or pattern of services; want web, prod/web, or with wildcards prod/* or web-?, or a label as in team=web` + usage},
		{"status --check --all", 2, "", "svcproxy: --check goes with names only" + usage},
		{"status --check -o json web", 2, "", "svcproxy: --check goes with names only" + usage},
		{"status --problems web", 2, "", "svcproxy: --problems goes with neither names nor --all nor --sort" + usage},
	} {
		code, stdout, stderr := call(t, dir, strings.Fields(tt.args)...)
		if code != tt.code || !strings.HasPrefix(stdout, tt.stdout) || stderr != tt.stderr || tt.stdout == "" && stdout != "" {
			t.Errorf("%s: exit %d\n%s%s\nwant %d\n%s%s", tt.args, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
		}
	}
	if code, _, stderr := call(t, etc(t, nil), "status", "--check", "web"); code != exitUnreachable || !strings.HasPrefix(stderr, "svcproxy does not answer") {
		t.Errorf("check without a daemon: exit %d: %s", code, stderr)
	}
}

// On a terminal, what is watched is shown at its place; else one after the other.
func TestWatchedStatusRedrawsItsScreen(t *testing.T) {
	dir := etc(t, nil)
	serveStatus(t, dir)
	master, tty := terminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	p, done := &program{stdout: tty, stderr: tty}, make(chan int)
	go func() {
		done <- p.run(ctx, []string{"status", "--watch", "--run-dir", filepath.Join(dir, "run")})
	}()
	text, in := "", bufio.NewReader(master)
	for !strings.Contains(text, "2 services") {
		b, err := in.ReadByte()
		if err != nil {
			t.Fatalf("%v after %q", err, text)
		}
		text += string(b)
	}
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("exit %d", code)
	}
	if strings.Count(text, "\x1b[H\x1b[2J") != 1 || strings.Count(text, "svcproxy v1") != 1 || !strings.Contains(text, "\x1b[2;1H2 services") {
		t.Errorf("wrote %q", text)
	}
}
