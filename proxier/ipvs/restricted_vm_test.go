//go:build vm

package ipvs

import (
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/source"
)

// A node port that not everybody may use is not balanced before rules keep the others from it, which
// cannot be written here until another program lets go of a set. Then it is, and so is one for everybody
// all the time.
func TestRestrictedWaitForTheirRanges(t *testing.T) {
	everywhere(t, func(h *host) {
		for i, restricted := range []bool{true, false} {
			s := backendtest.Service{Name: []string{"ranged", "open"}[i], Protocol: source.TCP, Targets: backendtest.Targets(h.Family, 0, 1)}
			pool, _ := s.Pools()
			route := backendtest.Route(pool, proxier.Everyone, proxier.Reject)
			key := proxier.FrontendKey{Addr: h.Family.Unspecified(), Port: uint16(30080 + i), Kind: proxier.NodePort}
			res := s.Resolve(&proxier.Frontend{Key: key, Outside: route, Local: route, Restricted: restricted})
			h.World.Put(res.Key, res)
		}
		at := func(port uint16) lvs.Key {
			return lvs.Key{Addr: h.World.Host.NodePortAddrs[0], Protocol: uint8(source.TCP), Port: port}
		}
		balanced := func(port uint16) bool {
			h.Helper()
			has, err := h.Backend.conn.Has(h.Context(), at(port))
			h.Must(err)
			return has
		}
		tool, set := map[proxier.Family]string{proxier.IPv4: "iptables", proxier.IPv6: "ip6tables"}[h.Family], "SVCP-FIREWALLED-4"
		family := "inet"
		if h.Family == proxier.IPv6 {
			set, family = "SVCP-FIREWALLED-6", "inet6"
		}
		run(h, "ipset", "create", set, "hash:ip", "family", family)
		rule := strings.Fields("FORWARD -m set --match-set " + set + " src -j ACCEPT")
		run(h, tool, slices.Concat([]string{"-A"}, rule)...)
		if err := h.Backend.Sync(h.Context(), h.World.State, nil); err == nil {
			h.Fatal("the rules were written")
		}
		if balanced(30080) || !balanced(30081) {
			h.Errorf("without rules: restricted %v, for everybody %v", balanced(30080), balanced(30081))
		}
		run(h, tool, slices.Concat([]string{"-D"}, rule)...)
		h.Sync(nil)
		h.settled()
		h.wantState()
		if !balanced(30080) {
			h.Error("it stays out")
		}
	})
}
