package policy

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// A Delta says how a State differs from the one that was last synced.
type Delta struct {
	Services     []ServiceChange // each service at most once
	RefusedAddrs SetDelta[netip.Addr]
	Hairpins     SetDelta[Hairpin]
	BoundAddrs   SetDelta[netip.Addr]
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

// Changes gathers what happens to a State between two Syncs.
type Changes struct {
	Services     map[source.Key]ServiceChange
	whole        map[source.Key]*Resolved // of those that are parts, all of the service before
	RefusedAddrs netChange[netip.Addr]
	Hairpins     netChange[Hairpin]
	bound        netChange[netip.Addr]
}

// NewChanges returns none.
func NewChanges() *Changes {
	return &Changes{
		Services:     make(map[source.Key]ServiceChange),
		whole:        make(map[source.Key]*Resolved),
		RefusedAddrs: make(netChange[netip.Addr]),
		Hairpins:     make(netChange[Hairpin]),
		bound:        make(netChange[netip.Addr]),
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

// Put sets what service key contributes to st, or removes it if r is nil, and notes
// what changes, if anything.
func (c *Changes) Put(st *State, key source.Key, r *Resolved) (changed bool) {
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
	c.Note(key, old, r)
	return true
}

// Note keeps the first old and the last new value.
func (c *Changes) Note(key source.Key, old, r *Resolved) {
	ch, again := c.Services[key]
	switch {
	case !again:
		ch.Old = old
	case ch.Part:
		ch = ServiceChange{Old: c.whole[key]}
		delete(c.whole, key)
	}
	ch.New = r
	if ch.Old == nil && ch.New == nil {
		delete(c.Services, key)
		return
	}
	c.Services[key] = ch
}

// NotePart notes a part of the change of a service that was old, and is r.
func (c *Changes) NotePart(key source.Key, old, r *Resolved, part ServiceChange) {
	switch ch, again := c.Services[key]; {
	case !again:
		c.Services[key], c.whole[key] = part, old
	case ch.Part:
		c.Services[key] = ch.then(&part)
	default:
		c.Note(key, old, r)
	}
}

// then returns two parts, one after the other, as one.
func (ch *ServiceChange) then(next *ServiceChange) ServiceChange {
	before, after := FrontendIndex{}, FrontendIndex{}
	before.Add(next.Old.Frontends)
	for _, f := range ch.New.Frontends {
		delete(before, f.Key.WithoutKind()) // next changes what was not there before
	}
	before.Add(ch.Old.Frontends)
	after.Add(ch.New.Frontends)
	for _, f := range next.Old.Frontends {
		delete(after, f.Key.WithoutKind())
	}
	after.Add(next.New.Frontends)
	return ServiceChange{Old: before.Part(ch.New.Key), New: after.Part(ch.New.Key), Part: true}
}

// Part returns the frontends of a part of a service.
func (x FrontendIndex) Part(key source.Key) *Resolved {
	list := slices.SortedFunc(maps.Values(x), func(a, b *Frontend) int { return a.Key.Compare(b.Key) })
	return &Resolved{Key: key, Frontends: list, Pools: PoolsOf(list)}
}

// Before returns all of a service as it was before the changes.
func (c *Changes) Before(st *State, key source.Key) *Resolved {
	switch ch, changed := c.Services[key]; {
	case !changed:
		return st.Services[key]
	case ch.Part:
		return c.whole[key]
	default:
		return ch.Old
	}
}

// Recount updates the counts, other than those of Hairpins, when was becomes now, which may be nil.
func (c *Changes) Recount(st *State, was, now *Resolved) {
	if now == nil {
		now = new(Resolved)
	}
	recount(st.RefusedAddrs, c.RefusedAddrs, was.RefusedAddrs, now.RefusedAddrs)
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
	CountAll(set, net, slices.Values(now), 1)
	CountAll(set, net, slices.Values(was), -1)
}

// count adds by to the count of all that r puts into the counted sets.
func (c *Changes) count(st *State, r *Resolved, by int) {
	if r == nil {
		return
	}
	CountAll(st.RefusedAddrs, c.RefusedAddrs, slices.Values(r.RefusedAddrs), by)
	CountAll(st.Hairpins, c.Hairpins, r.Hairpins(), by)
	CountAll(st.BoundAddrs, c.bound, slices.Values(r.BoundAddrs), by)
}

// CountAll counts the elements of a list in set, and notes in net what that changes: by is 1 where they come, -1 where they go.
func CountAll[T comparable](set map[T]int, net netChange[T], list iter.Seq[T], by int) {
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

// Delta returns the gathered changes, sorted.
func (c *Changes) Delta() *Delta {
	return &Delta{
		Services:     slices.SortedFunc(maps.Values(c.Services), func(a, b ServiceChange) int { return a.Key().Compare(b.Key()) }),
		RefusedAddrs: c.RefusedAddrs.delta(netip.Addr.Compare),
		Hairpins:     c.Hairpins.delta(Hairpin.Compare),
		BoundAddrs:   c.bound.delta(netip.Addr.Compare),
	}
}

// Key returns the name of the service.
func (ch ServiceChange) Key() source.Key { return cmp.Or(ch.New, ch.Old).Key }
