//go:build vm

package ipvs

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"svcproxy/netutil/netnstest"
	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
	"svcproxy/source"
)

// look returns what a look says.
func (h *host) look() bool {
	h.Helper()
	differs, err := h.backend.Look(h.Context())
	h.must(err)
	return differs
}

// repair syncs without a change until all that looks have found is repaired.
func (h *host) repair() {
	h.Helper()
	for range 10 {
		h.must(h.backend.Sync(h.Context(), h.world.State, &proxier.Delta{}))
		if due := h.backend.NextDue(); due.IsZero() || due.After(time.Now()) {
			return
		}
	}
	h.Fatal("repairs never end")
}

// A look sees what others damage, and the next Sync repairs it without looking at
// everything.
func TestLooksFindDamages(t *testing.T) {
	everywhere(t, func(h *host) {
		h.opts.TCPTimeout = 1000 * time.Second
		h.restart()
		if h.look() {
			h.Error("something differs before the first Sync")
		}
		foreign := h.foreign()
		h.put(h.service("web", 1, source.TCP, 0, 1))
		h.put(h.service("dns", 2, source.UDP, 0))
		h.put(h.nodePort("node", 30080, 2))
		web, at := serverWords(h.vip(1)), h.endpoint(0).String()
		damages := []struct{ what, do string }{
			{"nothing", "true"},
			{"all servers removed", "ipvsadm -C"},
			{"device removed", "ip link del svcproxy0"},
			{"servers and device removed", "ipvsadm -C; ip link del svcproxy0"},
			{"destination removed", "ipvsadm -d -t " + web + " -r " + at},
			{"destination added", "ipvsadm -a -u " + serverWords(h.vip(2)) + " -r " + h.endpoint(3).String() + " -m -w 1"},
			{"weight changed", "ipvsadm -e -t " + web + " -r " + at + " -m -w 7"},
			{"threshold set", "ipvsadm -e -t " + web + " -r " + at + " -m -w 1 -x 5"},
			{"scheduler changed", "ipvsadm -E -t " + web + " -s rr"},
			{"address removed", "ip addr del " + h.vip(1).Addr().String() + " dev svcproxy0"},
			{"address added", "ip addr add " + h.vip(9).Addr().String() + " dev svcproxy0"},
			{"chains flushed", h.tables()},
			{"member of a set removed", "s=$(ipset list -n | grep ^SVCP-SERVED); for n in $s; do ipset flush $n; done"},
			{"time-out changed", "ipvsadm --set 900 120 300"},
			{"a foreign server", "ipvsadm -A -t " + serverWords(netip.AddrPortFrom(h.endpoint(2).Addr(), 81)) + " -s wrr"},
		}
		for _, d := range damages {
			h.run("sh", "-ec", d.do)
			if slices.Contains([]string{"all servers removed", "servers and device removed"}, d.what) {
				foreign = h.foreign()
			}
			if d.what == "a foreign server" {
				foreign = append(foreign, "-A -t "+serverWords(netip.AddrPortFrom(h.endpoint(2).Addr(), 81))+" -s wrr")
			}
			if got, want := h.look(), d.what != "nothing" && d.what != "a foreign server"; got != want {
				h.Errorf("something differs: %v, want %v", got, want)
			}
			h.repair()
			h.wantState(foreign...)
			h.settled()
			if h.look() {
				h.Error("something differs after the repair")
			}
			if h.Failed() {
				h.Fatalf("after: %s", d.what)
			}
		}
	})
}

// A repair is of what differs: it costs the same however much there is besides.
func TestRepairsTouchNothingElse(t *testing.T) {
	h := newHost(t, proxier.IPv4)
	for i := range 50 {
		res := filtertest.Web(h.fam, 100+i, 10)
		h.world.Put(res.Key, res)
	}
	h.put(h.service("web", 1, source.TCP, 0, 1))
	h.ipvsadm("-e -t " + h.vip(1).String() + " -r " + h.endpoint(0).String() + " -m -w 7")
	before := h.backend.conn.Messages
	if !h.look() {
		h.Error("not found")
	}
	h.repair()
	if n := h.backend.conn.Messages - before; n != 1 {
		h.Errorf("%d messages to IPVS for one weight", n)
	}
	h.wantState()
}

// When a foreign server goes that is where a service wants its own, a look says so.
func TestLooksSeeForeignServersGo(t *testing.T) {
	everywhere(t, func(h *host) {
		at := netip.AddrPortFrom(h.world.Host.NodePortAddrs[0], 30080)
		h.ipvsadm("-A -t " + at.String() + " -s lc")
		res := h.nodePort("node", 30080, 0)
		h.world.Put(res.Key, res)
		h.unserved(nil, 1)
		if h.look() {
			h.Error("something differs while it is there")
		}
		h.ipvsadm("-D -t " + at.String())
		if !h.look() {
			h.Error("its end is not seen")
		}
		h.repair()
		h.wantState()
		h.settled()
	})
}

