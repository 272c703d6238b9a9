package backendtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Run tests a backend. everywhere calls a test on a Host of its own for each
// family, and for whatever else the backend comes in.
func Run[B Backend](t *testing.T, everywhere func(*testing.T, func(*Host[B]))) {
	for _, tt := range []struct {
		name string
		test func(*Host[B])
	}{
		{"settles", settles[B]},
		{"plan", plans[B]},
		{"transitions", transitions[B]},
		{"deltas", deltas[B]},
		{"pieces", pieces[B]},
		{"node", nodeChanges[B]},
		{"foreign objects", foreignObjects[B]},
		{"looks beside syncs", looksBesideSyncs[B]},
		{"ended context", endedContext[B]},
		{"cleanup", cleanup[B]},
		{"packets", packets[B]},
		{"damages", damages[B]},
	} {
		t.Run(tt.name, func(t *testing.T) { everywhere(t, tt.test) })
	}
}

// A second Sync changes nothing, not even after a restart.
func settles[B Backend](h *Host[B]) {
	h.Fill(Short(Seeded(1)), 15)
	h.Sync(nil)
	h.Settled("first sync")
	before := h.Dump()
	h.Sync(nil)
	h.same("second sync", before)
	h.Restart()
	h.Settled("restart")
	h.Sync(nil)
	h.same("sync after a restart", before)
}

// same fails the test unless the kernel holds what it held before.
func (h *Host[B]) same(after, before string) {
	h.Helper()
	if now := h.Dump(); now != before {
		h.Fatalf("%s (-before +after):\n%s", after, cmp.Diff(strings.Split(before, "\n"), strings.Split(now, "\n")))
	}
}

// Plan changes nothing, and says something if, and only if, a full Sync does change something.
func plans[B Backend](h *Host[B]) {
	pick := Short(Seeded(2))
	h.Fill(pick, 6)
	for step := range h.few(6) {
		before := h.Dump()
		planned := h.Planned()
		h.same("plan", before)
		h.Sync(nil)
		if changed := h.Dump() != before; changed != (len(planned) > 0) {
			h.Errorf("step %d: planned %v; something has changed: %v", step, planned, changed)
		}
		if step%3 < 2 {
			h.Change(pick, 8)
		}
	}
}

// Deltas, one after the other, lead to what a full Sync makes where nothing is.
// Looks find nothing in between, and a delta does not get in the way of a repair.
func deltas[B Backend](h *Host[B]) {
	pick := Seeded(3)
	h.Fill(pick, 12)
	h.Sync(nil)
	for step := range h.few(25) {
		h.Sync(h.Change(pick, 16))
		h.Settled(fmt.Sprintf("delta %d", step))
		if h.Look() {
			h.Fatalf("delta %d: a look finds something", step)
		}
	}
	after := h.Dump()
	h.Must(h.Backend.Cleanup(h.Context()))
	h.Sync(nil)
	h.same("full sync instead of deltas", after)
}

// What the node and the settings say is followed like services are.
func nodeChanges[B Backend](h *Host[B]) {
	h.Fill(Short(Seeded(4)), 6)
	h.Sync(nil)
	first, before := h.World.Host, h.Dump()
	addr, wide := Addr(h.Family, "external", 77), netip.PrefixFrom(h.Family.Unspecified(), 0)
	for _, change := range []struct {
		name string
		do   func(*policy.Host)
	}{
		{"mark", func(n *policy.Host) { n.MarkBit = 31 }},
		{"address for node ports", func(n *policy.Host) { n.NodePortAddrs = append(slices.Clip(n.NodePortAddrs), addr) }},
		{"no addresses for node ports", func(n *policy.Host) { n.NodePortAddrs = nil }},
		{"local interfaces", func(n *policy.Host) { n.LocalInterfaces = []string{"*", "a@b.c-d_e", "abcdefghijklmn*"} }},
		{"local addresses", func(n *policy.Host) { n.LocalCIDRs = append(slices.Clip(n.LocalCIDRs), wide) }},
		{"nothing local", func(n *policy.Host) { n.LocalCIDRs, n.LocalInterfaces = nil, nil }},
		{"addresses of services", func(n *policy.Host) { n.ServiceCIDRs = append(slices.Clip(n.ServiceCIDRs), wide) }},
		{"no addresses of services", func(n *policy.Host) { n.ServiceCIDRs, n.ServiceCIDRExempt = nil, nil }},
	} {
		change.do(&h.World.Host)
		if len(h.Planned()) == 0 {
			h.Errorf("%s: nothing planned", change.name)
		}
		h.Sync(nil)
		h.Settled(change.name)
		h.World.Host = first
	}
	h.Sync(nil)
	h.same("first node again", before)
}

