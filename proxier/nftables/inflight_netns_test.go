//go:build netns

package nftables_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy/netutil/netnstest"
	"svcproxy/proxier"
)

// during makes connections to a VIP for as long as do runs, and fails the test if
// one is refused or waits for a lost packet.
func (h *host) during(vip int, do func()) {
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
	do()
	cancel()
	wg.Wait()
	h.Logf("%d connections", asked.Load())
}

// A packet that is on its way through our chains when elements move meets the old
// rules and the new elements.
func TestMovesUnderConnections(t *testing.T) {
	for _, keep := range []time.Duration{0, time.Hour} {
		packets(t, 4, func(h *host) {
			var ways []*proxier.Resolved
			for n := 1; n <= 4; n++ {
				ways = append(ways, h.service("moving", 10, keep, ones(n)...))
			}
			other := h.service("other", 20, keep, ones(3)...)
			h.sync(h.world.Put(other.Key, other))
			h.sync(h.world.Put(ways[0].Key, ways[0]))
			h.during(10, func() {
				for end, i := time.Now().Add(time.Second), 0; time.Now().Before(end); i++ {
					res := ways[i%len(ways)]
					h.sync(h.world.Put(res.Key, res))
				}
			})
			h.settled("after moves")
		})
	}
}

// While our table goes, nobody is refused whom another takes over.
func TestCleanupUnderConnections(t *testing.T) {
	packets(t, 1, func(h *host) {
		res := h.service("leaving", 10, 0, 1)
		addr := h.vip(10).Addr
		h.world.RefusedVIPs[addr] = 1
		run(h, "ip", "addr", "add", addr.String(), "dev", "lo", "nodad")
		nft(h, "table "+strings.Replace(h.table(), "svcproxy", "kept", 1)+" { chain nat { type nat hook postrouting priority 100; }; }")
		l, err := net.Listen("tcp", h.at(10).String()) // the other, who answers where we do not translate
		if err != nil {
			h.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Write([]byte{99})
				c.Close()
			}
		}()
		h.world.Put(res.Key, res)
		h.during(10, func() {
			for range 30 {
				h.sync(nil)
				time.Sleep(5 * time.Millisecond)
				if err := h.backend.Cleanup(context.Background()); err != nil {
					h.Error(err)
				}
			}
		})
	})
}
