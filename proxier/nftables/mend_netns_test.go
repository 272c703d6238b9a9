//go:build netns

package nftables_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	nfnetlink "svcproxy/netutil/nft"
	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
)

// handles are numbers that the kernel gives; what is mended gets new ones.
var handles = regexp.MustCompile(` # handle \d+`)

// content returns what the kernel holds, ours and of others, in a stable order.
func (h *host) content() map[string]int {
	h.Helper()
	lines := map[string]int{}
	text := handles.ReplaceAllString(h.everything(), "")
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimPrefix(strings.TrimSpace(line), "elements = { ")
		lines[strings.TrimSuffix(strings.TrimSuffix(line, " }"), ",")]++
	}
	return lines
}

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
}

// What others break is found by a look and repaired, by a sync with a delta and by
// one without, and what is theirs is left alone.
func TestMends(t *testing.T) {
	everywhere(t, func(h *host) {
		h.fill(short(seeded(4)), 8)
		h.sync(nil)
		before := h.content()
		for i, tt := range harms {
			h.harm(tt.name, tt.script)
			if differs, _ := h.looks(); !differs {
				h.Errorf("%s: not found by a look", tt.name)
			}
			if len(h.planned()) == 0 {
				h.Errorf("%s: nothing planned", tt.name)
			}
			h.sync([]*proxier.Delta{nil, {}}[i%2])
			h.settled(tt.name)
			if diff := cmp.Diff(before, h.content()); diff != "" {
				h.Fatalf("%s (-before +after):\n%s", tt.name, diff)
			}
			if differs, _ := h.looks(); differs {
				h.Errorf("%s: found by a look after the repair", tt.name)
			}
		}
		run(h, "nft", "flush", "ruleset")
		h.sync(nil)
		h.settled("all flushed")
	})
}

// A delta that the kernel cannot follow, as somebody has been there, is done with the repair.
func TestMendsAfterDelta(t *testing.T) {
	everywhere(t, func(h *host) {
		web := filtertest.Web(h.fam, 1, 3)
		h.world.Put(web.Key, web)
		h.sync(nil)
		h.nft("flush map TABLE SLOTS")
		h.sync(h.world.Put(web.Key, filtertest.Web(h.fam, 1, 2)))
		h.settled("delta and repair")
	})
}

// A first load that was cut off is taken up where it ended.
func TestCutOff(t *testing.T) {
	everywhere(t, func(h *host) {
		h.fill(seeded(5), 8)
		h.sync(nil)
		before := h.content()
		h.nft(`flush table TABLE
			delete chain TABLE prerouting
			delete chain TABLE output
			delete chain TABLE postrouting
			delete chain TABLE filter-input
			delete chain TABLE filter-forward
			delete chain TABLE filter-output
			flush map TABLE SLOTS`)
		h.backend = newBackend(h, h.fam)
		h.sync(nil)
		if diff := cmp.Diff(before, h.content()); diff != "" {
			h.Errorf("after a cut (-before +after):\n%s", diff)
		}
	})
}

func TestCleanup(t *testing.T) {
	everywhere(t, func(h *host) {
		before := h.everything()
		h.fill(seeded(7), 10)
		h.sync(nil)
		for range 2 { // the second time there is nothing
			if err := h.backend.Cleanup(context.Background()); err != nil {
				h.Fatal(err)
			}
			if diff := cmp.Diff(before, h.everything()); diff != "" {
				h.Fatalf("cleanup (-before +after):\n%s", diff)
			}
		}
		h.sync(nil)
		h.settled("sync after cleanup")
	})
}

// A probe leaves nothing, and does not even count as a change.
func TestProbe(t *testing.T) {
	everywhere(t, func(h *host) {
		before := generation(h)
		newBackend(h, h.fam)
		if after := generation(h); after != before {
			h.Errorf("generation: %d before, %d after", before, after)
		}
	})
}

func generation(h *host) uint32 {
	h.Helper()
	c, err := nfnetlink.Dial()
	if err != nil {
		h.Fatal(err)
	}
	defer c.Close()
	g, err := c.Generation()
	if err != nil {
		h.Fatal(err)
	}
	return g.ID
}

// watch starts a watch that sends its events.
func (h *host) watch() <-chan proxier.ForeignChange {
	h.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, ended := make(chan proxier.ForeignChange, 100), make(chan error, 1)
	go func() { ended <- h.backend.Watch(ctx, func(e proxier.ForeignChange) { events <- e }) }()
	h.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			h.Error(err)
		}
	})
	deadline := time.Now().Add(5 * time.Second)
	for !h.backend.Watching() {
		if time.Now().After(deadline) {
			h.Fatal("nothing is watched after 5 s")
		}
		time.Sleep(time.Millisecond)
	}
	return events
}

func next(h *host, events <-chan proxier.ForeignChange, after string) proxier.ForeignChange {
	h.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(5 * time.Second):
		h.Fatalf("%s: no event after 5 s", after)
	}
	return proxier.ForeignChange{}
}

// What others do to our table is told at once, with their name; what we do, and
// what others do to their own, is not.
func TestWatch(t *testing.T) {
	everywhere(t, func(h *host) {
		events := h.watch()
		other := newBackend(h, map[proxier.Family]proxier.Family{proxier.IPv4: proxier.IPv6, proxier.IPv6: proxier.IPv4}[h.fam])
		h.fill(seeded(8), 10)
		h.sync(nil)
		for _, harm := range []string{"add element TABLE node-addresses { ADDR }", "delete table TABLE", "flush ruleset"} {
			nft(h, "add element inet svcproxy frontends { 192.0.2.78 : drop }\nadd table ip others\n")
			if err := other.Sync(context.Background(), filtertest.NewWorld(other.Family()).State, nil); err != nil {
				h.Fatal(err)
			}
			h.nft(strings.ReplaceAll(harm, "ADDR", filtertest.Addr(h.fam, "external", 77).String()))
			if e := next(h, events, harm); e.Process != "nft" || e.PID == 0 || e.PID == uint32(os.Getpid()) || e.Lost {
				h.Errorf("%s: got %+v", harm, e)
			}
			h.sync(nil)
			h.settled(harm)
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
		web := filtertest.Web(h.fam, 1, 3)
		h.world.Put(web.Key, web)
		h.sync(nil)
		h.nft("add set inet svcproxy more { type inet_service; }")
		reads := h.backend.Reads()
		h.sync(nil)
		if n := h.backend.Reads() - reads; n != 0 {
			h.Errorf("the table was read %d times although nobody touched it", n)
		}
		h.nft("flush map TABLE SLOTS")
		for deadline := time.Now().Add(5 * time.Second); seen.Load() == 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		h.sync(nil)
		h.settled("map flushed")
	})
}
