package proxier

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// udpFrontends are the UDP frontends of one family as they were last synced,
// and where flows to them may be.
type udpFrontends struct {
	node      *Node // nil: nothing was synced yet
	host      Host
	services  map[source.Key][]*Frontend
	frontends map[netip.AddrPort]*Frontend // node ports by the unspecified address
}

func newUDPFrontends() *udpFrontends {
	return &udpFrontends{services: make(map[source.Key][]*Frontend), frontends: make(map[netip.AddrPort]*Frontend)}
}

func (f *Frontend) addrPort() netip.AddrPort { return netip.AddrPortFrom(f.Key.Addr, f.Key.Port) }

// synced implements flowJudge. Of each change only New is used.
func (t *udpFrontends) synced(s *synced) *look {
	l := t.update(s.changes, s.host, s.node)
	l.all = (l.all || s.all) && len(t.frontends) > 0
	return l
}

// rest implements flowJudge.
func (t *udpFrontends) rest() {}

// update applies changes and returns which flows may now be at a wrong endpoint.
func (t *udpFrontends) update(changes map[source.Key]ServiceChange, host Host, node *Node) *look {
	l := &look{all: t.node == nil || !t.host.Equal(&host)}
	t.noteUnserved(l, &host)
	was, now := t.replace(changes)
	for key, f := range was {
		l.noteGone(f, addrsBut(t.host.Addrs(f), host.addrsIfAny(now[key])))
		l.all = l.all || len(addrsBut(host.addrsIfAny(now[key]), t.host.Addrs(f))) > 0
	}
	t.node, t.host = node, host
	for key, f := range now {
		if moves(was[key], f) {
			for _, a := range t.host.Addrs(f) {
				l.note(netip.AddrPortFrom(a, f.Key.Port), changeOf(was[key]))
			}
		}
	}
	return l
}

// changeOf returns the change of a frontend; was is nil if it is new. Its
// endpoints are noted in case it is removed before its flows are judged.
func changeOf(was *Frontend) frontendChange {
	if was == nil {
		return frontendChange{appeared: true}
	}
	return frontendChange{appeared: refused(was), former: was.endpoints()}
}

// replace puts the frontends of changed services into the table. It returns what
// was there before and what replaces it: a frontend may move between services.
func (t *udpFrontends) replace(changes map[source.Key]ServiceChange) (was, now map[netip.AddrPort]*Frontend) {
	was, now = make(map[netip.AddrPort]*Frontend), make(map[netip.AddrPort]*Frontend)
	for key := range changes {
		for _, f := range t.services[key] {
			was[f.addrPort()] = f
			delete(t.frontends, f.addrPort())
		}
		delete(t.services, key)
	}
	for key, ch := range changes {
		for _, f := range ofProtocol(ch.New, source.UDP) {
			now[f.addrPort()], t.frontends[f.addrPort()] = f, f
			t.services[key] = append(t.services[key], f)
		}
	}
	return was, now
}

// noteUnserved notes the flows to node ports on addresses that no longer serve them.
func (t *udpFrontends) noteUnserved(l *look, host *Host) {
	plain := &Frontend{Key: FrontendKey{Kind: NodePort}}
	lost := addrsBut(t.host.Addrs(plain), host.Addrs(plain))
	if len(lost) == 0 {
		return
	}
	for _, f := range t.frontends {
		if f.Key.Kind == NodePort {
			l.noteGone(f, lost)
		}
	}
}

// query returns what to ask connection tracking for. An answer that passes for a
// new flow comes from where a frontend is new; else only the later looks, which
// are there for what is unlikely, ask for that too.
func (t *udpFrontends) query(l *look) (q FlowQuery) {
	q.Protocol = source.UDP
	if l.all {
		return q
	}
	for at, p := range l.changed {
		q.To = append(q.To, at)
		if (p.appeared || l.done > 0) && t.foreign(at) {
			q.From = append(q.From, at)
		}
	}
	q.To, q.From = sorted(q.To), sorted(q.From)
	return q
}

// foreign reports whether there is a frontend on an address that no interface of
// this host carries: the host sends nothing from there.
func (t *udpFrontends) foreign(at netip.AddrPort) bool {
	return t.frontends[at] != nil && !t.node.Owns(at.Addr())
}

// stale reports whether a flow that l is about has to go now.
func (t *udpFrontends) stale(l *look, fl Flow) bool {
	return t.misled(l, fl) && !(l.done == 0 && fl.waits())
}

// misled reports whether a flow that l is about goes to a wrong endpoint.
func (t *udpFrontends) misled(l *look, fl Flow) bool {
	if l.about(fl.Src) && t.foreign(fl.Src) {
		return true // it is an answer
	}
	if !l.about(fl.Dst) {
		return false
	}
	addressed, nodePort := t.at(fl.Dst)
	if addressed == nil && nodePort == nil {
		return slices.Contains(l.changed[fl.Dst].former, fl.Reply)
	}
	return !t.fits(fl, addressed, nodePort)
}

