//go:build vm

package ipvs

import (
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A node port that not everybody may use, that is masqueraded, or that treats host processes differently, is not
// balanced before rules see to that, which cannot be written here until another program lets go of a set. Then it is,
// and one that needs no rules is all the time.
func TestServersWaitForTheirRules(t *testing.T) {
	everywhere(t, func(h *host) {
		for i, tt := range []struct {
			name           string
			restricted     bool
			outside, local policy.Masquerade
		}{
			{"ranged", true, policy.NoOne, policy.NoOne},
			{"masqueraded", false, policy.Everyone, policy.Everyone},
			{"split", false, policy.NoOne, policy.Everyone},
			{"plain", false, policy.NoOne, policy.NoOne},
		} {
			res := h.nodePort(tt.name, uint16(30080+i), 0, 1)
			f := res.Frontends[0]
			f.Restricted, f.Outside.Masquerade, f.FromLocal.Masquerade = tt.restricted, tt.outside, tt.local
			h.World.Put(res.Key, res)
		}
		free := h.occupy("SVCP-FIREWALLED")
		if err := h.Backend.Sync(h.Context(), h.World.State, nil); err == nil {
			h.Fatal("the rules were written")
		}
		if got, want := h.balancedPorts(30080, 30081, 30082, 30083), []uint16{30083}; !slices.Equal(got, want) {
			h.Errorf("without rules, %v are balanced, want %v", got, want)
		}
		free()
		h.Sync(nil)
		h.settled()
		h.wantState()
		if got := h.balancedPorts(30080, 30081, 30082, 30083); len(got) != 4 {
			h.Errorf("with rules, only %v are balanced", got)
		}
	})
}

// balancedPorts returns those of TCP node ports that have a server.
func (h *host) balancedPorts(ports ...uint16) (balanced []uint16) {
	h.Helper()
	for _, port := range ports {
		has, err := h.Backend.conn.Has(h.Context(), lvs.Key{Addr: h.World.Host.NodePortAddrs[0], Protocol: uint8(source.TCP), Port: port})
		h.Must(err)
		if has {
			balanced = append(balanced, port)
		}
	}
	return balanced
}

// occupy makes a set of ours that is of another type and in use, so that rules cannot be written until free is called.
func (h *host) occupy(name string) (free func()) {
	h.Helper()
	set, family := h.set(name), map[policy.Family]string{policy.IPv4: "inet", policy.IPv6: "inet6"}[h.Family]
	rule := strings.Fields("FORWARD -m set --match-set " + set + " src -j ACCEPT")
	run(h, "ipset", "create", set, "hash:ip", "family", family)
	run(h, h.tool(), slices.Concat([]string{"-A"}, rule)...)
	return func() { run(h, h.tool(), slices.Concat([]string{"-D"}, rule)...) }
}
