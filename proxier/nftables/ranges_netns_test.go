//go:build netns

package nftables_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// restricted returns a service that only sources in some ranges may use.
func (h *host) restricted(first int, ranges ...netip.Prefix) *policy.Resolved {
	res := h.service("restricted", first, 0, 1)
	for _, f := range res.Frontends {
		f.Restricted, f.SourceRanges = true, ranges
	}
	return res
}

// mustPassAtOnce makes connections to a VIP while do runs. Each must be made by its first packet.
func (h *host) mustPassAtOnce(vip int, do func()) {
	h.Helper()
	family, _, _ := strings.Cut(h.table(), " ")
	nft(h, "table "+family+` counting {
		chain sent {
			type filter hook output priority -300;
			`+family+" daddr "+h.vip(vip).Addr.String()+` tcp flags & (syn | ack) == syn counter
		}
	}`)
	asked := h.during(vip, do)
	out := run(h, "nft", "list", "table", family, "counting")
	if want := fmt.Sprintf("packets %d ", asked); !strings.Contains(out, want) {
		h.Errorf("%d connections were made, by other than as many packets:\n%s", asked, out)
	}
}

// A client whom the ranges before and after a change admit connects at every moment, whichever range that is by.
func TestRangesMoveUnderConnections(t *testing.T) {
	packets(t, 1, func(h *host) {
		bits := h.Family.Bits()
		var every, each []netip.Prefix // of every length, so that a packet is long on its way; each client
		for n := range bits - 1 {
			every = append(every, netip.PrefixFrom(h.address(0), n+1).Masked())
		}
		for i := range clients {
			each = append(each, netip.PrefixFrom(h.address(100+i), bits))
		}
		other := h.restricted(20, every...)
		other.Key.Name = "other"
		all := h.restricted(10, netip.PrefixFrom(h.address(100), bits/4).Masked())
		one := h.restricted(10, each...)
		ways := []*policy.Resolved{one, all, one, h.service("restricted", 10, 0, 1)}
		h.Sync(h.World.Put(other.Key, other))
		h.Sync(h.World.Put(all.Key, all))
		h.mustPassAtOnce(10, func() {
			for end, i := time.Now().Add(time.Second), 0; time.Now().Before(end); i++ {
				h.Sync(h.World.Put(all.Key, ways[i%len(ways)]))
			}
		})
		h.Settled("after moves")
	})
}

// The ranges of an earlier version are one set of intervals. A start of this one serves by them until its own are there.
func TestRangesOfEarlierVersion(t *testing.T) {
	packets(t, 1, func(h *host) {
		var ranges []netip.Prefix
		for i := range clients {
			ranges = append(ranges, netip.PrefixFrom(h.address(100+i), h.Family.Bits()))
		}
		res := h.restricted(10, ranges...)
		h.Sync(h.World.Put(res.Key, res))
		h.earlierRanges(res)
		if _, err := h.ask(h.at(11), 0, time.Second); err == nil {
			h.Error("the earlier rules admit everybody")
		}
		for i := range 200 { // the elements of these are far more than one transaction takes
			h.World.Put(h.manyRanges(i).Key, h.manyRanges(i))
		}
		h.Restart()
		h.mustPassAtOnce(10, func() { h.Sync(nil) })
		h.Settled("after a start")
		if strings.Contains(h.everything(), "interval") {
			h.Error("the set of the earlier version is still there")
		}
	})
}

// earlierRanges makes our table that of an earlier version, which admits the clients at the first frontend of a service only.
func (h *host) earlierRanges(res *policy.Resolved) {
	family, _, _ := strings.Cut(h.table(), " ")
	typ := map[policy.Family]string{policy.IPv4: "ipv4_addr", policy.IPv6: "ipv6_addr"}[h.Family]
	front := family + " daddr . meta l4proto . th dport"
	set := fmt.Sprintf("source-ranges-%d", res.Frontends[0].SourceRanges[0].Bits())
	var elements []string
	for _, p := range res.Frontends[0].SourceRanges {
		elements = append(elements, fmt.Sprintf("%s . tcp . 80 . %s", h.vip(10).Addr, p.Addr()))
	}
	rules := run(h, "nft", "list", "chain", family, "svcproxy", "services")
	_, rest, _ := strings.Cut(rules, "jump admit\n")
	rest, _, _ = strings.Cut(rest, "\t}")
	h.nft(`add set TABLE source-ranges { type ` + typ + ` . inet_proto . inet_service . ` + typ + `; flags interval; }
		add element TABLE source-ranges { ` + strings.Join(elements, ", ") + ` }
		flush chain TABLE services
		add rule TABLE services ` + front + ` @restricted ` + front + ` . ` + family + ` saddr != @source-ranges drop
		add rule TABLE services ` + strings.ReplaceAll(strings.TrimSpace(rest), "\n", "\nadd rule TABLE services ") + `
		flush chain TABLE admit
		delete chain TABLE admit
		delete set TABLE ` + set)
}

// manyRanges returns one of the services whose ranges are many.
func (h *host) manyRanges(i int) *policy.Resolved {
	s := backendtest.Service{Name: fmt.Sprintf("many-%d", i), Protocol: source.TCP, Targets: backendtest.Targets(h.Family, 0, 1)}
	pool, _ := s.Pools()
	route := backendtest.Route(pool, policy.NoOne, policy.Reject)
	f := &policy.Frontend{Key: h.vip(1000 + i), Outside: route, FromLocal: route, Restricted: true}
	for n := range 200 {
		f.SourceRanges = append(f.SourceRanges, netip.PrefixFrom(h.address(1000+2*n), h.Family.Bits()-1))
	}
	return s.Resolve(f)
}
