package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/source"
)

// What the mode in use cannot do, and what is beyond the limits, is refused.
func TestRulesAreUsed(t *testing.T) {
	r := launch(t, "http_address = \"\"\nlimits.services = 1\n")
	r.ready()
	r.write("b.toml", strings.ReplaceAll(web, "web", "b")+"scheduler = \"rr\"\n")
	r.write("c.toml", "services = [{}, {}]\n")
	want := map[string]string{
		"b.toml": "scheduler is for ipvs mode, and this is iptables mode",
		"c.toml": "services has 2 elements, more than 1",
	}
	for name, msg := range want {
		r.eventually(msg, func() bool { return strings.Contains(r.faultsOf(name), msg) })
	}
}

// faultsOf returns what status says of a service file, a fault a line.
func (r *running) faultsOf(name string) string {
	var lines []string
	for _, f := range r.status().Sources[0].Files {
		for _, fault := range f.Faults {
			if filepath.Base(f.Path) == name {
				lines = append(lines, fault.String())
			}
		}
	}
	return strings.Join(lines, "\n")
}

// A change of mode is one of what can be done: files that did not change are judged again.
func TestRulesFollowTheMode(t *testing.T) {
	const settings = "http_address = \"\"\nmode = "
	r := launch(t, settings+"\"ipvs\"\n", modestest.Stub("ipvs", modestest.Opens(new(kernel))), modestest.Stub("nftables", modestest.Opens(new(kernel))))
	r.ready()
	r.write("web.toml", web+"scheduler = \"rr\"\n")
	r.eventually("accepted", func() bool { return r.stateOf("web.toml") == source.Accepted })
	r.write("svcproxy.toml", settings+"\"nftables\"\n")
	r.eventually("stale", func() bool { return r.stateOf("web.toml") == source.Stale })
	if got := r.faultsOf("web.toml"); !strings.Contains(got, "scheduler is for ipvs mode, and this is nftables mode") {
		t.Errorf("faults: %s", got)
	}
	r.write("svcproxy.toml", settings+"\"ipvs\"\n")
	r.eventually("accepted again", func() bool { return r.stateOf("web.toml") == source.Accepted })
}

// Shares follow the settings: a file that loses its own stays in use, and is accepted again with it.
func TestSharesFollowTheSettings(t *testing.T) {
	const settings = "http_address = \"\"\n"
	share := func(addresses string) string {
		return fmt.Sprintf("%s[[owners]]\nfiles = [\"web.toml\"]\nusers = [\"%d\"]\naddresses = [%q]\nnamespaces = [\"default\"]\n", settings, os.Getuid(), addresses)
	}
	r := launch(t, settings)
	r.ready()
	r.write("web.toml", web)
	r.eventually("accepted", func() bool { return r.stateOf("web.toml") == source.Accepted })
	r.write("svcproxy.toml", share("192.0.2.0/24"))
	r.eventually("stale", func() bool { return r.stateOf("web.toml") == source.Stale })
	if got := r.faultsOf("web.toml"); !strings.Contains(got, "is outside of addresses of owners[0] in svcproxy.toml") {
		t.Errorf("faults: %s", got)
	}
	if names, _, _ := r.kernel.seen(); names != "default/web" {
		t.Errorf("kernel holds %q", names)
	}
	r.write("x.toml", strings.ReplaceAll(web, "web", "x"))
	r.eventually("refused", func() bool { return r.stateOf("x.toml") == source.Refused })
	r.write("svcproxy.toml", share("10.96.0.0/16"))
	r.eventually("accepted again", func() bool { return r.stateOf("web.toml") == source.Accepted })
	r.write("svcproxy.toml", settings)
	r.eventually("all without owners", func() bool {
		return r.faultsOf("x.toml") != "" && !strings.Contains(r.faultsOf("x.toml"), "[[owners]]")
	})
}

// stateOf returns what status says of a service file.
func (r *running) stateOf(name string) source.FileState {
	for _, f := range r.status().Sources[0].Files {
		if filepath.Base(f.Path) == name {
			return f.State
		}
	}
	return ""
}
