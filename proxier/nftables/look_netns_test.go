//go:build netns

package nftables_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	nfnetlink "svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/nftables"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// looks reports what a Look finds, and whether it has read the table.
func (h *host) looks() (differs, read bool) {
	h.Helper()
	differs, err := h.Backend.Look(context.Background())
	fatal.If(h, err)
	return differs, h.Backend.Unread() == 0
}

// harm does to our table what a script of harms says.
func (h *host) harm(name, script string) {
	h.Helper()
	script = strings.ReplaceAll(script, "ADDR", backendtest.Addr(h.Family, "external", 77).String())
	h.nft(strings.ReplaceAll(script, "; ", "\n"))
	if name == "table dormant" || name == "base chain added" || name == "set added" {
		h.nft(script)
	}
}

// The table is read only if there is a reason.
func TestLookSparesReading(t *testing.T) {
	everywhere(t, func(h *host) {
		if h.Look() {
			h.Error("a look before the first sync finds a difference")
		}
		web := backendtest.Web(h.Family, 1, 3)
		h.World.Put(web.Key, web)
		h.Sync(nil)
		expect := func(when string, want bool) {
			h.Helper()
			if differs, read := h.looks(); differs || read != want {
				h.Errorf("%s: found a difference: %v, read the table: %v, want that %v", when, differs, read, want)
			}
		}
		expect("after the first sync", false)
		h.Sync(h.World.Put(web.Key, backendtest.Web(h.Family, 1, 4)))
		expect("after a change of ours", false)
		h.nft("add set inet svcproxy more { type inet_service; }")
		expect("after a change of a foreign table", true)
		expect("then", false)

		h.watch()
		expect("after a watch has begun", true)
		h.nft("add set inet svcproxy others { type inet_service; }")
		expect("after a change of a foreign table, with events", false)
		h.Backend.Recheck()
		expect("after lost events", true)
		for range nftables.LooksUnread - 1 {
			expect("with events", false)
		}
		expect("once in a while", true)
	})
}

// Who hears of changes by others says when they are repaired: no look hastens that,
// and none misses what nobody has heard of.
func TestLookDoesNotHastenRepairs(t *testing.T) {
	everywhere(t, func(h *host) {
		events := h.watch()
		h.Fill(seeded(5), 5)
		h.Sync(nil)
		h.Backend.Recheck()
		h.nft("flush chain TABLE services")
		next(h, events, "a flush")
		if h.Look() {
			h.Error("a look has repaired at once what was told of")
		}
		h.Sync(&policy.Delta{})
		h.Settled("a flush that was told of")
	})
}

// With several hundred thousand slots, too.
func TestLookAtMany(t *testing.T) {
	netnstest.Enter(t)
	h := newHost(t, policy.IPv4)
	const services = 10_001
	for i := range services {
		res := backendtest.Web(h.Family, i, 10)
		h.World.Services[res.Key] = res
	}
	h.Sync(nil)
	h.Backend.Recheck()
	if differs, read := h.looks(); differs || !read {
		t.Errorf("untouched: found a difference: %v, read the table: %v", differs, read)
	}
	of := func(n int) string { return backendtest.Web(h.Family, n, 1).Frontends[0].Key.Addr.String() }
	h.nft("delete element TABLE slots-10 { " + of(services-1) + " . tcp . 80 . 0x00000009 }")
	if !h.Look() {
		t.Error("a slot is missing: not found")
	}
}

