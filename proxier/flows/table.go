package flows

import (
	"context"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Sync is what a successful Sync changed since the one before, and what it led to.
type Sync struct {
	Changes []policy.ServiceChange
	Host    policy.Host
	Node    *policy.Node
	All     bool // the kernel may have held something else meanwhile
}

// A table has the frontends of one family and protocol as they were last synced, and judges
// flows by them. What a flow is judged by is the same for every protocol: whether a new one from its source
// could be where it is.
type table struct {
	proto     source.Protocol
	node      *policy.Node // nil: nothing was synced yet
	host      policy.Host
	frontends map[netip.AddrPort]*policy.Frontend // node ports by the unspecified address
}

func newTable(proto source.Protocol) *table {
	return &table{proto: proto, frontends: make(map[netip.AddrPort]*policy.Frontend)}
}

// synced takes over what a successful Sync changed, and returns what to look for.
func (t *table) synced(s *Sync) *look {
	l := t.update(s.Changes, s.Host, s.Node)
	l.all = (l.all || s.All) && len(t.frontends) > 0
	return l
}

// addPast notes the flows of frontends that went unseen: before this start, or between two Syncs of which the first failed.
// Node ports are looked for on all addresses of this host.
func (t *table) addPast(l *look, past []netip.AddrPort) {
	for _, at := range past {
		addrs := []netip.Addr{at.Addr()}
		if at.Addr().IsUnspecified() {
			addrs = t.node.Addrs
		}
		for _, a := range addrs {
			l.add(netip.AddrPortFrom(a, at.Port()), frontendChange{past: true})
			l.past = true
		}
	}
}

// update applies changes, and returns which flows may now be at a wrong endpoint.
func (t *table) update(changes []policy.ServiceChange, host policy.Host, node *policy.Node) *look {
	l := &look{all: t.node == nil || !t.host.Equal(&host)}
	t.addUnserved(l, &host)
	was, now := t.replace(changes)
	for key, f := range was {
		l.addGone(f, policy.AddrsBut(t.host.Addrs(f), host.Addrs(now[key])))
		l.all = l.all || len(policy.AddrsBut(host.Addrs(now[key]), t.host.Addrs(f))) > 0
	}
	t.node, t.host = node, host
	for key, f := range now {
		if c := changeOf(was[key], f); t.concerns(c, was[key], f) {
			for _, a := range t.host.Addrs(f) {
				l.add(netip.AddrPortFrom(a, f.Key.Port), c)
			}
		}
	}
	return l
}

// concerns reports whether flows may be stale after the change of a frontend. Those of UDP may
// stay at an endpoint that gets no new ones.
func (t *table) concerns(c frontendChange, was, now *policy.Frontend) bool {
	if t.proto == source.UDP {
		return c.whole || was == nil || was.Outside.Moves(now.Outside) || was.FromLocal.Moves(now.FromLocal)
	}
	return c.whole || len(c.former) > 0
}

// replace puts the frontends of changed services into the table. It returns what
// was there before and what replaces it: a frontend may move between services.
func (t *table) replace(changes []policy.ServiceChange) (was, now map[netip.AddrPort]*policy.Frontend) {
	was, now = make(map[netip.AddrPort]*policy.Frontend), make(map[netip.AddrPort]*policy.Frontend)
	for _, ch := range changes {
		for _, f := range ofProtocol(ch.Old, t.proto) {
			was[f.AddrPort()] = f
			delete(t.frontends, f.AddrPort())
		}
	}
	for _, ch := range changes {
		for _, f := range ofProtocol(ch.New, t.proto) {
			now[f.AddrPort()], t.frontends[f.AddrPort()] = f, f
		}
	}
	return was, now
}

// addUnserved notes the flows to node ports on addresses that no longer serve them.
func (t *table) addUnserved(l *look, host *policy.Host) {
	plain := &policy.Frontend{Key: policy.FrontendKey{Kind: policy.NodePort}}
	lost := policy.AddrsBut(t.host.Addrs(plain), host.Addrs(plain))
	if len(lost) == 0 {
		return
	}
	for _, f := range t.frontends {
		if f.Key.Kind == policy.NodePort {
			l.addGone(f, lost)
		}
	}
}

// query returns what to ask connection tracking for. Of TCP and SCTP that is connections of former
// endpoints, where nothing else can be stale. An answer of UDP that passes for a
// new flow comes from where a frontend is new; else only the later looks, which
// are there for what is unlikely, ask for that too.
func (t *table) query(l *look) (q Query) {
	q.Protocol = t.proto
	if l.all {
		return q
	}
	whole := t.proto == source.UDP
	for at, c := range l.changed {
		q.To = append(q.To, at)
		q.At = append(q.At, c.former...)
		whole = whole || c.whole || c.past
		if t.proto == source.UDP && (c.appeared || l.done > 0) && t.foreign(at) {
			q.From = append(q.From, at)
		}
	}
	if whole {
		q.At = nil
	}
	q.To, q.From, q.At = lists.Sorted(q.To), lists.Sorted(q.From), lists.Sorted(q.At)
	return q
}

// foreign reports whether there is a frontend on an address that no interface of
// this host carries: the host sends nothing from there.
func (t *table) foreign(at netip.AddrPort) bool {
	return t.frontends[at] != nil && !t.node.Owns(at.Addr())
}

// judge returns what becomes of a flow.
func (t *table) judge(l *look, fl Flow) Verdict {
	switch where := t.standing(l, fl); {
	case where == fits, where == lingering && t.proto == source.UDP:
		return Keep
	case where == strays && t.proto == source.UDP && l.done < graceLooks && !fl.Movable && t.mayAnswer(fl):
		return await
	case t.proto == source.UDP:
		return Move
	case where == isClosed, fl.Unreplied, fl.Ended:
		return Remove
	case fl.Opening && (l.done >= halfOpenLooks || t.dead(l, fl)):
		return Remove
	case fl.Opening, t.proto != source.TCP:
		return await
	case fl.Reopening:
		return Keep
	}
	return Reopen
}

// A standing says how a flow stands to the frontends there are.
type standing uint8

// The standings.
const (
	fits      standing = iota // a new one could be where it is, or it is not ours
	lingering                 // its endpoint gets no new flows, and keeps those it has
	strays                    // its endpoint has left, or its source is not admitted
	isClosed                  // its endpoint has left, and its service has its connections closed
)

// standing returns how a flow stands that l may be about.
func (t *table) standing(l *look, fl Flow) standing {
	if t.proto == source.UDP && l.about(fl.Src) && t.foreign(fl.Src) {
		return strays // it is an answer
	}
	if !l.about(fl.Dst) {
		return fits
	}
	addressed, nodePort := t.at(fl.Dst)
	switch was := l.changed[fl.Dst]; {
	case t.closes(was, addressed, nodePort, fl):
		return isClosed
	case addressed != nil || nodePort != nil:
		return t.fit(fl, addressed, nodePort)
	case lists.InSorted(was.former, fl.Reply), was.past && fl.Reply != fl.Dst:
		return strays
	}
	return fits
}

// closes reports whether a connection is to be closed: no frontend that it may have matched has its endpoint.
func (t *table) closes(was frontendChange, addressed, nodePort *policy.Frontend, fl Flow) bool {
	closed := lists.InSorted(was.closed, fl.Reply)
	for _, f := range []*policy.Frontend{addressed, nodePort} {
		if f == nil {
			continue
		}
		if f.Has(fl.Reply) {
			return false
		}
		closed = closed || lists.InSorted(f.Closed(), fl.Reply)
	}
	return closed
}

// mayAnswer reports whether a flow that strays has been translated, to an endpoint that may still answer, and
// the next one of its client would be balanced.
func (t *table) mayAnswer(fl Flow) bool {
	addressed, nodePort := t.at(fl.Dst)
	return fl.Reply != fl.Dst && slices.ContainsFunc([]*policy.Frontend{addressed, nodePort}, func(f *policy.Frontend) bool {
		return f != nil && f.Admits(fl.Src.Addr()) && t.origin(fl).takenBy(f)
	})
}

// dead reports whether the endpoint of a flow may not answer any more.
func (t *table) dead(l *look, fl Flow) bool {
	addressed, nodePort := t.at(fl.Dst)
	return lists.InSorted(l.changed[fl.Dst].dead, fl.Reply) ||
		addressed != nil && lists.InSorted(addressed.Dead(), fl.Reply) || nodePort != nil && lists.InSorted(nodePort.Dead(), fl.Reply)
}

// at returns the frontends that match a destination. Either may be nil.
func (t *table) at(dst netip.AddrPort) (addressed, nodePort *policy.Frontend) {
	nodePort = t.frontends[netip.AddrPortFrom(policy.FamilyOf(dst.Addr()).Unspecified(), dst.Port())]
	if nodePort != nil && !slices.Contains(t.host.Addrs(nodePort), dst.Addr()) {
		nodePort = nil
	}
	return t.frontends[dst], nodePort
}

// fit returns how a flow stands to the frontends that it matches.
// In every mode a frontend with an address of its own comes before a node port of the
// same number, which gets what the former does not balance; sources that it does not admit are dropped.
func (t *table) fit(fl Flow, addressed, nodePort *policy.Frontend) standing {
	from, src := t.origin(fl), fl.Src.Addr()
	if addressed != nil {
		if !addressed.Admits(src) {
			return strays
		}
		if where := from.standing(addressed, fl); where != strays || from.takenBy(addressed) {
			return where
		}
	}
	if nodePort != nil && nodePort.Admits(src) {
		return from.standing(nodePort, fl)
	}
	return strays
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

func (t *table) origin(fl Flow) origin {
	src := fl.Src.Addr()
	switch {
	case t.node.Owns(src), src.IsLoopback(), policy.InAny(t.host.LocalCIDRs, src):
		return fromHere
	case src == fl.Dst.Addr(): // this host, which carries the address of a frontend
		return fromHere
	case len(t.host.LocalInterfaces) > 0, src.IsLinkLocalUnicast():
		return fromEither
	}
	return fromOutside
}

func (o origin) routes(f *policy.Frontend) [2]policy.Route {
	switch o {
	case fromHere:
		return [2]policy.Route{f.FromLocal, f.FromLocal}
	case fromOutside:
		return [2]policy.Route{f.Outside, f.Outside}
	}
	return [2]policy.Route{f.Outside, f.FromLocal}
}

// standing returns how a flow to f stands. Nothing may be translated on the way to an endpoint.
func (o origin) standing(f *policy.Frontend, fl Flow) standing {
	if fl.Reply == fl.Dst && o.leaves(f.Outside.Pool) {
		return fits
	}
	where := strays
	for _, r := range o.routes(f) {
		switch {
		case r.Pool.Targeted(fl.Reply):
			return fits
		case lists.InSorted(r.Pool.Kept, fl.Reply):
			where = lingering
		}
	}
	return where
}

// leaves reports whether connection tracking knows nothing of where packets to a pool go.
func (o origin) leaves(p *policy.Pool) bool {
	if p.Forward.Answers() {
		return o != fromHere
	}
	return p.OnePacket
}

// takenBy reports whether f balances all packets that it admits.
func (o origin) takenBy(f *policy.Frontend) bool {
	routes := o.routes(f)
	return routes[0].Action == policy.Balance && routes[1].Action == policy.Balance
}

// ofProtocol returns the frontends of a protocol; r may be nil.
func ofProtocol(r *policy.Resolved, proto source.Protocol) []*policy.Frontend {
	return lists.Keep(r.AllFrontends(), func(f *policy.Frontend) bool { return f.Key.Protocol == proto })
}

// Stale calls visit with each UDP flow of a family that would be removed after a Sync; former leads to
// what was synced before, and is nil where that is not known.
func Stale(ctx context.Context, flows Tracking, fam policy.Family, former []policy.ServiceChange, s *Sync, visit func(Flow)) error {
	t := newTable(source.UDP)
	if former != nil {
		t.update(former, s.Host, s.Node)
	}
	l := t.update(s.Changes, s.Host, s.Node)
	if !l.all && len(l.changed) == 0 {
		return nil
	}
	_, err := flows.Prune(ctx, fam, t.query(l), func(f Flow) Verdict {
		if t.standing(l, f) > lingering {
			visit(f)
		}
		return Keep
	})
	return err
}
