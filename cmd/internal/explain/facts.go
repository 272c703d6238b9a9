package explain

import (
	"context"
	"fmt"
	"net/netip"

	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/ruleset"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Host tells what explain must know of the kernel. Its methods read only.
type Host interface {
	// Route returns the way of a packet with a mark to an address, or why there is none.
	Route(to netip.Addr, mark uint32) (Route, error)
	// Sysctl returns a setting by its path below /proc/sys.
	Sysctl(name string) (string, error)
	// Interfaces returns the names of those that are up, without loopback.
	Interfaces() ([]string, error)
	// Link returns the subnets of this host on an interface whose hosts exchange packets that no rule of this host
	// meets. Links to one host have none, and bridges none of a family whose frames pass the rules of IP (br_netfilter).
	Link(name string) ([]netip.Prefix, error)
	// Rules returns the rules of other programs.
	Rules(ctx context.Context, fam policy.Family) *ruleset.Ruleset
	// Objects returns what the mode should have for a State with one frontend.
	Objects(ctx context.Context, st *policy.State) ([]proxier.Object, error)
	// Connections returns some that connection tracking knows of the packet's kind.
	Connections(ctx context.Context, q Question) ([]conntrack.Connection, error)
	// Remembered returns the endpoint that session affinity keeps for a client; nil: none is known.
	Remembered(ctx context.Context, p *policy.Pool, client netip.Addr) (*proxier.Remembered, error)
}

// A Route is a way.
type Route struct {
	Interface string
	Index     uint32
	Via       netip.Addr // not valid: directly
	Source    netip.Addr // that this host would take
	Local     bool       // the address is one of this host
	err       error      // why there is none
}

// shared returns the subnet that two addresses have in common; the zero Prefix: none.
func shared(link []netip.Prefix, a, b netip.Addr) netip.Prefix {
	for _, p := range link {
		if p.Contains(a) && p.Contains(b) {
			return p.Masked()
		}
	}
	return netip.Prefix{}
}

// facts are what a decision meets on this host.
type facts struct {
	back     Route          // to the client
	link     []netip.Prefix // of back, unless the client is behind a router
	forth    Route          // of what this host sends: to the address that was asked for
	targets  map[netip.AddrPort]Route
	looked   int // of how many endpoints, the first ones, the way was looked at
	sysctls  map[string]string
	strict   []string // interfaces other than the packet's whose rp_filter is strict
	rules    *ruleset.Ruleset
	objects  []proxier.Object
	kept     *proxier.Remembered // by the packet's source; nil: none
	flows    []conntrack.Connection
	in       Route     // the interface that the packet comes in by
	notKnown []string  // what says more, and keeps nothing from working
	doubts   []Problem // what could not be read, and may keep it from working
}

// maxRules is how many rules of others are read at most.
const maxRules = 5000

func findRoute(h Host, to netip.Addr, mark uint32) Route {
	r, err := h.Route(to, mark)
	r.err = err
	return r
}

// gather asks the host what a decision depends on.
func gather(ctx context.Context, h Host, d *decision, back Route) *facts {
	f := &facts{back: back, targets: map[netip.AddrPort]Route{}, sysctls: map[string]string{}}
	f.in = Route{Interface: d.sender.Interface}
	if back.err == nil && back.Interface == f.in.Interface {
		f.in.Index = back.Index
	}
	f.readSysctls(h, d)
	f.rules = h.Rules(ctx, d.family)
	f.rules.Sort()
	for _, u := range f.rules.Unread {
		f.doubt(hostStep, "it is stopped by what could not be read: "+u)
	}
	if f.rules.Stopped {
		f.doubt(hostStep, fmt.Sprintf("it is stopped by rules of other programs beyond the first %d, of which there are more", maxRules))
	}
	if d.sender.Host {
		f.forth = findRoute(h, d.question.Dest, 0)
	}
	if d.frontend == nil {
		return f
	}
	var err error
	if f.objects, err = h.Objects(ctx, policy.OnlyFor(d.world.Node, d.family, d.use.resolved, d.frontend)); err != nil {
		f.doubt(kernelStep, "our objects in the kernel, which could not be read, are missing: "+err.Error())
	}
	f.gatherTargets(ctx, h, d)
	if !d.sender.Host && f.back.err == nil && !f.back.Via.IsValid() && !f.back.Local { // an endpoint may answer on the link
		if f.link, err = h.Link(f.back.Interface); err != nil {
			f.unknown("whether endpoints answer the client without this host: " + err.Error())
		}
	}
	return f
}

func (f *facts) unknown(what string) { f.notKnown = append(f.notKnown, what) }

// doubt notes what keeps the packet from its way, for all that is known.
func (f *facts) doubt(step int, what string) {
	f.doubts = append(f.doubts, Problem{Step: step, Text: what, order: unreadOrder})
}

func (f *facts) gatherTargets(ctx context.Context, h Host, d *decision) {
	var err error
	if f.flows, err = h.Connections(ctx, d.question); err != nil {
		f.unknown("connection tracking: " + err.Error())
	}
	for i, e := range d.expected() {
		if i == maxEndpoints || ctx.Err() != nil {
			f.doubt(routeStep, fmt.Sprintf("it goes to one of %d endpoints whose way was not looked at", len(d.expected())-i))
			break
		}
		f.looked++
		mark := uint32(0)
		if e.Masquerade {
			mark = d.host.Mark()
		}
		f.targets[e.Address] = findRoute(h, e.Address.Addr(), mark)
	}
	if d.outcome != Balanced || d.route.Pool.Affinity == 0 {
		return
	}
	if f.kept, err = h.Remembered(ctx, d.route.Pool, d.question.Source); err != nil {
		f.unknown("session affinity: " + err.Error())
	}
}

// readSysctls reads the settings that the packet may depend on. One that the kernel does
// not have is not among them.
func (f *facts) readSysctls(h Host, d *decision) {
	names := []string{forwarding(d.family)}
	in := d.sender.Interface
	if d.family == policy.IPv4 {
		names = append(names, "net/ipv4/conf/all/rp_filter")
	}
	if in != "" {
		names = append(names, interfaceForwarding(d.family, in), "net/ipv4/conf/"+in+"/rp_filter")
	}
	if d.question.Dest.IsLoopback() {
		names = append(names, "net/ipv4/conf/all/route_localnet")
	}
	for _, name := range append(names, d.world.PacketSysctls...) {
		if v, err := h.Sysctl(name); err == nil {
			f.sysctls[name] = v
		}
	}
	if d.family == policy.IPv4 && in != "" && d.question.In == "" {
		f.findStrict(h, in)
	}
}

// findStrict finds interfaces on which packets of the client would be dropped, if they
// come in there.
func (f *facts) findStrict(h Host, in string) {
	names, err := h.Interfaces()
	if err != nil {
		f.doubt(hostStep, "it comes in by another interface, which could not be looked at: "+err.Error())
	}
	for _, name := range names {
		v, err := h.Sysctl("net/ipv4/conf/" + name + "/rp_filter")
		if err == nil && name != in && max(f.sysctls["net/ipv4/conf/all/rp_filter"], v) == "1" { // the larger holds
			f.strict = append(f.strict, name)
		}
	}
}

func forwarding(fam policy.Family) string {
	if fam == policy.IPv6 {
		return "net/ipv6/conf/all/forwarding"
	}
	return "net/ipv4/ip_forward"
}

func interfaceForwarding(fam policy.Family, name string) string {
	return "net/" + fam.String() + "/conf/" + name + "/forwarding"
}
