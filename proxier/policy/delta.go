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
// In a Delta it may be a part of that: all frontends that are in neither Old nor New stay as they are. Of a part Old
// and New have Key, Frontends and Pools only, and neither is nil. Where a frontend in it shares a pool, or
// a pair of routes, with one that stays, one such is in both, so that what is shared stays too.
type ServiceChange struct {
	Old, New *Resolved
	Part     bool // of Changes: what stays is the very same frontend in both
}

// A SetDelta says what a set gained and lost.
type SetDelta[T comparable] struct {
	Gained, Lost []T
}

// Changes gathers what happens to a State between two Syncs.
type Changes struct {
	Services map[source.Key]ServiceChange

	// How often each element of a set came less how often it went: 1 gained, -1 lost.
	RefusedAddrs map[netip.Addr]int
	hairpins     map[Hairpin]int
	bound        map[netip.Addr]int
}

// NewChanges returns none.
func NewChanges() *Changes {
	return &Changes{
		Services:     make(map[source.Key]ServiceChange),
		RefusedAddrs: make(map[netip.Addr]int),
		hairpins:     make(map[Hairpin]int),
		bound:        make(map[netip.Addr]int),
	}
}

// add counts an element, and leaves out what comes to nothing.
func add[T comparable](net map[T]int, v T, by int) {
	if net[v] += by; net[v] == 0 {
		delete(net, v)
	}
}

