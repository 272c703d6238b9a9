package layout

import (
	"iter"
	"maps"
	"net/netip"

	"svcproxy.dev/svcproxy/internal/maglev"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A renderer renders services as elements.
type renderer struct {
	pools *PoolIDs
	to    func(s Set, key, data []byte, note string) // takes one element; the bytes are good until it returns

	key, data []byte // kept for their memory
	at        []byte // key with an address before it; likewise
	slots     []uint32
	slotsOf   *policy.Pool // whose slots these are: the frontends of a pool come one after the other
}

// emit emits an element, with a comment as it will be read back.
func (r *renderer) emit(s Set, key, data []byte, note string) { r.to(s, key, data, nft.Comment(note)) }

// service emits the elements of one service; res may be nil: none.
func (r *renderer) service(res *policy.Resolved) {
	for _, f := range res.AllFrontends() {
		r.frontend(f)
	}
	for p := range affinityPools(res) {
		r.pool(p)
	}
}

func (r *renderer) frontend(f *policy.Frontend) {
	class := classAddr
	r.key = r.key[:0]
	if f.Key.Kind == policy.NodePort {
		class = classNodePort
	} else {
		r.key = PutAddr(r.key, f.Key.Addr)
	}
	r.key = append(r.key, byte(f.Key.Protocol), 0, 0, 0)
	r.key = putPort(r.key, f.Key.Port)

	name := f.ServicePort.String()
	r.addressed(frontends, class, f, name)
	r.refusals(class, f)
	r.route(class, f, f.Outside)
	if f.Split() {
		r.emit(Set{kind: frontends, class: class.local()}, r.key, nil, name)
		r.route(class.local(), f, f.FromLocal)
	}
}

// addressed emits, for sets of a kind, what packets to f, whose key is in r.key, are addressed to.
func (r *renderer) addressed(k kind, class lookupClass, f *policy.Frontend, note string) {
	if !f.Placed {
		r.emit(Set{kind: k, class: class}, r.key, nil, note)
		return
	}
	for _, a := range f.NodePortAddrs {
		r.at = append(PutAddr(r.at[:0], a), r.key...)
		r.emit(Set{kind: k, class: classPlaced}, r.at, nil, note)
	}
}

// refusals emits what keeps packets of f from being balanced.
func (r *renderer) refusals(class lookupClass, f *policy.Frontend) {
	if f.Restricted {
		r.emit(Set{kind: restricted, class: class}, r.key, nil, "")
		n := len(r.key)
		for _, p := range f.SourceRanges {
			r.key = PutAddr(r.key[:n], p.Addr())
			r.emit(Set{kind: sourceRanges, class: class, bits: uint8(p.Bits())}, r.key, nil, "")
		}
		r.key = r.key[:n]
	}
	switch f.Refusal() { // balanced packets lose f's address before they are refused
	case policy.Reject:
		r.addressed(noEndpointsReject, class, f, "")
	case policy.Drop:
		r.addressed(noEndpointsDrop, class, f, "")
	}
}

// route emits the elements of a frontend's Outside or FromLocal, whose key is in r.key.
func (r *renderer) route(class lookupClass, f *policy.Frontend, l policy.Route) {
	if l.Action != policy.Balance {
		return
	}
	if k, some := masqueradeKind(class, f, l); some {
		r.emit(Set{kind: k, class: class}, r.key, nil, "")
	}
	r.fillSlots(l.Pool)
	s := Set{kind: bySize, class: class, hash: l.Pool.Hash.On, size: uint32(len(r.slots))}
	if s.hash == source.NotHashed {
		s.size = sizeClass(len(r.slots))
	}
	if l.Pool.Affinity > 0 {
		r.sticky(class, l.Pool, s.size)
		return
	}
	r.emit(s, r.key, nil, "")
	n := len(r.key)
	for slot, target := range r.slots {
		r.key = PutNumber(r.key[:n], uint32(slot))
		r.data = putTarget(r.data[:0], l.Pool.Targets[target].AddrPort())
		r.emit(s.slotMap(), r.key, r.data, "")
	}
	r.key = r.key[:n]
}

// fillSlots fills slots with the targets of those of a pool.
func (r *renderer) fillSlots(p *policy.Pool) {
	switch {
	case r.slotsOf == p:
	case p.Hash.On == source.NotHashed:
		r.slots = spread(r.slots[:0], p.Targets)
	default:
		r.slots = maglev.Fill(r.slots[:0], maglev.Size(p.Hash.Endpoints), hashedEndpoints(p))
	}
	r.slotsOf = p
}

// sticky emits the elements of a frontend, whose key is in r.key, of a pool with affinity.
func (r *renderer) sticky(class lookupClass, p *policy.Pool, size uint32) {
	r.emit(Set{kind: withAffinity, class: class}, r.key, nil, "")
	r.emit(Set{kind: affinityByTimeout, class: class, expiry: expiryClass(p.Affinity)}, r.key, nil, "")
	r.emit(Set{kind: affinityBySize, class: class, size: size}, r.key, nil, "")
	r.data = PutNumber(r.data[:0], r.pools.id(p))
	r.emit(Set{kind: affinityPool, class: class}, r.key, r.data, poolName(p))
}

// masqueradeKind returns the kind of set that says which sources a route masquerades; some
// is false if it masquerades none. Packets from outside of a split frontend are of no
// local source and of no host process.
func masqueradeKind(class lookupClass, f *policy.Frontend, l policy.Route) (k kind, some bool) {
	outside := f.Split() && !class.isLocal()
	switch {
	case l.Masquerade == policy.Everyone, l.Masquerade == policy.NonLocal && outside:
		return masquerade, true
	case l.Masquerade == policy.NonLocal:
		return masqueradeNonLocal, true
	case l.Masquerade == policy.HostProcesses && !outside:
		return masqueradeHost, true
	}
	return 0, false
}

// pool emits a pool with affinity, which all its frontends share.
func (r *renderer) pool(p *policy.Pool) {
	id, endpoints := r.pools.id(p), EndpointIDs(p)
	for i, t := range p.Targets {
		r.key = PutNumber(PutNumber(r.key[:0], id), endpoints[i])
		r.data = putTarget(r.data[:0], t.AddrPort())
		r.emit(Set{kind: poolTargets}, r.key, r.data, "")
	}
	r.fillSlots(p)
	for slot, target := range r.slots {
		r.key = PutNumber(PutNumber(r.key[:0], id), uint32(slot))
		r.data = PutNumber(r.data[:0], endpoints[target])
		r.emit(Set{kind: poolSlots}, r.key, r.data, "")
	}
}

// state emits what a State holds besides services.
func (r *renderer) state(st *policy.State) {
	for _, a := range st.Host.NodePortAddrs {
		r.addr(nodeAddrs, a)
	}
	for _, a := range st.Host.ServiceCIDRExempt {
		r.addr(exempt, a)
	}
	r.shared(maps.Keys(st.RefusedAddrs), maps.Keys(st.Hairpins))
}

// shared emits elements of the sets that services share.
func (r *renderer) shared(refused iter.Seq[netip.Addr], reachThemselves iter.Seq[policy.Hairpin]) {
	for a := range refused {
		r.addr(vips, a)
	}
	for h := range reachThemselves {
		at := h.AddrPort()
		r.key = append(PutAddr(r.key[:0], at.Addr()), byte(h.Protocol), 0, 0, 0)
		r.key = PutAddr(putPort(r.key, at.Port()), at.Addr())
		r.emit(Set{kind: hairpins}, r.key, nil, "")
	}
}

func (r *renderer) addr(k kind, a netip.Addr) {
	r.key = PutAddr(r.key[:0], a)
	r.emit(Set{kind: k}, r.key, nil, "")
}
