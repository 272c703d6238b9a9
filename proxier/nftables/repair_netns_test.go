//go:build netns

package nftables_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	nfnetlink "svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
)

var harms = []struct{ name, script string }{
	{"table deleted", "delete table TABLE"},
	{"table flushed", "flush table TABLE"},
	{"table dormant", "add table TABLE { flags dormant; }"},
	{"chain flushed", "flush chain TABLE services"},
	{"base chain flushed", "flush chain TABLE prerouting"},
	{"policy changed", "chain TABLE filter-forward { policy drop; }"},
	{"rule inserted", "insert rule TABLE refusals accept"},
	{"rule replaced", "flush chain TABLE refused; add rule TABLE refused meta l4proto tcp drop; add rule TABLE refused reject"},
	{"set flushed", "flush set TABLE frontends"},
	{"map flushed", "flush map TABLE SLOTS"},
	{"set of clients replaced", "flush table TABLE; delete map TABLE affinity; add map TABLE affinity { type inet_service : mark; }"},
	{"set of frontends replaced", "flush table TABLE; delete set TABLE vips; add set TABLE vips { type inet_service; elements = { 80 }; }"},
	{"element added", "add element TABLE no-endpoints-drop { ADDR . tcp . 7 }"},
	{"comment changed", "flush set TABLE node-addresses; add element TABLE node-addresses { ADDR comment \"x\" }"},
	{"chain added", "add chain TABLE old; add rule TABLE old accept; add rule TABLE refused jump old"},
	{"base chain added", "add chain TABLE old { type filter hook input priority 0; policy drop; }"},
	{"set added", "add set TABLE old { type inet_service; flags interval; elements = { 1-2 }; }"},
	{"counter added", "add counter TABLE old"},
	{"all flushed", "flush ruleset" + foreign},
}

// A delta that no longer fits the kernel, after a foreign change, is applied by the repair.
func TestRepairsAfterDelta(t *testing.T) {
	everywhere(t, func(h *host) {
		web := backendtest.Web(h.Family, 1, 3)
		h.World.Put(web.Key, web)
		h.Sync(nil)
		h.nft("flush map TABLE SLOTS")
		h.Sync(h.World.Put(web.Key, backendtest.Web(h.Family, 1, 2)))
		h.Settled("delta and repair")
	})
}

// A table that goes while it is read is made again at once: a sync that failed would be tried again half a second later.
func TestTableRemovedDuringAReadIsMadeAgain(t *testing.T) {
	everywhere(t, func(h *host) {
		h.Fill(seeded(5), 30)
		h.Sync(nil)
		c, err := nfnetlink.Dial()
		h.Must(err)
		defer c.Close()
		for i := range 60 {
			var wg sync.WaitGroup
			wg.Go(func() {
				time.Sleep(time.Duration(i%30) * 500 * time.Microsecond)
				remove := nfnetlink.NewBatch(h.Backend.Table())
				remove.EnsureTable()
				remove.DeleteTable()
				if err := c.Commit(remove); err != nil {
					h.Error(err)
				}
			})
			h.Backend.Recheck()
			h.Sync(nil)
			wg.Wait()
		}
		h.Sync(nil)
		h.Settled("a table that was removed again and again")
	})
}

// A first load that was cut off is taken up where it ended.
func TestCutOffLoadIsResumed(t *testing.T) {
	everywhere(t, func(h *host) {
		h.Fill(seeded(5), 8)
		h.Sync(nil)
		before := h.dump()
		h.nft(`flush table TABLE
			delete chain TABLE prerouting
			delete chain TABLE output
			delete chain TABLE postrouting
			delete chain TABLE filter-input
			delete chain TABLE filter-forward
			delete chain TABLE filter-output
			flush map TABLE SLOTS`)
		h.Restart()
		h.Sync(nil)
		if diff := cmp.Diff(before, h.dump()); diff != "" {
			h.Errorf("after a cut (-before +after):\n%s", diff)
		}
	})
}

