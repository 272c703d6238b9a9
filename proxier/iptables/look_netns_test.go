//go:build netns

package iptables_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy/netutil/netnstest"
	"svcproxy/proxier"
	"svcproxy/source"
)

func (h *host) look() bool {
	h.Helper()
	damaged, err := h.backend.Look(context.Background())
	if err != nil {
		h.Fatal(err)
	}
	return damaged
}

// harms are what others do to our rules and sets.
var harms = []struct {
	name string
	harm func(h *host)
}{
	{"nat flushed", func(h *host) { h.iptables("-t nat -F"); h.foreignNAT() }},
	{"nat flushed, chains deleted", func(h *host) { h.iptables("-t nat -F"); h.iptables("-t nat -X"); h.foreignNAT() }},
	{"our filter chain flushed", func(h *host) { h.iptables("-F SVCP-FILTER") }},
	{"rule deleted", func(h *host) { h.iptables("-t nat -D SVCP-SERVICES 1") }},
	{"rule replaced", func(h *host) { h.iptables("-t nat -R SVCP-MARK-MASQ 1 -j MARK --set-xmark 0x1/0x1") }},
	{"jump deleted", func(h *host) { h.iptables("-D FORWARD -j SVCP-FORWARD") }},
	{"jump twice", func(h *host) { h.iptables("-t nat -A OUTPUT -j SVCP-SERVICES") }},
	{"chain of an earlier run", func(h *host) {
		h.iptables("-N SVCP-OLD")
		h.iptables("-A SVCP-OLD -j ACCEPT")
		h.iptables("-I INPUT -j SVCP-OLD")
	}},
	{"set flushed", func(h *host) { run(h, "ipset", "flush", h.set("SVCP-VIPS")) }},
	{"set of an earlier run", func(h *host) { run(h, "ipset", "create", h.set("SVCP-OLD"), "hash:net") }},
	{"set destroyed", func(h *host) {
		h.iptables("-F SVCP-FILTER")
		h.iptables("-F SVCP-FORWARD")
		destroy(h, h.set("SVCP-DROP"))
	}},
}

// set returns the name of a set of the family.
func (h *host) set(name string) string {
	if h.fam == proxier.IPv6 {
		return name + "-6"
	}
	return name + "-4"
}

// destroy destroys a set as soon as nf_tables has let go of it.
func destroy(h *host, set string) {
	h.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		names := run(h, "sh", "-c", "ipset destroy "+set+" 2>&1 || true")
		if names == "" {
			return
		}
		if time.Now().After(deadline) {
			h.Fatal(names)
		}
	}
}

// A look finds what others break, and the next sync, whose delta is empty, puts
// it right, without another look.
func TestLookFindsDamage(t *testing.T) {
	everywhere(t, func(h *host) {
		if h.look() {
			h.Error("a look before the first sync found something")
		}
		h.fill(seeded(11), 30)
		h.sync(nil)
		if h.look() {
			h.Error("a look after a sync found something")
		}
		before := h.everything()
		for _, tt := range harms {
			tt.harm(h)
			if !h.look() {
				h.Errorf("%s: not found", tt.name)
			}
			h.sync(&proxier.Delta{})
			h.settled(tt.name)
			if diff := cmp.Diff(before, h.everything()); diff != "" {
				h.Fatalf("%s (-before +after):\n%s", tt.name, diff)
			}
			if h.look() {
				h.Errorf("%s: found again after the repair", tt.name)
			}
		}
	})
}

// After changes the mirror, members of sets included, is what the kernel holds.
func TestLookAfterDeltas(t *testing.T) {
	everywhere(t, func(h *host) {
		pick := seeded(13)
		h.fill(pick, 20)
		h.sync(nil)
		for step := range 15 {
			h.randomStep(pick, 24)
			if h.look() {
				h.Fatalf("delta %d: a look found something", step)
			}
		}
		h.iptables("-t nat -F SVCP-MARK-MASQ")
		h.look()
		h.randomStep(pick, 24) // repairs besides
		h.settled("delta with a repair")
	})
}

// randomStep changes one of n services.
func (h *host) randomStep(pick func(int) int, n int) {
	h.Helper()
	number := pick(n)
	key := source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", number)}
	var res *proxier.Resolved
	if pick(4) > 0 {
		res = h.world.Random(pick, number)
	}
	h.sync(h.world.Put(key, res))
}

