//go:build netns

package nftables_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/nftables"
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

// datagramsDuring has clients send datagrams to VIPs, each from a port of its own, while do runs. It returns how many each has
// sent, and how many came to an endpoint.
func (h *host) datagramsDuring(clients, vips []int, do func()) (sent, received []int) {
	h.Helper()
	family, _, _ := strings.Cut(h.table(), " ")
	var chains string
	for _, c := range clients {
		match := family + " saddr " + h.address(100+c).String() + " udp dport"
		chains += fmt.Sprintf(`
			chain sent-%[1]d { type filter hook output priority -300; %[2]s 80 counter; }
			chain received-%[1]d { type filter hook input priority 300; %[2]s 8080 counter; }`, c, match)
	}
	nft(h, "table "+family+" counting {"+chains+"\n}")
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(netnstest.Here(h, func() {
		for ctx.Err() == nil {
			for i, c := range clients {
				from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.address(100+c), 0))
				conn, err := net.DialUDP("udp", from, net.UDPAddrFromAddrPort(h.at(vips[i])))
				if err != nil {
					h.Error(err)
					return
				}
				_, _ = conn.Write([]byte("x")) // an answer that says that nobody listens may have come
				conn.Close()
			}
		}
	}))
	do()
	cancel()
	wg.Wait()
	count := func(chain string, c int) int {
		out := run(h, "nft", "list", "chain", family, "counting", fmt.Sprintf("%s-%d", chain, c))
		_, out, _ = strings.Cut(out, "packets ")
		n, err := strconv.Atoi(strings.Fields(out)[0])
		h.Must(err)
		return n
	}
	for _, c := range clients {
		sent, received = append(sent, count("sent", c)), append(received, count("received", c))
	}
	return sent, received
}

// onlyFrom restricts a service of datagrams.
func (h *host) onlyFrom(name string, vip int, ranges ...netip.Prefix) *policy.Resolved {
	res := h.datagrams(name, vip, 0)
	for _, f := range res.Frontends {
		f.Restricted, f.SourceRanges = true, ranges
	}
	return res
}

// The ranges of an earlier version are one set of intervals. A start of this one serves by them until its own are there,
// however little a transaction takes: who was admitted is, and nobody else.
func TestRangesOfEarlierVersion(t *testing.T) {
	packets(t, 1, func(h *host) {
		h.Cleanup(nftables.SendAtMost(1 << 10))
		res := h.onlyFrom("restricted", 10, netip.PrefixFrom(h.address(100), h.Family.Bits()))
		open := h.onlyFrom("open", 20, netip.PrefixFrom(h.Family.Unspecified(), 0))
		h.World.Put(open.Key, open)
		for n := range 20 { // a chain for each size
			other := h.service(fmt.Sprint("other-", n), 30+2*n, 0, ones(n+1)...)
			h.World.Put(other.Key, other)
		}
		h.Sync(h.World.Put(res.Key, res))
		h.earlierRanges(res, open)
		for i := range 50 { // the elements of these are far more than one transaction takes
			h.World.Put(h.manyRanges(i).Key, h.manyRanges(i))
		}
		h.Restart()
		sent, received := h.datagramsDuring([]int{0, 1, 2}, []int{10, 20, 10}, func() { h.Sync(nil) })
		if sent[0] != received[0] || sent[1] != received[1] || received[2] != 0 || sent[2] == 0 {
			h.Errorf("an admitted client, one of everybody, and one that is kept out sent %d datagrams, of which %d came", sent, received)
		}
		h.Settled("after a start")
		if strings.Contains(h.everything(), "interval") {
			h.Error("the set of the earlier version is still there")
		}
	})
}

// A client that no list admits never gets in, whatever lengths come and go, and one that all lists admit always does.
func TestRangesMoveUnderDatagrams(t *testing.T) {
	packets(t, 1, func(h *host) {
		bits := h.Family.Bits()
		admitted, many := netip.PrefixFrom(h.address(100), bits), []netip.Prefix{}
		for n := range 100 {
			many = append(many, netip.PrefixFrom(h.address(1000+n), bits-n%4).Masked())
		}
		slices.SortFunc(many, netip.Prefix.Compare)
		many = append(slices.Compact(many), admitted)
		var ways []*policy.Resolved
		for _, ranges := range [][]netip.Prefix{{admitted}, many, {netip.PrefixFrom(h.address(100), bits-1).Masked()}} {
			ways = append(ways, h.onlyFrom("restricted", 10, ranges...))
		}
		h.Sync(h.World.Put(ways[0].Key, ways[0]))
		sent, received := h.datagramsDuring([]int{0, 2}, []int{10, 10}, func() {
			for end, i := time.Now().Add(time.Second), 0; time.Now().Before(end); i++ {
				h.Sync(h.World.Put(ways[0].Key, ways[i%len(ways)]))
			}
		})
		if sent[0] != received[0] || sent[1] == 0 || received[1] != 0 {
			h.Errorf("an admitted client and one that is kept out sent %d datagrams, of which %d came", sent, received)
		}
		h.Settled("after moves")
	})
}

// An earlier version makes a set again, without its elements, if its comment differs: it would let everybody in meanwhile.
func TestRestrictedKeepsItsComment(t *testing.T) {
	packets(t, 1, func(h *host) {
		res := h.onlyFrom("restricted", 10)
		h.Sync(h.World.Put(res.Key, res))
		family, _, _ := strings.Cut(h.table(), " ")
		if set := run(h, "nft", "list", "set", family, "svcproxy", "restricted"); !strings.Contains(set, `comment "only source-ranges may use these"`) {
			h.Errorf("an earlier version would make this set again:\n%s", set)
		}
	})
}

// earlierRanges makes our table that of an earlier version, where a service admits its ranges, and another one everybody.
func (h *host) earlierRanges(res, open *policy.Resolved) {
	family, _, _ := strings.Cut(h.table(), " ")
	typ := map[policy.Family]string{policy.IPv4: "ipv4_addr", policy.IPv6: "ipv6_addr"}[h.Family]
	front := family + " daddr . meta l4proto . th dport"
	var ranges, restricted []string
	for _, r := range []*policy.Resolved{res, open} {
		key := r.Frontends[0].Key.Addr.String() + " . udp . 80"
		restricted = append(restricted, key)
		ranges = append(ranges, key+" . "+r.Frontends[0].SourceRanges[0].String())
	}
	rules := run(h, "nft", "list", "chain", family, "svcproxy", "services")
	_, rest, _ := strings.Cut(rules, "jump admit\n")
	rest, _, _ = strings.Cut(rest, "\t}")
	h.nft(`add set TABLE source-ranges { type ` + typ + ` . inet_proto . inet_service . ` + typ + `; flags interval; }
		add element TABLE source-ranges { ` + strings.Join(ranges, ", ") + ` }
		flush chain TABLE services
		flush chain TABLE admit
		delete chain TABLE admit
		delete set TABLE restricted
		add set TABLE restricted { type ` + typ + ` . inet_proto . inet_service; comment "of an earlier version"; }
		add element TABLE restricted { ` + strings.Join(restricted, ", ") + ` }
		add rule TABLE services ` + front + ` @restricted ` + front + ` . ` + family + ` saddr != @source-ranges drop
		add rule TABLE services ` + strings.ReplaceAll(strings.TrimSpace(rest), "\n", "\nadd rule TABLE services ") + `
		delete set TABLE source-ranges-0
		delete set TABLE source-ranges-` + strconv.Itoa(h.Family.Bits()))
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