func setDelta[T comparable](net map[T]int, compare func(a, b T) int) (d SetDelta[T]) {
	for v, by := range net {
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
	c.set(st, key, r)
	c.Note(key, old, r)
	return true
}

// PutPart is Put where all that stays is the very same in r.
func (c *Changes) PutPart(st *State, key source.Key, r *Resolved) {
	ch, again := c.Services[key]
	part := ch.Part || !again
	c.Note(key, c.set(st, key, r), r)
	if ch, again = c.Services[key]; again {
		ch.Part = part
		c.Services[key] = ch
	}
}

// set sets what service key contributes to st, counts what that changes, and returns what was there.
func (c *Changes) set(st *State, key source.Key, r *Resolved) (old *Resolved) {
	old = st.Services[key]
	if st.Services[key] = r; r == nil {
		delete(st.Services, key)
	}
	was, now := cmp.Or(old, &Resolved{}), cmp.Or(r, &Resolved{})
	recount(st.RefusedAddrs, c.RefusedAddrs, was.RefusedAddrs, now.RefusedAddrs)
	recount(st.BoundAddrs, c.bound, was.BoundAddrs, now.BoundAddrs)
	pools, less, more := make(map[*Pool]int), was.HairpinPools, now.HairpinPools
	trim(&less, &more)
	for _, p := range more {
		add(pools, p, 1)
	}
	for _, p := range less {
		add(pools, p, -1)
	}
	for p, by := range pools {
		count(st.Hairpins, c.hairpins, p.hairpins(), by)
	}
	return old
}

// Note keeps the first old and the last new value.
func (c *Changes) Note(key source.Key, old, r *Resolved) {
	ch, again := c.Services[key]
	if !again {
		ch.Old = old
	}
	if ch.New, ch.Part = r, false; ch.Old == nil && r == nil {
		delete(c.Services, key)
		return
	}
	c.Services[key] = ch
}

// Before returns all of a service as it was before the changes.
func (c *Changes) Before(st *State, key source.Key) *Resolved {
	if ch, changed := c.Services[key]; changed {
		return ch.Old
	}
	return st.Services[key]
}

// trim leaves out what two lists have in common at their ends.
func trim[T comparable](a, b *[]T) {
	x, y := *a, *b
	for len(x) > 0 && len(y) > 0 && x[0] == y[0] {
		x, y = x[1:], y[1:]
	}
	for len(x) > 0 && len(y) > 0 && x[len(x)-1] == y[len(y)-1] {
		x, y = x[:len(x)-1], y[:len(y)-1]
	}
	*a, *b = x, y
}

// recount counts one list in place of another. What they have in common at their ends costs little.
func recount[T comparable](set map[T]int, net map[T]int, was, now []T) {
	trim(&was, &now)
	count(set, net, slices.Values(now), 1)
	count(set, net, slices.Values(was), -1)
}

// count counts the elements of a list in set, and notes in net what that changes: by is 1 where they come, -1 where they go.
func count[T comparable](set map[T]int, net map[T]int, list iter.Seq[T], by int) {
	for v := range list {
		was := set[v]
		set[v] += by
		switch {
		case was == 0:
			add(net, v, 1)
		case set[v] == 0:
			delete(set, v)
			add(net, v, -1)
		}
	}
}

// Delta returns the gathered changes, sorted.
func (c *Changes) Delta() *Delta {
	return &Delta{
		Services:     c.Sorted(),
		RefusedAddrs: setDelta(c.RefusedAddrs, netip.Addr.Compare),
		Hairpins:     setDelta(c.hairpins, Hairpin.Compare),
		BoundAddrs:   setDelta(c.bound, netip.Addr.Compare),
	}
}

// Sorted returns the changes of services, in order of their names, as a Delta has them.
func (c *Changes) Sorted() []ServiceChange {
	list := slices.SortedFunc(maps.Values(c.Services), func(a, b ServiceChange) int { return a.Key().Compare(b.Key()) })
	for i := range list {
		if ch := &list[i]; ch.Part {
			*ch = ch.part()
		}
	}
	return list
}

// part returns what differs, and for each thing that it shares with frontends that stay one of these.
func (ch *ServiceChange) part() ServiceChange {
	var old, now []*Frontend
	stay := make([]*Frontend, 0, len(ch.Old.AllFrontends()))
	missing, pools := make(map[[2]Route]bool), make(map[*Pool]bool) // pools: of what is missing
	for was, f := range Places(ch.Old, ch.New) {
		if was == f {
			stay = append(stay, f)
			continue
		}
		if was != nil {
			old = append(old, was)
		}
		if f != nil {
			now = append(now, f)
		}
	}
	for _, f := range slices.Concat(old, now) {
		pools[f.Outside.Pool], pools[f.FromLocal.Pool] = true, true
		for _, s := range f.shares() {
			missing[s] = true
		}
	}
	for i := 0; i < len(stay) && len(missing) > 0; i++ {
		f := stay[i/2] // from both ends, as pieces come in order
		if i%2 == 1 {
			f = stay[len(stay)-1-i/2]
		}
		if !pools[f.Outside.Pool] && !pools[f.FromLocal.Pool] {
			continue
		}
		needed := false
		for _, s := range f.shares() {
			if missing[s] {
				needed = true
				delete(missing, s)
			}
		}
		if needed {
			old, now = append(old, f), append(now, f)
		}
	}
	return ServiceChange{Old: partOf(ch.Key(), old), New: partOf(ch.Key(), now), Part: true}
}

func partOf(key source.Key, list []*Frontend) *Resolved {
	slices.SortFunc(list, func(a, b *Frontend) int { return a.Key.Compare(b.Key) })
	return &Resolved{Key: key, Frontends: list, Pools: PoolsOf(list)}
}

// shares returns, some of it twice, what the kernel may have for several frontends of a service at once: for a pool, for one
// that rules balance to for local sources, for a pair of routes.
func (f *Frontend) shares() (of [4][2]Route) {
	outside := [2]Route{{Pool: f.Outside.Pool}}
	if !f.Split() {
		return [4][2]Route{outside, outside, outside, outside}
	}
	return [4][2]Route{outside, {{Pool: f.FromLocal.Pool}}, {1: {Pool: f.FromLocal.Pool}}, {f.Outside, f.FromLocal}}
}

// Places yields what two versions of a service have at each place, an address with protocol and port, in order.
// One of the two may be nil, and so may a version.
func Places(was, now *Resolved) iter.Seq2[*Frontend, *Frontend] {
	return func(yield func(was, now *Frontend) bool) {
		a, b := was.AllFrontends(), now.AllFrontends()
		for len(a)+len(b) > 0 {
			order := 0
			switch {
			case len(a) == 0:
				order = 1
			case len(b) == 0:
				order = -1
			case a[0] != b[0]: // the same needs no look
				order = a[0].Key.WithoutKind().Compare(b[0].Key.WithoutKind())
			}
			var old, f *Frontend
			if order <= 0 {
				old, a = a[0], a[1:]
			}
			if order >= 0 {
				f, b = b[0], b[1:]
			}
			if !yield(old, f) {
				return
			}
		}
	}
}

// Key returns the name of the service.
func (ch ServiceChange) Key() source.Key { return cmp.Or(ch.New, ch.Old).Key }
