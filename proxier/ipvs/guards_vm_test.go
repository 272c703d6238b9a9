//go:build vm

package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// What leaves stays restricted and masqueraded until IPVS balances nothing to it: around each step of a delta
// and of a resync, also if one is told to end in between, or cannot write sets. After that sets have none of it.
func TestGuardsOutliveTheirServers(t *testing.T) {
	everywhere(t, func(h *host) {
		g := newGuarded(h)
		masquerades := func() { g.destroy("SVCP-MASQ-ALL") }
		for _, tt := range []struct {
			what          string
			delta         bool
			before        func()
			half, quieted func() // called once when so much is quiet
			fails         bool
		}{
			{what: "a delta", delta: true},
			{what: "a resync"},
			{what: "a delta that ends", delta: true, half: func() { g.end() }, fails: true},
			{what: "a resync that ends", half: func() { g.end() }, fails: true},
			{what: "a delta that is not written", delta: true, before: func() { g.destroy("SVCP-SERVED") }},
			{what: "a delta whose end is not written", delta: true, quieted: masquerades},
			{what: "a resync whose end is not written", quieted: masquerades, fails: true},
		} {
			g.what = tt.what
			h.Sync(h.World.PutAll(g.services(false)))
			delta := h.World.PutAll(g.services(true))
			if !tt.delta {
				delta = nil
			}
			if tt.before != nil {
				tt.before()
			}
			if err := g.sync(delta, tt.half, tt.quieted); (err != nil) != tt.fails {
				h.Errorf("%s: error %v, want one: %v", tt.what, err, tt.fails)
			}
			if tt.fails {
				h.Must(g.sync(nil, nil, nil))
			}
			g.wantNone()
		}
	})
}

// What comes is restricted and masqueraded before IPVS balances anything to it, whatever the kernel held before.
func TestGuardsComeBeforeTheirServers(t *testing.T) {
	everywhere(t, func(h *host) {
		g := newGuarded(h)
		for _, tt := range []struct {
			what  string
			leave func() // what had come before
			delta bool
		}{
			{"a first sync", func() {}, false},
			{"a delta", func() { h.Sync(h.World.PutAll(g.services(true))) }, true},
			{"a resync", func() { h.Sync(h.World.PutAll(g.services(true))) }, false},
			{"a restart", func() { h.Sync(h.World.PutAll(g.services(true))); h.Restart() }, false},
			{"a sync after a cleanup", func() { h.Must(h.Backend.Cleanup(h.Context())) }, false},
		} {
			g.what = tt.what
			tt.leave()
			delta := h.World.PutAll(g.services(false))
			if !tt.delta {
				delta = nil
			}
			h.Must(g.sync(delta, nil, nil))
			if quiet := g.look(); quiet > 0 {
				h.Errorf("%s: %d are not balanced", tt.what, quiet)
			}
			h.Settled(tt.what)
		}
	})
}

// A guardedHost has services that are for some only and masquerade everybody, of which all leave except for one, which
// loses an endpoint and then masquerades nobody.
type guardedHost struct {
	*host
	conn *lvs.Conn
	sets *ipset.Conn
	what string // is done
	end  func() // of the Sync
}

func newGuarded(h *host) *guardedHost {
	g := &guardedHost{host: h}
	var err error
	g.conn, err = lvs.Dial(h.Context())
	h.Must(err)
	h.Cleanup(func() { g.conn.Close() })
	g.sets, err = ipset.Dial()
	h.Must(err)
	h.Cleanup(func() { g.sets.Close() })
	return g
}

// guardedPorts are the node ports of the services; the last one stays.
var guardedPorts = []struct {
	port  uint16
	proto source.Protocol
}{{30080, source.TCP}, {30081, source.TCP}, {30082, source.UDP}, {30083, source.TCP}}

// services returns the services before and after the change.
func (g *guardedHost) services(after bool) map[source.Key]*policy.Resolved {
	all := map[source.Key]*policy.Resolved{}
	for i, p := range guardedPorts {
		stays := i == len(guardedPorts)-1
		res := g.service(string(rune('a'+i)), p.port, p.proto, after && stays)
		if all[res.Key] = res; after && !stays {
			all[res.Key] = nil
		}
	}
	return all
}

// service returns one of two endpoints, or of the first, which sees the addresses of clients.
func (g *guardedHost) service(name string, port uint16, proto source.Protocol, local bool) *policy.Resolved {
	s := backendtest.Service{Name: name, Protocol: proto}
	for i := range 2 {
		s.Targets = append(s.Targets, policy.NewTarget(g.endpoint(i), 1))
	}
	s.Local = s.Targets[:1]
	cluster, own := s.Pools()
	f := &policy.Frontend{
		Key: policy.FrontendKey{Addr: g.Family.Unspecified(), Port: port, Kind: policy.NodePort}, Restricted: true,
		SourceRanges: []netip.Prefix{netip.PrefixFrom(g.endpoint(3).Addr(), g.Family.Bits())},
		FromLocal:    backendtest.Route(cluster, policy.Everyone, policy.Reject),
	}
	if f.Outside = f.FromLocal; local {
		f.Outside = backendtest.Route(own, policy.NoOne, policy.Drop)
	}
	return s.Resolve(f)
}

