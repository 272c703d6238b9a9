//go:build netns

package nftables_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy/netutil/netnstest"
	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
	"svcproxy/proxier/nftables"
	"svcproxy/source"
)

// looks reports what a Look finds, and whether it has read the table.
func (h *host) looks() (differs, read bool) {
	h.Helper()
	differs, err := h.backend.Look(context.Background())
	if err != nil {
		h.Fatal(err)
	}
	return differs, h.backend.Unread() == 0
}

// harm does to our table what a script of harms says.
func (h *host) harm(name, script string) {
	h.Helper()
	script = strings.ReplaceAll(script, "ADDR", filtertest.Addr(h.fam, "external", 77).String())
	h.nft(strings.ReplaceAll(script, "; ", "\n"))
	if name == "table dormant" || name == "base chain added" || name == "set added" {
		h.nft(script)
	}
}

// The table is read only if there is a reason.
func TestLookSparesReading(t *testing.T) {
	everywhere(t, func(h *host) {
		if differs, _ := h.looks(); differs {
			h.Error("a look before the first sync finds a difference")
		}
		web := filtertest.Web(h.fam, 1, 3)
		h.world.Put(web.Key, web)
		h.sync(nil)
		expect := func(when string, want bool) {
			h.Helper()
			if differs, read := h.looks(); differs || read != want {
				h.Errorf("%s: found a difference: %v, read the table: %v, want that %v", when, differs, read, want)
			}
		}
		expect("after the first sync", false)
		h.sync(h.world.Put(web.Key, filtertest.Web(h.fam, 1, 4)))
		expect("after a change of ours", false)
		h.nft("add set inet svcproxy more { type inet_service; }")
		expect("after a change of a foreign table", true)
		expect("then", false)

		h.watch()
		expect("after a watch has begun", true)
		h.nft("add set inet svcproxy others { type inet_service; }")
		expect("after a change of a foreign table, with events", false)
		h.backend.Doubt()
		expect("after lost events", true)
		for range nftables.LooksUnread - 1 {
			expect("with events", false)
		}
		expect("once in a while", true)
	})
}

// Who hears of changes by others says when they are repaired: no look hastens that,
// and none misses what nobody has heard of.
func TestLookHastensNothing(t *testing.T) {
	everywhere(t, func(h *host) {
		events := h.watch()
		h.fill(seeded(5), 5)
		h.sync(nil)
		h.backend.Doubt()
		h.nft("flush chain TABLE services")
		next(h, events, "a flush")
		if differs, _ := h.looks(); differs {
			h.Error("a look has repaired at once what was told of")
		}
		h.sync(&proxier.Delta{})
		h.settled("a flush that was told of")
	})
}

// With several hundred thousand slots, too.
func TestLookAtMany(t *testing.T) {
	enterNamespace(t)
	h := &host{TB: t, fam: proxier.IPv4, world: filtertest.NewWorld(proxier.IPv4), backend: newBackend(t, proxier.IPv4)}
	const services = 10_001
	for i := range services {
		res := filtertest.Web(h.fam, i, 10)
		h.world.Services[res.Key] = res
	}
	h.sync(nil)
	h.backend.Doubt()
	if differs, read := h.looks(); differs || !read {
		t.Errorf("untouched: found a difference: %v, read the table: %v", differs, read)
	}
	of := func(n int) string { return filtertest.Web(h.fam, n, 1).Frontends[0].Key.Addr.String() }
	h.nft("delete element TABLE slots-10 { " + of(services-1) + " . tcp . 80 . 0x00000009 }")
	if differs, _ := h.looks(); !differs {
		t.Error("a slot is missing: not found")
	}
}

// Looks beside syncs hold none up, and take no change of ours for one of others.
func TestLookBesideSyncs(t *testing.T) {
	everywhere(t, func(h *host) {
		pick := seeded(11)
		h.fill(pick, 8)
		h.sync(nil)
		h.watch()
		var wg sync.WaitGroup
		var over atomic.Bool
		var looks atomic.Int32
		wg.Go(netnstest.Here(h, func() {
			for ; !over.Load(); looks.Add(1) {
				h.backend.Doubt()
				if differs, err := h.backend.Look(context.Background()); err != nil || differs {
					h.Errorf("look %d: found a difference: %v, error %v", looks.Load(), differs, err)
					return
				}
			}
		}))
		step := 0
		enough := func() bool { return h.Failed() || step >= 60 && looks.Load() >= 5 }
		for end := time.Now().Add(time.Minute); !enough() && time.Now().Before(end); step++ {
			number := pick(12)
			key := source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", number)}
			var res *proxier.Resolved
			if pick(4) > 0 {
				res = h.world.Random(pick, number)
			}
			delta := h.world.Put(key, res)
			if step%50 == 49 {
				delta = nil
			}
			h.sync(delta)
		}
		over.Store(true)
		wg.Wait()
		if !enough() {
			h.Errorf("%d looks beside %d syncs", looks.Load(), step)
		}
		h.settled("after syncs")
	})
}

// A look ends with its context, at whatever point.
func TestLookEnds(t *testing.T) {
	everywhere(t, func(h *host) {
		h.fill(seeded(4), 8)
		h.sync(nil)
		h.backend.Doubt()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := h.backend.Look(ctx); err == nil {
			h.Error("a look whose context has ended succeeds")
		}
		if differs, read := h.looks(); differs || !read {
			h.Errorf("the next look: found a difference: %v, read the table: %v", differs, read)
		}
	})
}

// A delta that the kernel takes is done although something else is to be repaired.
func TestDeltaBeforeRepair(t *testing.T) {
	everywhere(t, func(h *host) {
		web := filtertest.Web(h.fam, 1, 3)
		h.world.Put(web.Key, web)
		h.sync(nil)
		h.harm("chain flushed", "flush chain TABLE services")
		if differs, _ := h.looks(); !differs {
			h.Error("chain flushed: not found")
		}
		h.sync(h.world.Put(web.Key, filtertest.Web(h.fam, 1, 4)))
		h.settled("delta and repair")
	})
}

// Looks beside changes of ours count none of them as one of others, or the next that
// others make would give the number that is known, and be passed over.
func TestLookBesideCommitsCountsNone(t *testing.T) {
	enterNamespace(t)
	nft(t, foreign)
	h := &host{TB: t, fam: proxier.IPv4, world: filtertest.NewWorld(proxier.IPv4), backend: newBackend(t, proxier.IPv4)}
	web := filtertest.Web(h.fam, 1, 1)
	h.world.Put(web.Key, web)
	h.sync(nil)
	h.looks()
	want := h.backend.Foreign()
	ended, looked := make(chan struct{}), make(chan int)
	go netnstest.Here(t, func() {
		n := 0
		for ; ; n++ {
			select {
			case <-ended:
				looked <- n
				return
			default:
			}
			if differs, err := h.backend.Look(context.Background()); differs || err != nil {
				t.Errorf("look %d: %v, %v", n, differs, err)
			}
			if got := h.backend.Foreign(); got != want {
				t.Errorf("look %d: %d commits of others, want %d", n, got, want)
			}
		}
	})()
	for i := range 500 {
		h.sync(h.world.Put(web.Key, filtertest.Web(h.fam, 1, 1+i%3)))
	}
	close(ended)
	if n := <-looked; n == 0 {
		t.Error("no look was beside the changes")
	}
	h.nft("add set inet svcproxy more { type inet_service; }")
	if _, read := h.looks(); !read {
		t.Error("a commit of others was passed over")
	}
}
