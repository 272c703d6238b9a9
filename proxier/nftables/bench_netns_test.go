//go:build netns

package nftables_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// The first sync of many services, one that finds nothing to do, one that reads
// all of it, a change of one endpoint, and of one beside a look that reads all.
func BenchmarkSync(b *testing.B) {
	for _, services := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			netnstest.Enter(b)
			h := newHost(b, policy.IPv4)
			for i := range services {
				res := backendtest.Web(h.Family, i, 10)
				h.World.Services[res.Key] = res
			}
			took := map[string]time.Duration{}
			timed := func(name string, do func()) {
				start := time.Now()
				do()
				took[name] = time.Since(start)
			}
			timed("ms-first", func() { h.Sync(nil) })
			timed("ms-resync", func() { h.Sync(nil) })
			h.Restart()
			timed("ms-restart", func() { h.Sync(nil) })
			pick := seeded(1)
			change := func() time.Duration {
				n := pick(services)
				delta := h.World.Put(backendtest.Web(h.Family, n, 1).Key, backendtest.Web(h.Family, n, 9+pick(3)))
				start := time.Now()
				h.Sync(delta)
				return time.Since(start)
			}
			var changes []time.Duration
			for b.Loop() {
				changes = append(changes, change())
			}
			slices.Sort(changes)
			b.ReportMetric(float64(changes[len(changes)/2].Nanoseconds())/1000, "µs-change-p50")

			h.Backend.Recheck()
			changes = nil
			looked := make(chan struct{})
			go netnstest.Here(b, func() {
				defer close(looked)
				timed("ms-look", func() {
					if differs, err := h.Backend.Look(context.Background()); err != nil || differs {
						b.Errorf("a look finds a difference: %v, error %v", differs, err)
					}
				})
			})()
			for over := false; !over; {
				select {
				case <-looked:
					over = true
				case <-time.After(5 * time.Millisecond):
					changes = append(changes, change())
				}
			}
			if len(changes) > 0 {
				slices.Sort(changes)
				b.ReportMetric(float64(changes[len(changes)*99/100].Nanoseconds())/1000, "µs-beside-look-p99")
			}
			for name, d := range took {
				b.ReportMetric(float64(d.Microseconds())/1000, name)
			}
			fatal.If(b, h.Backend.Cleanup(context.Background()))
		})
	}
}

// A connection to the last of many services, whose numbers of slots and timeouts
// all differ, beside one to the only one there is. With affinity, of a client that
// is known, and of one that is not.
func BenchmarkConnect(b *testing.B) {
	const many, sizes = 1000, 64
	for _, keep := range []time.Duration{0, time.Hour} {
		for _, services := range []int{1, many} {
			b.Run(fmt.Sprintf("keep=%s/services=%d", keep, services), func(b *testing.B) {
				netnstest.Enter(b)
				h := newHost(b, policy.IPv4)
				h.World.Host.LocalCIDRs, h.World.Host.LocalInterfaces = nil, nil
				h.enter(sizes)
				h.listen(sizes)
				for i := range services {
					expiry := keep
					if keep > 0 {
						expiry += time.Duration(i*i) * 80 * time.Millisecond // up to 23 h
					}
					res := h.service(fmt.Sprint("svc-", i), 2*i+1, expiry, ones(1+i%sizes)...)
					h.World.Services[res.Key] = res
				}
				h.Sync(nil)
				to := h.at(2*(services-1) + 1)
				h.owned()
				b.ReportMetric(h.connectP50(to, func(int) netip.Addr { return h.forged(0) }), "µs-known-p50")
				b.ReportMetric(h.connectP50(to, h.forged), "µs-new-p50")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// connectP50 returns how long it takes to connect, in microseconds.
func (h *host) connectP50(to netip.AddrPort, from func(n int) netip.Addr) float64 {
	h.Helper()
	var took []time.Duration
	for i := range 3000 {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from(i), 0))}
		start := time.Now()
		c, err := d.Dial("tcp", to.String())
		took = append(took, time.Since(start))
		fatal.If(h, err)
		c.Close()
	}
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / 1000
}

// An endpoint leaves and is back, with so many clients that keep one; and a start.
func BenchmarkAffinity(b *testing.B) {
	for _, clients := range []int{0, 100_000, 400_000} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			netnstest.Enter(b)
			h := newHost(b, policy.IPv4)
			all, fewer := h.datagrams("sticky", 1, 0, 1, 2, 3), h.datagrams("sticky", 1, 0, 1, 2)
			h.Sync(h.World.Put(all.Key, all))
			pool := h.poolNumber("sticky")
			for i := 0; i < clients; i += 50_000 {
				var script strings.Builder
				fmt.Fprintf(&script, "add element TABLE affinity { ")
				for n := i; n < min(i+50_000, clients); n++ {
					fmt.Fprintf(&script, "%s . %s timeout 1h : 0x1,\n", h.forged(n), pool)
				}
				h.nft(script.String() + "}")
			}
			h.Sync(nil)
			var leaves []time.Duration
			for b.Loop() {
				start := time.Now()
				h.Sync(h.World.Put(all.Key, fewer))
				leaves = append(leaves, time.Since(start))
				h.Sync(h.World.Put(all.Key, all))
			}
			slices.Sort(leaves)
			b.ReportMetric(float64(leaves[len(leaves)/2].Microseconds()), "µs-leaves-p50")
			start := time.Now()
			h.Restart()
			h.Sync(nil)
			b.ReportMetric(float64(time.Since(start).Microseconds())/1000, "ms-start")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// A service of 200,000 frontends comes in pieces, changes, and goes.
func BenchmarkPieces(b *testing.B) {
	netnstest.Enter(b)
	backendtest.BenchPieces(newHost(b, policy.IPv4).Host, 200, 1000)
}