// A server that the kernel refused, as its scheduler was missing, is tried again
// after a while, and no look calls that a difference.
func TestRefusedServersAreTriedAgain(t *testing.T) {
	h := newHost(t, proxier.IPv4)
	h.mend()
	const modprobe = "/proc/sys/kernel/modprobe"
	path, err := os.ReadFile(modprobe)
	h.must(err)
	allow := func() { h.must(os.WriteFile(modprobe, path, 0o644)) }
	h.Cleanup(allow)
	h.run("sh", "-c", "rmmod ip_vs_lblcr 2>/dev/null; true")
	h.must(os.WriteFile(modprobe, []byte("/bin/false"), 0o644))
	res := h.service("web", 1, source.TCP, 0)
	res.Pools[0].Scheduler = "lblcr"
	h.unserved(h.world.Put(res.Key, res), 1)
	if h.look() {
		h.Error("something differs")
	}
	if due := time.Until(h.backend.NextDue()); due <= 0 || due > retryRefused {
		h.Fatalf("it is due in %v", due)
	}
	h.unserved(&proxier.Delta{}, 1)
	allow()
	h.backend.lacking.due = time.Now()
	h.must(h.backend.Sync(h.Context(), h.world.State, &proxier.Delta{}))
	h.wantState()
	h.settled()
	if due := h.backend.NextDue(); !due.IsZero() {
		h.Errorf("still due: %v", due)
	}
}

// Looks beside Syncs find nothing, and hold none of them up: a change waits for
// no look, where it waited for a resync.
func TestChangesDoNotWaitForALook(t *testing.T) {
	const services, changes, atLeast = 300, 20, 4
	h := newHost(t, proxier.IPv4)
	h.mend()
	for i := range services {
		res := filtertest.Web(h.fam, i, 10)
		h.world.Put(res.Key, res)
	}
	h.mend()
	change := func(i int) time.Duration {
		res := filtertest.Web(h.fam, i, 10)
		res.Pools[0].Targets[0].Weight = 2
		start := time.Now()
		h.put(res)
		return time.Since(start)
	}
	var quiet, beside, looks []time.Duration
	for i := range changes {
		quiet = append(quiet, change(i))
	}
	resync := h.took()

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(netnstest.Here(t, func() {
		for ctx.Err() == nil {
			start := time.Now()
			differs, err := h.backend.Look(ctx)
			if ctx.Err() != nil {
				return
			}
			if differs || err != nil {
				t.Errorf("a look says %v, %v; found %v", differs, err, h.backend.mirror.found)
			}
			looks = append(looks, time.Since(start))
		}
	}))
	for i := range changes {
		beside = append(beside, change(changes+i))
		time.Sleep(resync / changes)
	}
	cancel()
	wg.Wait()
	for _, d := range [][]time.Duration{quiet, beside, looks} {
		slices.Sort(d)
	}
	worst := beside[len(beside)-1]
	t.Logf("a resync of %d services takes %v, a change %v, %v at most; beside %d looks %v, %v at most; looks take %v",
		services, resync, quiet[changes/2], quiet[changes-1], len(looks), beside[changes/2], worst, looks)
	if beside[changes/2]*atLeast > resync {
		t.Errorf("half the changes take %v and more beside looks, of which a resync is not %d times as long: %v", beside[changes/2], atLeast, resync)
	}
	h.wantState()
	h.settled()
}

// All servers are away for a moment only after a flush, whatever the time of the
// next look. A change of our own is none of others.
func TestAFlushIsNoticed(t *testing.T) {
	h := newHost(t, proxier.IPv4)
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan proxier.ForeignChange, 100)
	var watching sync.WaitGroup
	watching.Go(netnstest.Here(t, func() {
		h.backend.Watch(ctx, func(e proxier.ForeignChange) { heard <- e })
	}))
	defer watching.Wait()
	defer cancel()
	web := h.service("web", 1, source.TCP, 0)
	h.put(web)
	h.put(h.service("dns", 2, source.UDP, 1))
	h.remove(web)
	h.put(web)
	select {
	case e := <-heard:
		t.Fatalf("nobody has changed anything, and we hear %+v", e)
	case <-time.After(8 * glanceInterval):
	}
	h.ipvsadm("-C")
	select {
	case <-heard:
	case <-time.After(time.Minute):
		t.Fatal("a flush is not noticed")
	}
	h.must(h.backend.Sync(t.Context(), h.world.State, &proxier.Delta{}))
	h.wantState()
	h.settled()
}
