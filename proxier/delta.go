package proxier

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// newState returns a State without services.
func newState(fam Family, node *Node) *State {
	return &State{
		Family:      fam,
		Host:        node.Host(fam),
		Services:    make(map[source.Key]*Resolved),
		RefusedVIPs: make(map[netip.Addr]int),
		Hairpins:    make(map[Hairpin]int),
		BoundAddrs:  make(map[netip.Addr]int),
	}
}

// NewState returns the State of services on a node, in one family, with nothing known of their endpoints.
func NewState(fam Family, node *Node, services []*source.Service) *State {
	st, ch := newState(fam, node), newChanges()
	for _, s := range services {
		ch.put(st, s.Key, Resolve(s, nil, node, fam))
	}
	return st
}

// A Delta says how a State differs from the one that was last synced.
type Delta struct {
	Services    []ServiceChange // each service at most once
	RefusedVIPs SetDelta[netip.Addr]
	Hairpins    SetDelta[Hairpin]
	BoundAddrs  SetDelta[netip.Addr]
}

// A ServiceChange is one service before and after. One of the two may be nil.
//
// It may be a part of that: all frontends that are in neither Old nor New stay as they are. Of a part Old
// and New have Key, Frontends and Pools only, and neither is nil. Where a frontend in it shares a pool, or
// a pair of routes, with one that stays, one such is in both, so that what is shared stays too.
type ServiceChange struct {
	Old, New *Resolved
	Part     bool
}

// A SetDelta says what a set gained and lost.
type SetDelta[T comparable] struct {
	Gained, Lost []T
}

// changes gathers what happens to a State between two Syncs.
type changes struct {
	services map[source.Key]ServiceChange
	whole    map[source.Key]*Resolved // of those that are parts, all of the service before
	vips     netChange[netip.Addr]
	hairpins netChange[Hairpin]
	bound    netChange[netip.Addr]
}

func newChanges() *changes {
	return &changes{
		services: make(map[source.Key]ServiceChange),
		whole:    make(map[source.Key]*Resolved),
		vips:     make(netChange[netip.Addr]),
		hairpins: make(netChange[Hairpin]),
		bound:    make(netChange[netip.Addr]),
	}
}

// A netChange counts, for each element of a set, how often it came less how
// often it went: 1 gained, -1 lost.
type netChange[T comparable] map[T]int

func (n netChange[T]) add(v T, by int) {
	if n[v] += by; n[v] == 0 {
		delete(n, v)
	}
}

func (n netChange[T]) delta(compare func(a, b T) int) SetDelta[T] {
	var d SetDelta[T]
	for v, by := range n {
		if by > 0 {
			d.Gained = append(d.Gained, v)
		} else {
			d.Lost = append(d.Lost, v)
		}
	}
	slices.SortFunc(d.Gained, compare)
	slices.SortFunc(d.Lost, compare)
	return d
}

// put sets what service key contributes to st, or removes it if r is nil, and notes
// what changes, if anything.
func (c *changes) put(st *State, key source.Key, r *Resolved) (changed bool) {
	old := st.Services[key]
	if old == r || old != nil && r != nil && reflect.DeepEqual(old, r) {
		return false
	}
	c.count(st, r, 1) // gains first: what stays is never lost in between
	c.count(st, old, -1)
	if r == nil {
		delete(st.Services, key)
	} else {
		st.Services[key] = r
	}
	c.note(key, old, r)
	return true
}

// note keeps the first old and the last new value.
func (c *changes) note(key source.Key, old, r *Resolved) {
	ch, again := c.services[key]
	switch {
	case !again:
		ch.Old = old
	case ch.Part:
		ch = ServiceChange{Old: c.whole[key]}
		delete(c.whole, key)
	}
	ch.New = r
	if ch.Old == nil && ch.New == nil {
		delete(c.services, key)
		return
	}
	c.services[key] = ch
}

