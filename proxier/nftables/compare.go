package nftables

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
)

// A difference is what differs between the table in the kernel and what it should hold.
type difference struct {
	want   *layout.Content
	counts map[layout.Set]int // of the elements of want
	have   *nft.Listing       // nil: there is no table

	replace bool // the table must be removed: it holds foreign objects, or refused a change
	rewrite bool // all rules and chains are made again, and the sets that differ
	wake    bool // the table is dormant: no packet meets it

	unlisted bool // elements that should not be there were not looked for in the largest sets

	elements     map[layout.Set]*setDifference // of sets that stay, where they differ
	staleTickets []nft.Element                 // whose endpoint has left
}

// compare reads our table and returns how it differs from want. A foreign commit
// meanwhile makes it start again. To be quick it lists no set that should have many
// elements, and finds only those that are missing or differ in it.
func (t *tableConn) compare(ctx context.Context, want *layout.Content, quick bool) (*difference, error) {
	const attempts = 10
	for n := 1; ; n++ {
		d, err := t.compareOnce(ctx, want, quick)
		changed := errors.Is(err, nft.ErrChanged) || errors.Is(err, unix.ENOENT) // a set has gone
		if !changed || n == attempts {
			return d, err
		}
	}
}

// compareOnce fails with nft.ErrChanged where another process commits meanwhile.
func (t *tableConn) compareOnce(ctx context.Context, want *layout.Content, quick bool) (*difference, error) {
	t.reads++
	have, err := t.conn.List(t.Table())
	d := &difference{want: want, have: have, counts: want.Counts(), elements: map[layout.Set]*setDifference{}}
	if err != nil || have == nil {
		return d, err
	}
	d.replace = d.have.Others > 0
	if d.replace {
		return d, nil
	}
	d.wake = d.have.Dormant
	d.rewrite = !d.sameChains() || !d.sameSets() || !sameFlows(d.have, want.Flowtable)
	for _, s := range layout.SetsInUse(d.counts) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		proxier.Progressed(ctx)
		if !d.hasSet(s) {
			continue
		}
		if err := t.compareElements(d, s, quick); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// compareElements adds to d what differs between the elements of a set. Of the dynamic
// sets, to which packets add, only tickets can have elements that should not be there.
func (t *tableConn) compareElements(d *difference, s layout.Set, quick bool) (err error) {
	diff, rec := &setDifference{}, d.want.Sets[s]
	many := rec != nil && rec.Count() > manyElements && !s.IsInterval()
	switch {
	case s == layout.Tickets:
		d.staleTickets, err = t.staleTickets(d.want.Sets[layout.PoolTargets])
	case s.IsDynamic():
	case many && (quick || s.FullSlots()):
		diff, err = t.compareByKey(s, rec)
		d.unlisted = d.unlisted || !s.FullSlots()
	default:
		diff, err = t.compareSet(s, rec)
	}
	if err == nil && !diff.empty() {
		d.elements[s] = diff
	}
	return err
}

func (d *difference) sameChains() bool {
	return len(d.want.Chains) == len(d.have.Chains) && !slices.ContainsFunc(d.want.Chains, func(c *layout.Chain) bool { return !d.sameChain(c) })
}

func (d *difference) sameChain(c *layout.Chain) bool { return c.IsIn(d.have) }

func (d *difference) sameSets() bool {
	sets := layout.SetsInUse(d.counts)
	return len(sets) == len(d.have.Sets) && !slices.ContainsFunc(sets, func(s layout.Set) bool { return !d.hasSet(s) })
}

// hasSet reports whether the kernel has a set as it should be, whatever is in it.
func (d *difference) hasSet(s layout.Set) bool {
	return d.have != nil && !d.replace && s.IsIn(d.have, d.want.Fam)
}

// sameStructure reports whether a table has exactly these chains, rules and sets,
// whatever is in them.
func sameStructure(d *layout.Dialect, have *nft.Listing, chains map[string]*layout.Chain, sets []layout.Set, flows *nft.Flowtable) bool {
	same := !have.Dormant && sameFlows(have, flows) && have.Others == 0 && len(have.Chains) == len(chains) && len(have.Sets) == len(sets)
	for _, c := range chains {
		same = same && c.IsIn(have)
	}
	for _, s := range sets {
		same = same && s.IsIn(have, d.Fam)
	}
	return same
}

// empty reports whether there is nothing to do.
func (d *difference) empty() bool {
	return d.have != nil && !d.replace && !d.rewrite && !d.wake && len(d.elements) == 0 && len(d.staleTickets) == 0
}

// nameChanges calls add with what becomes of objects that are not as they should be: of those of want, in
// their order, then of those that should not be there.
func nameChanges[T, H any](want []T, have map[string]H, name func(T) string, same func(T) bool, add func(op, name string)) {
	known := make(map[string]bool, len(want))
	for _, w := range want {
		n := name(w)
		known[n] = true
		if _, there := have[n]; !there {
			add("add", n)
		} else if !same(w) {
			add("change", n)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(have)) {
		if !known[n] {
			add("remove", n)
		}
	}
}

func (d *difference) setChanges(add func(op, name string)) {
	nameChanges(layout.SetsInUse(d.counts), d.listing().Sets, layout.Set.Name, d.hasSet, add)
}

// listing returns the table in the kernel, which is empty where there is none.
func (d *difference) listing() *nft.Listing { return cmp.Or(d.have, new(nft.Listing)) }

// allEdits returns the edits of every set but the dynamic ones.
func (d *difference) allEdits() (list []layout.Edits) {
	for _, s := range layout.SetsInUse(d.counts) {
		if !s.IsDynamic() {
			list = append(list, d.edits(s))
		}
	}
	return list
}

// edits returns what makes the elements of a set what they should be.
func (d *difference) edits(s layout.Set) layout.Edits {
	rec, diff := d.want.Sets[s], d.elements[s]
	switch {
	case !d.hasSet(s):
		return layout.Edits{Set: s, Added: rec.All()}
	case diff == nil:
		return layout.Edits{Set: s}
	}
	return layout.Edits{Set: s, Added: rec.Some(diff.missing), Changed: rec.Some(diff.changed), Removed: slices.Values(diff.extra)}
}

// hooks reports whether a table has base chains: whether packets meet it.
func hooks(l *nft.Listing) bool {
	for _, c := range l.Chains {
		if c.Hook != nil {
			return true
		}
	}
	return false
}

// sameFlows reports whether a table has exactly this flow table; nil: none.
func sameFlows(have *nft.Listing, want *nft.Flowtable) bool {
	if want == nil {
		return len(have.Flowtables) == 0
	}
	return len(have.Flowtables) == 1 && want.Equal(have.Flowtables[want.Name])
}