// What other programs break is planned for, found by a look, and repaired: by a
// full Sync, by one of no change, and by one of any other change.
func damages[B Backend](h *Host[B]) {
	if h.Look() {
		h.Error("a look before the first sync finds something")
	}
	for _, res := range h.Fixed {
		h.World.Put(res.Key, res)
	}
	h.Fill(Short(Seeded(5)), 4)
	h.Sync(nil)
	before, web := h.Dump(), Web(h.Family, 77, 2)
	repairs := []func(){
		func() { h.Sync(nil) },
		func() { h.Repair(&policy.Delta{}) },
		func() {
			h.Repair(h.World.Put(web.Key, web))
			h.Settled("a repair with a change")
			h.Remove(web)
		},
	}
	for i, d := range h.Damages {
		for _, repair := range h.ways(i, repairs) {
			d.Do()
			if len(h.Planned()) == 0 {
				h.Errorf("%s: nothing planned", d.Name)
			}
			if !h.Look() {
				h.Errorf("%s: not found by a look", d.Name)
			}
			repair()
			h.Settled(d.Name)
			h.same(d.Name, before)
			if h.Look() {
				h.Errorf("%s: found again after the repair", d.Name)
			}
		}
	}
}

// ways returns of three ways to repair those that damage i is for: two, or one where they take
// seconds, and of some all.
func (h *Host[B]) ways(i int, repairs []func()) []func() {
	switch {
	case h.Slow:
		return repairs[i%3 : i%3+1]
	case i%5 == 0:
		return repairs
	}
	return repairs[:2]
}

// few returns how many steps to take of some that are alike.
func (h *Host[B]) few(steps int) int {
	if h.Slow {
		return steps * 2 / 5
	}
	return steps
}

// What other programs have concerns nobody and stays as it is.
func foreignObjects[B Backend](h *Host[B]) {
	h.Fill(Seeded(6), 5)
	h.Sync(nil)
	h.Foreign()
	before := h.Dump()
	if h.Look() {
		h.Error("a look finds something")
	}
	h.Settled("a foreign object")
	h.Sync(&policy.Delta{})
	h.Sync(nil)
	h.same("syncs", before)
}

// Looks beside Syncs take nothing of ours for damage, and see that of others.
func looksBesideSyncs[B Backend](h *Host[B]) {
	pick := Seeded(7)
	h.Fill(pick, 15)
	h.Sync(nil)
	rechecker, _ := any(h.Backend).(interface{ Recheck() })
	var over atomic.Bool
	var looks atomic.Int32
	var wg sync.WaitGroup
	wg.Go(netnstest.Here(h, func() {
		for ; !over.Load(); looks.Add(1) {
			if rechecker != nil { // or it would not read
				rechecker.Recheck()
			}
			if differs, err := h.Backend.Look(context.Background()); err != nil || differs {
				h.Errorf("look %d: found something: %v, error %v", looks.Load(), differs, err)
				return
			}
		}
	}))
	for step := 1; !h.Failed() && step < 1000 && (step <= h.few(40) || looks.Load() < 4); step++ {
		delta := h.Change(pick, 20)
		if step%10 == 0 {
			delta = nil
			h.Planned() // beside looks too
		}
		h.Sync(delta)
	}
	over.Store(true)
	wg.Wait()
	if n := looks.Load(); n < 3 {
		h.Errorf("only %d looks", n)
	}
	h.Settled("all changes")
}

