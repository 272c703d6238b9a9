//go:build vm

package ipvs

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// many returns a host that is to hold n services of ten endpoints each.
func many(t *testing.T, n int) *host {
	h := newHost(t, policy.IPv4)
	h.Sync(nil) // chains and sets are there
	for i := range n {
		res := backendtest.Web(h.Family, i, 10)
		h.World.Put(res.Key, res)
	}
	return h
}

// took returns how long a full sync takes.
func (h *host) took() time.Duration {
	h.Helper()
	start := time.Now()
	h.Sync(nil)
	return time.Since(start)
}

// The first sync of 200 services is far faster than what scripts do: a run of
// ipvsadm or ipset for each entry. Of these every tenth service is measured, for a
// process takes long under emulation; they cost the same from first to last.
func TestFasterThanOneProcessPerEntry(t *testing.T) {
	const services, share, atLeast = 200, 10, 20
	h := many(t, services)
	ours := h.took()
	h.settled()
	h.Must(h.Backend.Cleanup(t.Context()))

	h = many(t, 0)
	processes, n := h.byProcesses(services/share, t)
	ratio := float64(processes*share) / float64(ours)
	t.Logf("%d services of 10 endpoints: %v; by processes, of which %d were run: %v; %.0f times", services, ours, n, processes*share, ratio)
	if ratio < atLeast {
		t.Errorf("only %.1f times as fast, want %d", ratio, atLeast)
	}
}

// byProcesses adds services by a process for each entry, and returns how long
// that took and how many there were.
func (h *host) byProcesses(services int, t *testing.T) (time.Duration, int) {
	st := backendtest.NewWorld(h.Family)
	for i := range services {
		res := backendtest.Web(h.Family, i, 10)
		st.Put(res.Key, res)
	}
	rules := layout.NewIPVSRules(h.Family)
	h.Must(rules.Reset(st.State))
	var commands []string
	for _, line := range Text(st.State, "wrr") {
		if strings.HasPrefix(line, "-") {
			line = "ipvsadm " + line
		}
		commands = append(commands, line)
	}
	for name, m := range rules.Sets(st.State) {
		for e := range m.Entries {
			commands = append(commands, fmt.Sprintf("ipset add -exist %s %s", name, e))
		}
	}
	start := time.Now()
	for _, c := range commands {
		words := strings.Fields(c)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			h.Fatalf("%s: %v\n%s", c, err, out)
		}
	}
	return time.Since(start), len(commands)
}

// Many services cost in proportion, and a change of one what it costs anywhere:
// 2,000, or 10,000 with SVCPROXY_SOAK=1, which take minutes under emulation.
func TestManyServices(t *testing.T) {
	count := 2000
	if os.Getenv("SVCPROXY_SOAK") == "1" {
		count = 10_000
	}
	few := many(t, count/10)
	base := few.took()
	few.Must(few.Backend.Cleanup(t.Context()))
	h := many(t, count)
	first := h.took()
	again := h.took()
	start := time.Now()
	h.Put(backendtest.Web(h.Family, count/2, 9))
	one := time.Since(start)
	t.Logf("%d services: %v; %d: %v, %.1f times; looked at again: %v, one endpoint less: %v",
		count/10, base, count, first, float64(first)/float64(base), again, one)
	h.settled()
}
