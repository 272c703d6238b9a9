package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Any is an argument that stands for every source or destination.
const Any = "any"

// A Filter says which connections to show.
type Filter struct {
	Source      netip.Prefix    // zero: any
	Destination netip.Addr      // zero: all addresses of services
	Port        uint16          // 0: any
	Protocol    source.Protocol // 0: any
}

// ParseFilter reads [SRC] [DST[:PORT][/PROTO]]. One argument is the destination, unless
// it is an address or prefix without port or protocol that isService does not know.
func ParseFilter(args []string, isService func(netip.Addr) bool) (Filter, error) {
	var src, dst string
	switch {
	case len(args) > 1:
		src, dst = args[0], args[1]
	case len(args) == 1:
		dst = args[0]
		if p, err := parseSource(dst); err == nil && p.IsValid() && (strings.Contains(dst, "/") || !isService(p.Addr())) {
			src, dst = dst, ""
		}
	}
	var f Filter
	err := f.parseDestination(dst)
	if err == nil {
		f.Source, err = parseSource(src)
	}
	if err == nil && f.Source.IsValid() && f.Destination.IsValid() && f.Source.Addr().Is4() != f.Destination.Is4() {
		err = fmt.Errorf("source %s and destination %s are of two address families", src, dst)
	}
	return f, err
}

func parseSource(s string) (netip.Prefix, error) {
	if s == "" || s == Any {
		return netip.Prefix{}, nil
	}
	if a, err := source.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("unknown source %q; want an address, a prefix, or %s", s, Any)
	}
	return p.Masked(), nil
}

func (f *Filter) parseDestination(s string) (err error) {
	rest, isAny := strings.CutPrefix(s, Any)
	isAny = isAny || s == ""
	if isAny {
		rest = "0.0.0.0" + rest
	}
	if _, protocol, has := strings.Cut(s, "/"); has {
		if _, err := source.ParseProtocol(protocol); err != nil {
			return fmt.Errorf("%w; want tcp, udp or sctp", err)
		}
	}
	if f.Destination, f.Port, f.Protocol, err = source.ParseDestination(rest); err != nil {
		return fmt.Errorf("unknown destination %q; want ADDRESS[:PORT][/PROTOCOL], [ADDRESS]:PORT for IPv6, or %s", s, Any)
	}
	if isAny {
		f.Destination = netip.Addr{}
	}
	return nil
}

// Path is where the control socket of a daemon answers with Names.
const Path = "/v1/trace"

// Names say whose an address is, and what the rules of svcproxy make of packets to it.
type Names struct {
	Mode      string                `json:"mode"` // of the running daemon; empty: none runs
	Families  []policy.Family       `json:"families"`
	Revision  uint64                `json:"revision"`            // of all the rest
	Unchanged bool                  `json:"unchanged,omitempty"` // since the revision that was named: there is no rest
	Frontends []Frontend            `json:"frontends"`
	Endpoints map[netip.Addr]string `json:"endpoints"` // with the node that each is on, if that is known

	NodePortAddrs   []netip.Addr   `json:"node_port_addresses"`
	ServiceCIDRs    []netip.Prefix `json:"service_cidrs"`
	LocalCIDRs      []netip.Prefix `json:"local_cidrs"`
	LocalInterfaces []string       `json:"local_interfaces"`

	found map[tuple]*Frontend // by destination; built on first use
	addrs map[netip.Addr]bool // of services; whether it is a VIP
}

// A Frontend is an address and port of a service.
type Frontend struct {
	Addr       netip.AddrPort  `json:"addr"` // of a node port without address
	Placed     bool            `json:"placed,omitempty"`
	At         []netip.Addr    `json:"at,omitempty"` // of a node port that is placed: the addresses that serve it
	Protocol   source.Protocol `json:"protocol"`
	Service    string          `json:"service"`
	Port       string          `json:"port,omitempty"` // its name
	VIP        bool            `json:"vip,omitempty"`
	Outside    policy.Action   `json:"outside"`
	Local      policy.Action   `json:"local"` // of local sources
	Restricted bool            `json:"restricted,omitempty"`
	Ranges     []netip.Prefix  `json:"ranges,omitempty"`

	// Forward is direct or tunnel where endpoints answer all but local sources themselves.
	Forward string `json:"forward,omitempty"`
}

// A tuple says from where to where a packet goes. The ports of ICMP are its identifier,
// as source, and type and code.
type tuple struct {
	src, dst netip.AddrPort
	protocol source.Protocol
}