// sync syncs, and looks whenever that asks its context something. It calls half and quieted when some of what
// leaves is balanced no more, and all.
func (g *guardedHost) sync(delta *policy.Delta, half, quieted func()) error {
	g.Helper()
	ctx, cancel := context.WithCancel(g.Context())
	defer cancel()
	g.end = cancel
	looks := 0
	err := g.Backend.Sync(&asked{Context: ctx, thread: syscall.Gettid(), do: func() {
		looks++
		quiet := g.look()
		if half != nil && quiet > 0 {
			half()
			half = nil
		}
		if quieted != nil && quiet == g.leaving() {
			quieted()
			quieted = nil
		}
	}}, g.World.State, delta)
	if looks < 3 {
		g.Errorf("%s: only %d looks", g.what, looks)
	}
	g.look()
	return err
}

// An asked context calls do whenever the thread asks it something, except for do itself.
type asked struct {
	context.Context
	thread int
	do     func()
	doing  bool
}

func (a *asked) Err() error {
	a.note()
	return a.Context.Err()
}

func (a *asked) Value(key any) any {
	a.note()
	return a.Context.Value(key)
}

func (a *asked) note() {
	if syscall.Gettid() != a.thread || a.doing {
		return
	}
	a.doing = true
	a.do()
	a.doing = false
}

// leaving returns how many servers leave, or an endpoint of them.
func (g *guardedHost) leaving() int { return len(guardedPorts) * len(g.World.Host.NodePortAddrs) }

// look fails the test if something that leaves is balanced without its guards. It returns how many are not.
func (g *guardedHost) look() (quiet int) {
	g.Helper()
	firewalled, masqueraded := g.members("SVCP-FIREWALLED"), g.members("SVCP-MASQ-ALL")
	for i, p := range guardedPorts {
		leaves := []netip.AddrPort{g.endpoint(0), g.endpoint(1)}
		if i == len(guardedPorts)-1 {
			leaves = leaves[1:]
		}
		for _, a := range g.World.Host.NodePortAddrs {
			key := lvs.Key{Addr: a, Protocol: uint8(p.proto), Port: p.port}
			e := entryOf(key)
			switch {
			case !g.balances(key, leaves):
				quiet++
			case !firewalled[e] || !masqueraded[e]:
				g.Fatalf("%s: %v is balanced; restricted %v, masqueraded %v", g.what, key, firewalled[e], masqueraded[e])
			}
		}
	}
	return quiet
}

// balances reports whether one of these endpoints of a server gets new connections.
func (g *guardedHost) balances(key lvs.Key, endpoints []netip.AddrPort) bool {
	g.Helper()
	there, err := g.conn.Has(g.Context(), key)
	g.Must(err)
	if !there {
		return false
	}
	dests, err := g.conn.Destinations(g.Context(), key)
	g.Must(err)
	return slices.ContainsFunc(dests, func(d lvs.Destination) bool { return d.Weight > 0 && slices.Contains(endpoints, d.AddrPort) })
}

// members returns the frontends in a set, which may be missing.
func (g *guardedHost) members(set string) map[ipset.Entry]bool {
	g.Helper()
	l, err := g.sets.List(g.Context(), g.set(set))
	if errors.Is(err, ipset.ErrNotExist) {
		return nil
	}
	g.Must(err)
	out := map[ipset.Entry]bool{}
	for _, e := range l.Entries {
		e.Net = netip.Prefix{}
		out[e] = true
	}
	return out
}

// wantNone fails unless all that was to leave has left, from sets too, and looks find nothing.
func (g *guardedHost) wantNone() {
	g.Helper()
	if quiet := g.look(); quiet != g.leaving() {
		g.Errorf("%s: only %d of %d are quiet", g.what, quiet, g.leaving())
	}
	addrs := len(g.World.Host.NodePortAddrs)
	for set, want := range map[string]int{"SVCP-FIREWALLED": addrs, "SVCP-RANGES": addrs, "SVCP-MASQ-ALL": 0} {
		if got := g.members(set); len(got) != want {
			g.Errorf("%s: %s has %v, want %d", g.what, set, got, want)
		}
	}
	if g.Look() {
		g.Errorf("%s: the kernel is not what is known of it", g.what)
	}
}

// destroy destroys a set, with the rules of the chains that use it.
func (g *guardedHost) destroy(set string) {
	g.Helper()
	tool := g.tool()
	run(g, tool, "-t", "nat", "-F", "SVCP-MASQUERADE")
	run(g, tool, "-t", "filter", "-F", "SVCP-FILTER")
	destroyed := func() bool { return exec.Command("ipset", "destroy", g.set(set)).Run() == nil } // rules are freed later
	pace.Until(g, set+" is destroyed", destroyed)
}