// Looks beside changes never take one of ours for damage, and see that of others.
func TestLookBesideSyncs(t *testing.T) {
	everywhere(t, func(h *host) {
		pick := seeded(14)
		h.fill(pick, 40)
		h.sync(nil)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		var looks atomic.Int32
		wg.Go(netnstest.Here(h, func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				damaged, err := h.backend.Look(context.Background())
				if n := looks.Add(1); err != nil || damaged {
					t.Errorf("look %d beside syncs: %v, %v", n, damaged, err)
					return
				}
			}
		}))
		for step := 0; step < 25 || looks.Load() < 3 && step < 500; step++ {
			h.randomStep(pick, 50)
		}
		h.sync(nil)
		close(stop)
		wg.Wait()
		if n := looks.Load(); n < 3 {
			h.Errorf("only %d looks", n)
		}
		h.settled("all changes")
		h.iptables("-F SVCP-FILTER")
		if !h.look() {
			h.Error("damage after all changes is not found")
		}
	})
}

// watch starts a watch that sends its events.
func (h *host) watch() <-chan proxier.ForeignChange {
	h.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, ended := make(chan proxier.ForeignChange, 100), make(chan error, 1)
	go netnstest.Here(h, func() { ended <- h.backend.Watch(ctx, func(e proxier.ForeignChange) { events <- e }) })()
	h.Cleanup(func() {
		cancel()
		<-ended
	})
	return events
}

// The table that keeps connections while all rules are flushed comes back, too.
func TestLookKeepsOn(t *testing.T) {
	everywhere(t, func(h *host) {
		table := h.set("SVCP-KEEP")
		h.fill(seeded(3), 3)
		h.sync(nil)
		run(h, "nft", "delete", "table", "inet", table)
		if h.look() {
			h.Error("no rule differs, but a look says so")
		}
		if tables := run(h, "nft", "list", "tables"); !strings.Contains(tables, "table inet "+table) {
			h.Errorf("after a look there are only\n%s", tables)
		}
	})
}

// Who flushes our rules is seen: at once where nf_tables tells, else within some
// seconds. What we write ourselves is not told of, nor what others do to their own.
func TestWatchSeesFlush(t *testing.T) {
	everywhere(t, func(h *host) {
		events := h.watch()
		pick := seeded(15)
		h.fill(pick, 30)
		h.sync(nil)
		for range 5 {
			h.randomStep(pick, 30)
			h.iptables("-A FOREIGN -j ACCEPT")
		}
		for _, flush := range []string{"-t nat -F", "-F", "-t nat -F; -t nat -X"} {
			select {
			case e := <-events:
				h.Errorf("an event although nobody touched our rules: %+v", e)
			case <-time.After(1200 * time.Millisecond):
			}
			for args := range strings.SplitSeq(flush, "; ") {
				h.iptables(args)
			}
			select {
			case e := <-events:
				if h.variant == "nft" && (e.PID == 0 || e.Process != h.tool("")) && !e.Lost {
					h.Errorf("%s: who did that: got %+v", flush, e)
				}
			case <-time.After(30 * time.Second):
				h.Fatalf("%s: nobody says so", flush)
			}
			h.foreignNAT()
			h.sync(&proxier.Delta{})
			h.settled(flush)
		}
	})
}

// What a watch has told of is repaired when those who heard it say so, later where
// somebody breaks it again and again: a look brings that not forward, and the
// questions of the legacy variant do not tell of it again.
func TestLookLeavesWhatWasTold(t *testing.T) {
	everywhere(t, func(h *host) {
		events := h.watch()
		h.fill(seeded(16), 20)
		h.sync(nil)
		h.iptables("-t nat -F")
		select {
		case <-events:
		case <-time.After(30 * time.Second):
			h.Fatal("nobody says that the rules were flushed")
		}
		if h.look() {
			h.Error("a look finds what the watch has told of")
		}
		if h.variant == "legacy" && h.fam == proxier.IPv4 {
			select {
			case <-events:
				h.Error("told again while the repair waits")
			case <-time.After(4 * time.Second): // the next question comes after 2 s or so
			}
		}
		h.foreignNAT()
		h.sync(&proxier.Delta{})
		h.settled("repair")
		run(h, "ipset", "flush", h.set("SVCP-VIPS"))
		if !h.look() {
			h.Error("a look does not find what nobody has told of")
		}
	})
}
