package daemon

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/plan"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

// A running daemon says what is not in the kernel yet, and which files are not used.
func TestPlanOverTheSocket(t *testing.T) {
	r := launch(t, "http_address = \"\"\n")
	r.ready()
	ask := func() *plan.Report {
		t.Helper()
		p, err := AskPlan(t.Context(), filepath.Join(r.dir, "run"))
		fatal.If(t, err)
		return p
	}
	if p := ask(); p.Changes() || len(p.Faults)+len(p.Errors) > 0 || p.Mode != "iptables" {
		t.Errorf("all is held: %+v", p)
	}
	r.kernel.set(func(k *kernel) { k.fail = errors.New("no room") })
	r.reload <- syscall.SIGHUP
	r.write("web.toml", strings.ReplaceAll(web, "80", "81"))
	r.write("x.toml", "x = 1\n")
	r.eventually("planned", func() bool { p := ask(); return p.Changes() && len(p.Faults) > 0 })
	p := ask()
	if len(p.Services) != 1 || p.Services[0].Name != "default/web" || p.Services[0].Edits[0].Text() != "ports added: 81/tcp to 81; ports removed: 80/tcp to 80" {
		t.Errorf("services: %v", p.Services)
	}
	if f := p.Faults[len(p.Faults)-1]; f.Warning || filepath.Base(f.Pos.File) != "x.toml" {
		t.Errorf("faults: %v", p.Faults)
	}
}

func TestFaultsOf(t *testing.T) {
	warning, fault := source.Fault{Msg: "w", Warning: true}, source.Fault{Msg: "f"}
	for want, f := range map[string]source.FileStatus{
		"warning: w":   {State: source.Accepted, Faults: []source.Fault{warning}},
		"warning: w f": {State: source.Stale, Faults: []source.Fault{warning, fault}},
		"a.toml: the file is held: what it says is not used yet": {Path: "a.toml", State: "held"},
	} {
		var got []string
		for _, f := range faultsOf(f) {
			got = append(got, f.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
