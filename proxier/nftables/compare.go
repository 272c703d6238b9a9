package nftables

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A difference is what differs between the table in the kernel and what it should hold.
type difference struct {
	want   *content
	counts map[set]int // of the elements of want
	chains []*kernelChain
	have   *nft.Listing // nil: there is no table

	replace bool // the table must be removed: it holds foreign objects, or refused a change
	rewrite bool // all rules and chains are made again, and the sets that differ
	wake    bool // the table is dormant: no packet meets it

	unlisted bool // elements that should not be there were not looked for in the largest sets

	elements     map[set]*setDifference // of sets that stay, where they differ
	staleTickets []nft.Element          // whose endpoint has left
}

// compare reads our table and returns how it differs from want. A foreign commit
// meanwhile makes it start again. To be quick it lists no set that should have many
// elements, and finds only those that are missing or differ in it.
func (t *tableConn) compare(ctx context.Context, want *content, quick bool) (*difference, error) {
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
func (t *tableConn) compareOnce(ctx context.Context, want *content, quick bool) (*difference, error) {
	chains, err := t.marshal(want.chains)
	if err != nil {
		return nil, err
	}
	t.reads++
	d := &difference{want: want, counts: want.counts(), chains: chains, elements: map[set]*setDifference{}}
	if d.have, err = t.conn.List(t.table()); err != nil || d.have == nil {
		return d, err
	}
	d.replace = d.have.Others > 0
	if d.replace {
		return d, nil
	}
	d.wake = d.have.Dormant
	d.rewrite = !d.sameChains() || !d.sameSets() || !sameFlows(d.have, want.flows)
	for _, s := range setsInUse(d.counts) {
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
func (t *tableConn) compareElements(d *difference, s set, quick bool) (err error) {
	diff, rec := &setDifference{}, d.want.sets[s]
	many := rec != nil && rec.count() > manyElements && !rec.interval
	switch {
	case s.kind == tickets:
		d.staleTickets, err = t.staleTickets(d.want.sets[set{kind: poolTargets}])
	case s.isDynamic():
	case many && (quick || s.fullSlots()):
		diff, err = t.compareByKey(s, rec)
		d.unlisted = d.unlisted || !s.fullSlots()
	default:
		diff, err = t.compareSet(s, rec)
	}
	if err == nil && !diff.empty() {
		d.elements[s] = diff
	}
	return err
}

func (d *difference) sameChains() bool {
	return len(d.chains) == len(d.have.Chains) && !slices.ContainsFunc(d.chains, func(c *kernelChain) bool { return !d.sameChain(c) })
}

func (d *difference) sameChain(c *kernelChain) bool { return c.isIn(d.have) }

// isIn reports whether a table has the chain with its rules.
func (c *kernelChain) isIn(l *nft.Listing) bool {
	have := l.Chains[c.Name]
	return have != nil && have.Equal(&c.Chain) && slices.EqualFunc(l.Rules[c.Name], c.rules, nft.Rule.Equal)
}

func (d *difference) sameSets() bool {
	sets := setsInUse(d.counts)
	return len(sets) == len(d.have.Sets) && !slices.ContainsFunc(sets, func(s set) bool { return !d.hasSet(s) })
}

// hasSet reports whether the kernel has a set as it should be, whatever is in it.
func (d *difference) hasSet(s set) bool {
	return d.have != nil && !d.replace && s.isIn(d.have, d.want.fam)
}

// isIn reports whether a table has the set, whatever is in it.
func (s set) isIn(l *nft.Listing, fam policy.Family) bool {
	have := l.Sets[s.name()]
	return have != nil && have.Equal(s.define(fam))
}

// sameStructure reports whether a table has exactly these chains, rules and sets,
// whatever is in them.
func (d *dialect) sameStructure(have *nft.Listing, chains map[string]*kernelChain, sets []set, flows *nft.Flowtable) bool {
	same := !have.Dormant && sameFlows(have, flows) && have.Others == 0 && len(have.Chains) == len(chains) && len(have.Sets) == len(sets)
	for _, c := range chains {
		same = same && c.isIn(have)
	}
	for _, s := range sets {
		same = same && s.isIn(have, d.fam)
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
	nameChanges(setsInUse(d.counts), d.listing().Sets, set.name, d.hasSet, add)
}

// listing returns the table in the kernel, which is empty where there is none.
func (d *difference) listing() *nft.Listing { return cmp.Or(d.have, new(nft.Listing)) }

// edits are the changes to the elements of one set.
type edits struct {
	set                     set
	added, changed, removed iter.Seq[nft.Element] // nil: none
}

// allEdits returns the edits of every set but the dynamic ones.
func (d *difference) allEdits() (list []edits) {
	for _, s := range setsInUse(d.counts) {
		if !s.isDynamic() {
			list = append(list, d.edits(s))
		}
	}
	return list
}

// edits returns what makes the elements of a set what they should be.
func (d *difference) edits(s set) edits {
	rec, diff := d.want.sets[s], d.elements[s]
	switch {
	case !d.hasSet(s):
		return edits{set: s, added: rec.all()}
	case diff == nil:
		return edits{set: s}
	}
	return edits{set: s, added: rec.some(diff.missing), changed: rec.some(diff.changed), removed: slices.Values(diff.extra)}
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
