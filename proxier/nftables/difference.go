package nftables

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// A difference is what is between the table in the kernel and what it should hold.
type difference struct {
	want   *content
	counts map[set]int // of the elements of want
	chains []*kernelChain
	have   *nft.Listing // nil: there is no table

	replace bool // the table holds what can only be removed with it
	rewrite bool // of all rules, chains and sets that differ
	wake    bool // the table is there, but no packet meets it

	elements     map[set]*setDifference // of sets that stay, where there is one
	staleTickets []nft.Element          // whose endpoint has left
}

// A setDifference is what is between the elements of a set.
type setDifference struct {
	missing, changed []int         // numbers of records
	extra            []nft.Element // whose keys no record has
}

// compare reads our table and returns what is between it and want. What somebody
// commits meanwhile makes it start again.
func (t *tableConn) compare(ctx context.Context, want *content) (*difference, error) {
	const attempts = 10
	for n := 1; ; n++ {
		d, err := t.read(ctx, want)
		if !errors.Is(err, nft.ErrChanged) || n == attempts {
			return d, err
		}
	}
}

func (t *tableConn) read(ctx context.Context, want *content) (*difference, error) {
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
	d.rewrite = !d.sameChains() || !d.sameSets()
	for _, s := range setsInUse(d.counts) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		proxier.Progressed(ctx)
		if !d.hasSet(s) {
			continue
		}
		diff := &setDifference{}
		switch {
		case s.kind == tickets:
			d.staleTickets, err = t.staleTickets(want.sets[set{kind: poolTargets}])
		case s.isDynamic():
		case s.kind == slotMap && s.size <= exactSizes && want.sets[s].count() > manyElements:
			diff, err = t.compareByKey(s, want.sets[s])
		default:
			diff, err = t.compareSet(s, want.sets[s])
		}
		if err != nil {
			return nil, err
		}
		if !diff.empty() {
			d.elements[s] = diff
		}
	}
	return d, nil
}

func (d *difference) sameChains() bool {
	if len(d.have.Chains) != len(d.chains) {
		return false
	}
	return !slices.ContainsFunc(d.chains, func(c *kernelChain) bool { return !d.sameChain(c) })
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

// keeps tells whether the kernel has a set as it should be, whatever is in it.
func (d *difference) hasSet(s set) bool {
	if d.have == nil || d.replace {
		return false
	}
	return s.isIn(d.have, d.want.fam)
}

// isIn reports whether a table has the set, whatever is in it.
func (s set) isIn(l *nft.Listing, fam proxier.Family) bool {
	have := l.Sets[s.name()]
	return have != nil && have.Equal(s.define(fam))
}

// What is known of a record: the kernel has none with its key, the same, or another.
type presence uint8

const (
	absent presence = iota
	equal
	differs
)

func (r *records) presence(i int, e *nft.Element) presence {
	if bytes.Equal(r.data(i), e.Data) && r.comment(i) == e.Comment {
		return equal
	}
	return differs
}

// compareSet compares the elements of a set with those that the kernel lists.
func (t *tableConn) compareSet(s set, rec *records) (*setDifference, error) {
	seen := make([]presence, rec.count())
	diff := &setDifference{}
	var key []byte
	err := t.conn.Scan(t.table(), s.name(), func(e *nft.Element) error {
		key = append(append(key[:0], e.Key...), e.KeyEnd...)
		if i := rec.find(key); i >= 0 {
			seen[i] = rec.presence(i, e)
		} else {
			diff.extra = append(diff.extra, clone(e))
		}
		return nil
	})
	if err == nil && !rec.interval {
		err = t.confirm(s, rec, seen)
	}
	if err != nil {
		return nil, err
	}
	diff.extra = withoutDuplicates(diff.extra)
	diff.classify(seen)
	return diff, nil
}

// confirm asks for what a listing left out: it may be there.
func (t *tableConn) confirm(s set, rec *records, seen []presence) error {
	var missing []int
	for i, found := range seen {
		if found == absent {
			missing = append(missing, i)
		}
	}
	return t.conn.Get(t.table(), s.name(), len(missing), func(i int) []byte { return rec.key(missing[i]) },
		func(i int, e *nft.Element) { seen[missing[i]] = rec.presence(missing[i], e) })
}

// withoutTwins returns elements without those that were listed twice.
func withoutDuplicates(list []nft.Element) []nft.Element {
	slices.SortFunc(list, func(a, b nft.Element) int { return bytes.Compare(a.Key, b.Key) })
	return slices.CompactFunc(list, func(a, b nft.Element) bool {
		return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.KeyEnd, b.KeyEnd)
	})
}