// A Sync whose context has ended fails, and the next one does what was left. Such
// a look fails, or it says what is true.
func endedContext[B Backend](h *Host[B]) {
	h.Fill(Seeded(8), 8)
	ended, end := context.WithCancel(h.Context())
	end()
	for _, when := range []string{"first sync", "second sync"} {
		if err := h.Backend.Sync(ended, h.World.State, nil); err == nil {
			h.Errorf("%s succeeds", when)
		}
		h.Sync(nil)
		h.Settled(when)
		h.Damages[0].Do()
		if differs, err := h.Backend.Look(ended); err == nil && !differs {
			h.Errorf("look after the %s finds nothing although its context has ended", when)
		}
		if !h.Look() {
			h.Errorf("look after the %s finds nothing", when)
		}
	}
	h.Sync(nil)
	h.Settled("repair")
}

// Cleanup leaves what was there before, from any process and however often.
func cleanup[B Backend](h *Host[B]) {
	before := h.Dump()
	h.Must(h.Backend.Cleanup(h.Context()))
	h.same("cleanup of nothing", before)
	h.Fill(Seeded(9), 15)
	for _, restart := range []bool{false, true} {
		h.Sync(nil)
		h.Settled("sync")
		if restart {
			h.Restart()
		}
		for range 2 { // the second time there is nothing
			h.Must(h.Backend.Cleanup(h.Context()))
			h.same("cleanup", before)
		}
	}
}

// Connections reach the endpoints that are there, new ones no others; without
// endpoints they are refused.
func packets[B Backend](h *Host[B]) {
	h.World.Host.LocalCIDRs, h.World.Host.LocalInterfaces = nil, nil
	targets := Targets(h.Family, 200, 2)
	h.network(targets)
	vip := netip.AddrPortFrom(Addr(h.Family, "vip", 99), 80)
	s := Service{Name: "web", Protocol: source.TCP}
	for _, tt := range []struct {
		name    string
		targets []policy.Target
	}{{"two endpoints", targets}, {"the second", targets[1:]}, {"none", nil}, {"the first", targets[:1]}, {"none again", nil}} {
		s.Targets = tt.targets
		pool, _ := s.Pools()
		route := Route(pool, policy.NoOne, policy.Reject)
		h.Put(s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Addr: vip.Addr(), Port: vip.Port()}, Outside: route, FromLocal: route}))
		h.answered(tt.name, vip, tt.targets)
	}
}

// network gives the namespace addresses of endpoints, which answer, and a way to services.
func (h *Host[B]) network(targets []policy.Target) {
	h.Helper()
	ip := map[policy.Family]string{policy.IPv4: "-4", policy.IPv6: "-6"}[h.Family]
	Command(h, "ip", ip, "link", "set", "lo", "up")
	var servers echotest.Servers
	h.Cleanup(servers.Close)
	for _, t := range targets {
		Command(h, "ip", ip, "addr", "add", t.Addr().String(), "dev", "lo", "nodad")
		h.Must(servers.Serve(t.String(), t.AddrPort()))
	}
	Command(h, "ip", ip, "route", "add", "default", "dev", "lo", "src", targets[0].Addr().String())
}

// answered fails the test unless just these endpoints answer at an address.
func (h *Host[B]) answered(name string, to netip.AddrPort, by []policy.Target) {
	h.Helper()
	want, got := map[string]bool{}, map[string]bool{}
	for _, t := range by {
		want[t.String()] = true
	}
	for n := 0; n < 10 || n < 200 && len(got) < len(want); n++ {
		conn, err := echotest.Dial(&net.Dialer{Timeout: 10 * time.Second}, to.String())
		if err == nil {
			got[conn.Server] = true
			conn.SetLinger(0) // or IPVS would remember it for two minutes
			conn.Close()
		}
		if refused := errors.Is(err, syscall.ECONNREFUSED); refused != (len(by) == 0) || err != nil && !refused {
			h.Fatalf("%s: connection %d: %v", name, n, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		h.Errorf("%s: who answers (-want +got):\n%s", name, diff)
	}
}
