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
type ServiceChange struct {
	Old, New *Resolved
}

// A SetDelta says what a set gained and lost.
type SetDelta[T comparable] struct {
	Gained, Lost []T
}

// changes gathers what happens to a State between two Syncs.
type changes struct {
	services map[source.Key]ServiceChange
	vips     netChange[netip.Addr]
	hairpins netChange[Hairpin]
	bound    netChange[netip.Addr]
}

func newChanges() *changes {
	return &changes{
		services: make(map[source.Key]ServiceChange),
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
	if !again {
		ch.Old = old
	}
	ch.New = r
	if ch.Old == nil && ch.New == nil {
		delete(c.services, key)
		return
	}
	c.services[key] = ch
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