// at returns the frontends that match a destination. Either may be nil.
func (t *udpFrontends) at(dst netip.AddrPort) (addressed, nodePort *Frontend) {
	nodePort = t.frontends[netip.AddrPortFrom(FamilyOf(dst.Addr()).Unspecified(), dst.Port())]
	if nodePort != nil && !slices.Contains(t.host.Addrs(nodePort), dst.Addr()) {
		nodePort = nil
	}
	return t.frontends[dst], nodePort
}

// fits reports whether the frontend that a flow matched may have sent it where it is.
// In every mode a frontend with an address of its own comes before a node port of the
// same number, which gets what the former does not balance.
func (t *udpFrontends) fits(fl Flow, addressed, nodePort *Frontend) bool {
	from := t.origin(fl)
	if addressed != nil && (from.has(addressed, fl) || from.takenBy(addressed, fl.Src.Addr())) {
		return from.has(addressed, fl)
	}
	return nodePort != nil && from.has(nodePort, fl)
}

// An origin says which route of a frontend applies to a flow.
type origin uint8

// The origins. Connection tracking knows neither the input interface of a flow nor
// whether a link-local address belongs to this host.
const (
	fromOutside origin = iota
	fromHere           // host processes and local sources
	fromEither
)

func (t *udpFrontends) origin(fl Flow) origin {
	src := fl.Src.Addr()
	switch {
	case t.node.Owns(src), src.IsLoopback(), inAny(t.host.LocalCIDRs, src):
		return fromHere
	case src == fl.Dst.Addr(): // this host, which carries the address of a frontend
		return fromHere
	case len(t.host.LocalInterfaces) > 0, src.IsLinkLocalUnicast():
		return fromEither
	}
	return fromOutside
}

func (o origin) routes(f *Frontend) [2]Route {
	switch o {
	case fromHere:
		return [2]Route{f.Local, f.Local}
	case fromOutside:
		return [2]Route{f.Outside, f.Outside}
	}
	return [2]Route{f.Outside, f.Local}
}

// has reports whether a flow to f may be where it is: at an endpoint, or where nothing is
// translated on the way to one.
func (o origin) has(f *Frontend, fl Flow) bool {
	if fl.Reply == fl.Dst && o.leaves(f.Outside.Pool) {
		return true
	}
	routes := o.routes(f)
	return routes[0].Pool.has(fl.Reply) || routes[1].Pool.has(fl.Reply)
}

// leaves reports whether connection tracking knows nothing of where packets to a pool go.
func (o origin) leaves(p *Pool) bool {
	if p.Forward.Answers() {
		return o != fromHere
	}
	return p.OnePacket
}

// takenBy reports whether f balances all packets from a source.
func (o origin) takenBy(f *Frontend, src netip.Addr) bool {
	routes := o.routes(f)
	return routes[0].Action == Balance && routes[1].Action == Balance && (!f.Restricted || inAny(f.SourceRanges, src))
}

// moves reports whether flows to a frontend may be at a wrong place after it changed.
func moves(old, f *Frontend) bool {
	return old == nil || old.Outside.moves(f.Outside) || old.Local.moves(f.Local)
}

func (r Route) moves(to Route) bool { return r.Action != to.Action || !to.Pool.covers(r.Pool) }

// refused reports whether a frontend balanced nothing for some sources.
func refused(f *Frontend) bool { return f.Outside.Action != Balance || f.Local.Action != Balance }

// has reports whether a flow may be at an endpoint: one that gets new flows, or
// one that keeps what it has.
func (p *Pool) has(endpoint netip.AddrPort) bool {
	return p.targeted(endpoint) || inSorted(p.Kept, endpoint)
}

// covers reports whether flows may be at each endpoint at which those of o may be.
func (p *Pool) covers(o *Pool) bool {
	return p == o || !slices.ContainsFunc(o.present(), func(a netip.AddrPort) bool { return !p.has(a) })
}

// present returns all endpoints that a flow may be at, in no order.
func (p *Pool) present() []netip.AddrPort { return append(p.targets(), p.Kept...) }

// endpoints returns those of both routes.
func (f *Frontend) endpoints() []netip.AddrPort {
	return append(f.Outside.Pool.present(), f.Local.Pool.present()...)
}

// ofProtocol returns the frontends of a protocol; r may be nil.
func ofProtocol(r *Resolved, proto source.Protocol) []*Frontend {
	return keep(r.AllFrontends(), func(f *Frontend) bool { return f.Key.Protocol == proto })
}