// notePart notes a part of the change of a service that was old, and is r.
func (c *changes) notePart(key source.Key, old, r *Resolved, part ServiceChange) {
	switch ch, again := c.services[key]; {
	case !again:
		c.services[key], c.whole[key] = part, old
	case ch.Part:
		c.services[key] = ch.then(&part)
	default:
		c.note(key, old, r)
	}
}

// then returns two parts, one after the other, as one.
func (ch *ServiceChange) then(next *ServiceChange) ServiceChange {
	before, after := frontendIndex{}, frontendIndex{}
	before.add(next.Old.Frontends)
	for _, f := range ch.New.Frontends {
		delete(before, f.Key.WithoutKind()) // next changes what was not there before
	}
	before.add(ch.Old.Frontends)
	after.add(ch.New.Frontends)
	for _, f := range next.Old.Frontends {
		delete(after, f.Key.WithoutKind())
	}
	after.add(next.New.Frontends)
	return ServiceChange{Old: before.part(ch.New.Key), New: after.part(ch.New.Key), Part: true}
}

// part returns the frontends of a part of a service.
func (x frontendIndex) part(key source.Key) *Resolved {
	list := slices.SortedFunc(maps.Values(x), func(a, b *Frontend) int { return a.Key.Compare(b.Key) })
	return &Resolved{Key: key, Frontends: list, Pools: poolsOf(list)}
}

// before returns all of a service as it was before the changes.
func (c *changes) before(st *State, key source.Key) *Resolved {
	switch ch, changed := c.services[key]; {
	case !changed:
		return st.Services[key]
	case ch.Part:
		return c.whole[key]
	default:
		return ch.Old
	}
}

// recount updates the counts, other than those of Hairpins, when was becomes now, which may be nil.
func (c *changes) recount(st *State, was, now *Resolved) {
	if now == nil {
		now = new(Resolved)
	}
	recount(st.RefusedVIPs, c.vips, was.RefusedVIPs, now.RefusedVIPs)
	recount(st.BoundAddrs, c.bound, was.BoundAddrs, now.BoundAddrs)
}

// recount counts one list in place of another. What they have in common at their ends costs little.
func recount[T comparable](set map[T]int, net netChange[T], was, now []T) {
	for len(was) > 0 && len(now) > 0 && was[0] == now[0] {
		was, now = was[1:], now[1:]
	}
	for len(was) > 0 && len(now) > 0 && was[len(was)-1] == now[len(now)-1] {
		was, now = was[:len(was)-1], now[:len(now)-1]
	}
	countAll(set, net, slices.Values(now), 1)
	countAll(set, net, slices.Values(was), -1)
}

// count adds by to the count of all that r puts into the counted sets.
func (c *changes) count(st *State, r *Resolved, by int) {
	if r == nil {
		return
	}
	countAll(st.RefusedVIPs, c.vips, slices.Values(r.RefusedVIPs), by)
	countAll(st.Hairpins, c.hairpins, r.Hairpins(), by)
	countAll(st.BoundAddrs, c.bound, slices.Values(r.BoundAddrs), by)
}

func countAll[T comparable](set map[T]int, net netChange[T], list iter.Seq[T], by int) {
	for v := range list {
		was := set[v]
		set[v] += by
		switch {
		case was == 0:
			net.add(v, 1)
		case set[v] == 0:
			delete(set, v)
			net.add(v, -1)
		}
	}
}

// delta returns the gathered changes, sorted.
func (c *changes) delta() *Delta {
	return &Delta{
		Services:    slices.SortedFunc(maps.Values(c.services), func(a, b ServiceChange) int { return a.key().Compare(b.key()) }),
		RefusedVIPs: c.vips.delta(netip.Addr.Compare),
		Hairpins:    c.hairpins.delta(Hairpin.Compare),
		BoundAddrs:  c.bound.delta(netip.Addr.Compare),
	}
}

func (ch ServiceChange) key() source.Key { return cmp.Or(ch.New, ch.Old).Key }