// manyElements is how many elements are listed at most: of twice as many, listing
// takes four times as long, 0.3 s for 100,000 of them.
const manyElements = 100_000

// compareWanted asks the kernel for each slot that should be there. What else
// there may be no packet meets: every frontend of the size has all its slots.
func (t *tableConn) compareByKey(s set, rec *records) (*setDifference, error) {
	seen, diff := make([]presence, rec.count()), &setDifference{}
	err := t.conn.Get(t.table(), s.name(), rec.count(), rec.key, func(i int, e *nft.Element) { seen[i] = rec.presence(i, e) })
	diff.classify(seen)
	return diff, err
}

// note adds the records that are missing or differ.
func (d *setDifference) classify(seen []presence) {
	for i, found := range seen {
		switch found {
		case absent:
			d.missing = append(d.missing, i)
		case differs:
			d.changed = append(d.changed, i)
		}
	}
}

func (d *setDifference) empty() bool { return len(d.missing)+len(d.changed)+len(d.extra) == 0 }

func clone(e *nft.Element) nft.Element {
	return nft.Element{Key: bytes.Clone(e.Key), KeyEnd: bytes.Clone(e.KeyEnd), Data: bytes.Clone(e.Data), Comment: e.Comment}
}

// empty tells whether there is nothing to do.
func (d *difference) empty() bool {
	return d.have != nil && !d.replace && !d.rewrite && !d.wake && len(d.elements) == 0 && len(d.staleTickets) == 0
}

// changes returns the difference for a reader.
func (d *difference) changes() []proxier.Change {
	var list []proxier.Change
	table := d.want.keyword + " " + tableName
	add := func(op, object string) { list = append(list, proxier.Change{Op: op, Object: object}) }
	switch {
	case d.have == nil:
		add("add", "table "+table)
	case d.replace, d.wake:
		add("change", "table "+table)
	}
	d.chainChanges(func(op, name string) { add(op, "chain "+table+" "+name) })
	d.setChanges(func(op, name string) { add(op, "set "+table+" "+name) })
	for _, s := range setsInUse(d.counts) {
		d.elementChanges(s, func(op string, e nft.Element) {
			add(op, "element "+table+" "+s.name()+" { "+elementText(s, d.want.fam, e)+" }")
		})
	}
	return list
}

func (d *difference) chainChanges(add func(op, name string)) {
	known := map[string]bool{}
	for _, c := range d.chains {
		known[c.Name] = true
		switch {
		case d.have == nil || d.have.Chains[c.Name] == nil:
			add("add", c.Name)
		case !d.sameChain(c):
			add("change", c.Name)
		}
	}
	if d.have == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.have.Chains)) {
		if !known[name] {
			add("remove", name)
		}
	}
}

func (d *difference) setChanges(add func(op, name string)) {
	known := map[string]bool{}
	for _, s := range setsInUse(d.counts) {
		known[s.name()] = true
		switch {
		case d.have == nil || d.have.Sets[s.name()] == nil:
			add("add", s.name())
		case !d.hasSet(s):
			add("change", s.name())
		}
	}
	if d.have == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.have.Sets)) {
		if !known[name] {
			add("remove", name)
		}
	}
}

// elementChanges calls do with each element that is added, changed or removed.
func (d *difference) elementChanges(s set, do func(op string, e nft.Element)) {
	if s.isDynamic() {
		d.ticketChanges(s, do)
		return
	}
	e := d.edits(s)
	for _, part := range []struct {
		op       string
		elements iter.Seq[nft.Element]
	}{{"remove", e.removed}, {"change", e.changed}, {"add", e.added}} {
		if part.elements == nil {
			continue
		}
		for e := range part.elements {
			do(part.op, e)
		}
	}
}

func (d *difference) ticketChanges(s set, do func(op string, e nft.Element)) {
	if s.kind != tickets {
		return
	}
	for _, e := range d.staleTickets {
		do("remove", e)
	}
}

// allEdits returns those of every set; packets fill that of clients.
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