// NamesOf returns the names of services in use. A valid address leaves out services that
// have nothing to do with packets to it.
func NamesOf(u claims.Snapshot, only netip.Addr) *Names {
	n := &Names{
		Families: u.Families, Endpoints: make(map[netip.Addr]string), NodePortAddrs: u.Node.NodePortAddrs,
		ServiceCIDRs: u.Node.ServiceCIDRs, LocalCIDRs: u.Node.LocalCIDRs, LocalInterfaces: u.Node.LocalInterfaces,
	}
	wanted := make(map[source.Key]bool)
	for _, r := range u.Resolved {
		concerned := func(f *policy.Frontend) bool { // a packet to the address may be one to the frontend
			return f.Key.Addr == only || f.Key.Kind == policy.NodePort && n.serves(f.Placed, f.NodePortAddrs, only)
		}
		if !only.IsValid() || slices.ContainsFunc(r.Frontends, concerned) {
			n.add(r)
			wanted[r.Key] = true
		}
	}
	for _, s := range u.Services {
		if wanted[s.Key] {
			for _, e := range s.Endpoints {
				n.Endpoints[e.Addr] = e.Extras().Node
			}
		}
	}
	return n
}

// serves reports whether an address serves a node port, which is on a list of its own if it is placed.
func (n *Names) serves(placed bool, list []netip.Addr, a netip.Addr) bool {
	if !placed {
		list = n.NodePortAddrs
	}
	return slices.Contains(list, a) || a.IsLoopback()
}

func (n *Names) add(r *policy.Resolved) {
	for _, f := range r.Frontends {
		forward := ""
		if way := f.Outside.Pool.Forward; way.Answers() {
			forward = way.Method.String()
		}
		n.Frontends = append(n.Frontends, Frontend{
			Addr: netip.AddrPortFrom(f.Key.Addr, f.Key.Port), Protocol: f.Key.Protocol, Placed: f.Placed, At: f.NodePortAddrs,
			Service: f.ServicePort.Key.String(), Port: f.ServicePort.Port, VIP: f.Key.Kind == policy.VIP,
			Outside: f.Outside.Action, Local: f.FromLocal.Action, Restricted: f.Restricted, Ranges: f.SourceRanges, Forward: forward,
		})
	}
}

func (n *Names) index() {
	if n.found != nil {
		return
	}
	n.found, n.addrs = make(map[tuple]*Frontend, len(n.Frontends)), make(map[netip.Addr]bool)
	for i := range n.Frontends {
		f := &n.Frontends[i]
		n.found[tuple{dst: f.Addr, protocol: f.Protocol}] = f
		if a := f.Addr.Addr(); !a.IsUnspecified() {
			n.addrs[a] = n.addrs[a] || f.VIP
		}
	}
}

// HasAddress reports whether an address is one of a service.
func (n *Names) HasAddress(a netip.Addr) bool {
	n.index()
	_, ok := n.addrs[a]
	return ok
}

// frontend returns what serves packets to an address and port; nil: nothing.
func (n *Names) frontend(to netip.AddrPort, p source.Protocol) *Frontend {
	n.index()
	if f := n.found[tuple{dst: to, protocol: p}]; f != nil {
		return f
	}
	f := n.found[tuple{dst: netip.AddrPortFrom(policy.FamilyOf(to.Addr()).Unspecified(), to.Port()), protocol: p}]
	if f == nil || !n.serves(f.Placed, f.At, to.Addr()) {
		return nil
	}
	return f
}

// isLocal reports whether a packet is of a local source: from this host itself where it
// came in on no interface.
func (n *Names) isLocal(src netip.Addr, in string) bool {
	h := policy.Host{LocalCIDRs: n.LocalCIDRs, LocalInterfaces: n.LocalInterfaces}
	return in == "" || h.LocalBy(policy.Sender{Addr: src, Interface: in}) != ""
}

// Reasons why a packet is not balanced.
const (
	noEndpoints   = "no endpoints"
	policyLocal   = "policy local, no endpoint on this node"
	sourceRanges  = "not in the source ranges"
	portNotServed = "port not served"
	noService     = "no service has this address"
	notOurs       = "not an address of a service"
)

// reason returns why the rules do not balance a packet, and whether they refuse it;
// empty: they do balance it.
func (n *Names) reason(f *Frontend, from, to netip.Addr, in string) (why string, refused bool) {
	switch {
	case f == nil && n.HasAddress(to):
		return portNotServed, n.addrs[to]
	case f == nil && inAny(n.ServiceCIDRs, to):
		return noService, true
	case f == nil:
		return notOurs, false
	case f.Restricted && !inAny(f.Ranges, from):
		return sourceRanges, false
	}
	action := f.Outside
	if n.isLocal(from, in) {
		action = f.Local
	}
	switch action {
	case policy.Reject:
		return noEndpoints, true
	case policy.Drop:
		return policyLocal, false
	}
	return "", false
}

func inAny(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}