// A probe leaves nothing, and a sync that has nothing to do sends nothing: neither even counts as a change.
func TestUnchangedSyncSendsNothing(t *testing.T) {
	everywhere(t, func(h *host) {
		h.keepHooks()
		for _, services := range []int{0, 15} {
			h.Fill(seeded(1), services)
			if services > 0 {
				h.Sync(nil)
			}
			before := generation(h)
			h.Restart()
			for range services {
				h.Sync(nil)
			}
			if after := generation(h); after != before {
				h.Errorf("%d services: generation: %d before, %d after", services, before, after)
			}
		}
	})
}

// keepHooks has the table that holds the hooks outlive restarts: it goes with its process, which is this one.
func (h *host) keepHooks() {
	h.Helper()
	family := byte(unix.NFPROTO_IPV4)
	if h.Family == policy.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	holder := nfnetlink.NewHolder(family)
	fatal.If(h, holder.Hold())
	h.Cleanup(func() {
		if err := holder.Release(); err != nil {
			h.Error(err)
		}
	})
}

func generation(h *host) uint32 {
	h.Helper()
	c, err := nfnetlink.Dial()
	fatal.If(h, err)
	defer c.Close()
	g, err := c.Generation()
	fatal.If(h, err)
	return g.ID
}

// watch starts a watch that sends its events.
func (h *host) watch() <-chan proxier.ForeignChange {
	h.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, ended := make(chan proxier.ForeignChange, 100), make(chan error, 1)
	go func() { ended <- h.Backend.Watch(ctx, func(e proxier.ForeignChange) { events <- e }) }()
	h.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			h.Error(err)
		}
	})
	pace.Until(h, "something is watched", h.Backend.Watching)
	return events
}

func next(h *host, events <-chan proxier.ForeignChange, after string) proxier.ForeignChange {
	h.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(pace.Scale(5 * time.Second)):
		h.Fatalf("%s: no event after 5 s", after)
	}
	return proxier.ForeignChange{}
}

// What others do to our table is told at once, with their name; what we do, and
// what others do to their own, is not.
func TestWatchReportsOthersByName(t *testing.T) {
	everywhere(t, func(h *host) {
		events := h.watch()
		other := newHost(h, map[policy.Family]policy.Family{policy.IPv4: policy.IPv6, policy.IPv6: policy.IPv4}[h.Family])
		h.Fill(seeded(8), 10)
		h.Sync(nil)
		for _, harm := range []string{"add element TABLE node-addresses { ADDR }", "delete table TABLE", "flush ruleset"} {
			h.Foreign()
			other.Sync(nil)
			h.nft(strings.ReplaceAll(harm, "ADDR", backendtest.Addr(h.Family, "external", 77).String()))
			if e := next(h, events, harm); e.Process != "nft" || e.PID == 0 || e.PID == uint32(os.Getpid()) || e.Lost {
				h.Errorf("%s: got %+v", harm, e)
			}
			h.Sync(nil)
			h.Settled(harm)
			if harm == "flush ruleset" {
				nft(h, foreign)
			}
		}
		if n := len(events); n > 0 {
			h.Errorf("%d events too many: %+v", n, <-events)
		}
	})
}

// While others commit without end, to their own table, ours is not read again.
func TestWatchSparesReading(t *testing.T) {
	everywhere(t, func(h *host) {
		var seen atomic.Int32
		events := h.watch()
		go func() {
			for range events {
				seen.Add(1)
			}
		}()
		web := backendtest.Web(h.Family, 1, 3)
		h.World.Put(web.Key, web)
		h.Sync(nil)
		h.nft("add set inet svcproxy more { type inet_service; }")
		reads := h.Backend.Reads()
		h.Sync(nil)
		if n := h.Backend.Reads() - reads; n != 0 {
			h.Errorf("the table was read %d times although nobody touched it", n)
		}
		h.nft("flush map TABLE SLOTS")
		pace.Within(5*time.Second, func() bool { return seen.Load() > 0 })
		h.Sync(nil)
		h.Settled("map flushed")
	})
}
