//go:build vm

package ipvs

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A repair is of what differs: it costs the same however much there is besides.
func TestRepairsTouchNothingElse(t *testing.T) {
	h := newHost(t, policy.IPv4)
	for i := range 50 {
		res := backendtest.Web(h.Family, 100+i, 10)
		h.World.Put(res.Key, res)
	}
	h.Put(h.service("web", 1, source.TCP, 0, 1))
	h.ipvsadm("-e -t " + h.vip(1).String() + " -r " + h.endpoint(0).String() + " -m -w 7")
	before := h.Backend.conn.Messages
	if !h.Look() {
		h.Error("not found")
	}
	h.Repair(&policy.Delta{})
	if n := h.Backend.conn.Messages - before; n != 1 {
		h.Errorf("%d messages to IPVS for one weight", n)
	}
	h.wantState()
}

// When a foreign server goes that is where a service wants its own, a look says so.
func TestLooksSeeForeignServersGo(t *testing.T) {
	everywhere(t, func(h *host) {
		at := netip.AddrPortFrom(h.World.Host.NodePortAddrs[0], 30080)
		h.ipvsadm("-A -t " + at.String() + " -s lc")
		res := h.nodePort("node", 30080, 0)
		h.World.Put(res.Key, res)
		h.unserved(nil, 1)
		if h.Look() {
			h.Error("something differs while it is there")
		}
		h.ipvsadm("-D -t " + at.String())
		if !h.Look() {
			h.Error("its end is not seen")
		}
		h.Repair(&policy.Delta{})
		h.wantState()
		h.settled()
	})
}

// A server that the kernel refused, as its scheduler was missing, is tried again
// after a while, and no look calls that a difference.
func TestRefusedServersAreTriedAgain(t *testing.T) {
	h := newHost(t, policy.IPv4)
	h.Sync(nil)
	const modprobe = "/proc/sys/kernel/modprobe"
	path, err := os.ReadFile(modprobe)
	h.Must(err)
	allow := func() { h.Must(os.WriteFile(modprobe, path, 0o644)) }
	h.Cleanup(allow)
	run(h, "sh", "-c", "rmmod ip_vs_lblcr 2>/dev/null; true")
	h.Must(os.WriteFile(modprobe, []byte("/bin/false"), 0o644))
	res := h.service("web", 1, source.TCP, 0)
	res.Pools[0].Scheduler = "lblcr"
	h.unserved(h.World.Put(res.Key, res), 1)
	if h.Look() {
		h.Error("something differs")
	}
	if due := time.Until(h.Backend.NextDue()); due <= 0 || due > retryRefused {
		h.Fatalf("it is due in %v", due)
	}
	h.unserved(&policy.Delta{}, 1)
	allow()
	h.Backend.retryDue = time.Now()
	h.Sync(&policy.Delta{})
	h.wantState()
	h.settled()
	if due := h.Backend.NextDue(); !due.IsZero() {
		h.Errorf("still due: %v", due)
	}
}

// Looks beside Syncs find nothing, and hold none of them up: a change waits for
// no look, where it waited for a resync.
func TestChangesDoNotWaitForALook(t *testing.T) {
	const services, changes, atLeast = 300, 20, 4
	h := newHost(t, policy.IPv4)
	h.Sync(nil)
	for i := range services {
		res := backendtest.Web(h.Family, i, 10)
		h.World.Put(res.Key, res)
	}
	h.Sync(nil)
	change := func(i int) time.Duration {
		res := backendtest.Web(h.Family, i, 10)
		res.Pools[0].Targets[0].Weight = 2
		start := time.Now()
		h.Put(res)
		return time.Since(start)
	}
	var quiet, beside, looks []time.Duration
	for i := range changes {
		quiet = append(quiet, change(i))
	}
	resync := h.took()

	ctx, cancel := context.WithCancel(t.Context())
	var looked atomic.Bool
	var wg sync.WaitGroup
	wg.Go(netnstest.Here(t, func() {
		for ctx.Err() == nil {
			start := time.Now()
			differs, err := h.Backend.Look(ctx)
			if ctx.Err() != nil {
				return
			}
			if differs || err != nil {
				t.Errorf("a look says %v, %v; found %v", differs, err, h.Backend.mirror.found)
			}
			looks = append(looks, time.Since(start))
			looked.Store(true)
		}
	}))
	for i := 0; i < changes || !looked.Load() && i < services; i++ { // with one processor a look takes its time
		beside = append(beside, change((changes+i)%services))
		time.Sleep(resync / changes)
	}
	cancel()
	wg.Wait()
	for _, d := range [][]time.Duration{quiet, beside, looks} {
		slices.Sort(d)
	}
	worst := beside[len(beside)-1]
	t.Logf("a resync of %d services takes %v, a change %v, %v at most; beside %d looks %v, %v at most; looks take %v",
		services, resync, quiet[changes/2], quiet[changes-1], len(looks), beside[len(beside)/2], worst, looks)
	if beside[len(beside)/2]*atLeast > resync {
		t.Errorf("half the changes take %v and more beside looks, of which a resync is not %d times as long: %v", beside[len(beside)/2], atLeast, resync)
	}
	if len(looks) == 0 {
		t.Error("no look came to its end")
	}
	h.wantState()
	h.settled()
}

// All servers are away for a moment only after a flush, whatever the time of the
// next look. A change of our own is none of others.
func TestAFlushIsNoticed(t *testing.T) {
	h := newHost(t, policy.IPv4)
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan proxier.ForeignChange, 100)
	var watching sync.WaitGroup
	watching.Go(netnstest.Here(t, func() {
		h.Backend.Watch(ctx, func(e proxier.ForeignChange) { heard <- e })
	}))
	defer watching.Wait()
	defer cancel()
	web := h.service("web", 1, source.TCP, 0)
	h.Put(web)
	h.Put(h.service("dns", 2, source.UDP, 1))
	h.Remove(web)
	h.Put(web)
	select {
	case e := <-heard:
		t.Fatalf("nobody has changed anything, and we hear %+v", e)
	case <-time.After(8 * canaryInterval):
	}
	h.ipvsadm("-C")
	select {
	case <-heard:
	case <-time.After(time.Minute):
		t.Fatal("a flush is not noticed")
	}
	h.Sync(&policy.Delta{})
	h.wantState()
	h.settled()
}