// A start with large sets in the kernel puts right at once what packets need. The look that follows finds what should have
// gone meanwhile.
func TestStartWithMany(t *testing.T) {
	defer nftables.ListAtMost(10)()
	everywhere(t, func(h *host) {
		for i := range 20 {
			h.World.Put(backendtest.Key(i), backendtest.Web(h.Family, i, 3))
		}
		var ranges []netip.Prefix
		for i := range 20 {
			ranges = append(ranges, netip.PrefixFrom(h.address(i), h.Family.Bits()))
		}
		narrowed := h.restricted(30, ranges...)
		h.World.Put(narrowed.Key, narrowed)
		h.Sync(nil)
		h.Restart()
		h.World.Put(narrowed.Key, h.restricted(30, ranges[1:]...))
		for i, endpoints := range []int{0, 2, 4} {
			res := backendtest.Web(h.Family, i, endpoints)
			h.World.Put(res.Key, res)
		}
		h.World.Put(backendtest.Key(19), nil)
		h.Sync(nil)
		for _, c := range h.Planned() {
			if c.Op != "remove" || strings.Contains(c.Object, "source-ranges") {
				h.Errorf("a start has left %v", c)
			}
		}
		if !h.Look() {
			h.Error("what should have gone was not found")
		}
		h.Sync(nil)
		h.Settled("what a look has found after a start")
	})
}

// A start with many slots in the kernel lists none, and finds all the same what differs.
func TestStartEnsuresSlots(t *testing.T) {
	defer nftables.ListAtMost(2000)()
	everywhere(t, func(h *host) {
		for i := range 200 {
			h.World.Put(backendtest.Key(i), backendtest.Web(h.Family, i, 10))
		}
		h.Sync(nil)
		of := func(n int) string {
			return backendtest.Web(h.Family, n, 1).Frontends[0].Key.Addr.String() + " . tcp . 80 . 0x00000000"
		}
		target := h.address(1).String() + " . 81"
		for _, harm := range []struct{ name, script string }{
			{"nothing", ""},
			{"a slot missing", "delete element TABLE slots-10 { " + of(7) + " }"},
			{"another target", "delete element TABLE slots-10 { " + of(7) + " }; add element TABLE slots-10 { " + of(7) + " : " + target + " }"},
			{"one more slot", "add element TABLE slots-10 { " + of(700) + " : " + target + " }"},
			{"one in place of another", "delete element TABLE slots-10 { " + of(7) + " }; add element TABLE slots-10 { " + of(700) + " : " + target + " }"},
		} {
			if harm.script != "" {
				h.nft(strings.ReplaceAll(harm.script, "; ", "\n"))
			}
			h.Restart()
			h.Sync(nil)
			const listed = 64 << 10 // bytes, of the slots; the rest takes less
			if n := h.Backend.Received(); harm.name == "nothing" && n > listed && h.countsElements() {
				h.Errorf("%s: a start has read %d bytes", harm.name, n)
			}
			for _, c := range h.Planned() {
				h.Errorf("%s: a start has left %v", harm.name, c)
			}
			h.Settled(harm.name)
		}
	})
}

// countsElements reports whether the kernel tells how many elements a set has. Before 6.18 some did not.
func (h *host) countsElements() bool {
	h.Helper()
	conn, err := nfnetlink.Dial()
	fatal.If(h, err)
	defer conn.Close()
	_, known, err := conn.Count(layout.Dialects[h.Family].Table(), "frontends")
	fatal.If(h, err)
	return known
}

// Looks beside changes of ours count none of them as one of others, or the next that
// others make would give the number that is known, and be passed over.
func TestLookBesideCommitsCountsNone(t *testing.T) {
	netnstest.Enter(t)
	nft(t, foreign)
	h := newHost(t, policy.IPv4)
	web := backendtest.Web(h.Family, 1, 1)
	h.World.Put(web.Key, web)
	h.Sync(nil)
	h.looks()
	want := h.Backend.Foreign()
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
			if differs, err := h.Backend.Look(context.Background()); differs || err != nil {
				t.Errorf("look %d: %v, %v", n, differs, err)
			}
			if got := h.Backend.Foreign(); got != want {
				t.Errorf("look %d: %d commits of others, want %d", n, got, want)
			}
		}
	})()
	for i := range 500 {
		h.Sync(h.World.Put(web.Key, backendtest.Web(h.Family, 1, 1+i%3)))
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
