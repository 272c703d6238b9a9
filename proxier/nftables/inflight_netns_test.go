//go:build netns

package nftables_test

import (
	"context"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// during makes connections to a VIP for as long as do runs, and fails the test if
// one is refused. It returns how many there were.
func (h *host) during(vip int, do func()) int64 {
	h.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var asked atomic.Int64
	for client := range clients {
		wg.Go(netnstest.Here(h, func() {
			for ctx.Err() == nil {
				if _, err := h.ask(h.at(vip), client, 10*time.Second); err != nil {
					h.Errorf("after %d connections: %v", asked.Load(), err)
				}
				asked.Add(1)
			}
		}))
	}
	pace.Within(10*time.Second, func() bool { return asked.Load() > 0 }) // goroutines take their time on a busy machine
	do()
	cancel()
	wg.Wait()
	if asked.Load() == 0 {
		h.Error("no connection was made")
	}
	return asked.Load()
}

// A packet that is on its way through our chains when elements move meets the old
// rules and the new elements. Of those that miss, all but a few find their slot
// when they are led through the chains once more.
func TestMovesUnderConnections(t *testing.T) {
	for _, keep := range []time.Duration{0, time.Hour} {
		packets(t, 4, func(h *host) {
			var ways []*policy.Resolved
			for n := 1; n <= 4; n++ {
				ways = append(ways, h.service("moving", 10, keep, ones(n)...))
			}
			other := h.service("other", 20, keep, ones(3)...)
			h.Sync(h.World.Put(other.Key, other))
			h.Sync(h.World.Put(ways[0].Key, ways[0]))
			h.countUntranslated(h.vip(10).Addr)
			asked := h.during(10, func() {
				for end, i := time.Now().Add(time.Second), 0; time.Now().Before(end); i++ {
					res := ways[i%len(ways)]
					h.Sync(h.World.Put(res.Key, res))
				}
			})
			h.Settled("after moves")
			if lost, passed := h.untranslated(); lost >= clients/2 || passed > 0 { // who loses one waits a second for the next
				h.Errorf("of %d connections, the first packets of %d were not translated, of which %d got past our filter", asked, lost, passed)
			}
		})
	}
}

// A packet that finds no slot is not refused, and its connection is made when it is sent again.
func TestPacketWithoutASlotIsSentAgain(t *testing.T) {
	packets(t, 1, func(h *host) {
		res := h.service("missed", 10, 0, 1)
		h.World.RefusedAddrs[h.vip(10).Addr] = 1
		h.World.Put(res.Key, res)
		h.Sync(nil)
		h.nft("flush map TABLE SLOTS")
		h.countUntranslated(h.vip(10).Addr)
		asked := make(chan error, 1)
		go netnstest.Here(h, func() {
			_, err := h.ask(h.at(10), 0, time.Minute)
			asked <- err
		})()
		for lost := 0; lost == 0; time.Sleep(time.Millisecond) {
			lost, _ = h.untranslated()
		}
		h.Sync(nil)
		if err := <-asked; err != nil {
			h.Error(err)
		}
	})
}

// While our table goes, no packet that it does not translate any more is refused
// or dropped: another takes it.
func TestCleanupUnderConnections(t *testing.T) {
	packets(t, 1, func(h *host) {
		res := h.service("leaving", 10, 0, 1)
		addr := h.vip(10).Addr
		h.World.RefusedAddrs[addr] = 1
		h.World.Put(res.Key, res)
		run(h, "ip", "addr", "add", addr.String(), "dev", "lo", "nodad")
		h.routed(addr)
		h.answer(h.at(10), 99)
		h.countUntranslated(addr)
		met, passed := 0, 0
		start := time.Now()
		for n := 0; n < 30 || met == 0 && !pace.Over(start, 10*time.Second); n++ { // a busy machine may send nothing meanwhile
			h.Sync(nil)
			h.during(10, func() {
				time.Sleep(5 * time.Millisecond)
				if err := h.Backend.Cleanup(context.Background()); err != nil {
					h.Error(err)
				}
			})
			met, passed = h.untranslated()
		}
		if met == 0 || met != passed {
			h.Errorf("%d packets came to our filter without being translated, and %d past it", met, passed)
		}
	})
}

// countUntranslated counts, before and after our filter, the first packets to an
// address that were not translated. Its table also keeps the kernel translating
// for connections that our table began.
func (h *host) countUntranslated(addr netip.Addr) {
	h.Helper()
	family, _, _ := strings.Cut(h.table(), " ")
	rule := "ct state new ct status ! dnat " + family + " daddr " + addr.String() + " counter name "
	nft(h, "table "+family+` counting {
		counter met { }
		counter passed { }
		chain nat { type nat hook postrouting priority 100; }
		chain before { type filter hook output priority -11; `+rule+`met; }
		chain after { type filter hook output priority -9; `+rule+`passed; }
	}`)
}

func (h *host) untranslated() (met, passed int) {
	h.Helper()
	family, _, _ := strings.Cut(h.table(), " ")
	out := run(h, "nft", "list", "counters", "table", family, "counting")
	n := regexp.MustCompile(`packets (\d+)`).FindAllStringSubmatch(out, 2)
	if len(n) != 2 {
		h.Fatalf("counters:\n%s", out)
	}
	met, _ = strconv.Atoi(n[0][1])
	passed, _ = strconv.Atoi(n[1][1])
	return met, passed
}
