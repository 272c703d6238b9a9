package nftables

import (
	"context"
	"errors"
	"maps"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
)

// A difference is what differs between the table in the kernel and what it should hold.
type difference struct {
	want   *layout.Content
	target *nft.Listing // how the kernel lists want
	sets   []layout.Set // of these, in order
	have   *nft.Listing // nil: there is no table

	replace bool // the table must be removed: it holds foreign objects, or refused a change
	rewrite bool // all rules and chains are made again, and the sets that differ
	wake    bool // the table is dormant: no packet meets it

	unlisted bool // elements that should not be there were not looked for in the largest sets

	elements map[layout.Set]*layout.Edits // where they differ; of tickets, those whose endpoint has left
}

// newDifference compares all but elements. A table that must be replaced counts as one without sets.
func newDifference(want *layout.Content, have *nft.Listing, replace bool) *difference {
	d := &difference{want: want, target: want.Listing(), have: have, replace: replace}
	d.sets = layout.SetsInUse(want.Counts())
	if have != nil && !replace {
		d.replace, d.wake, d.rewrite = have.Others > 0, have.Dormant, !have.Equal(d.target)
	}
	return d
}

// compareElements fills elements, by see where the kernel has the set. Of the dynamic sets, to which packets add, only
// tickets can have elements that should not be there.
func (d *difference) compareElements(see func(*layout.Edits) error) error {
	d.elements = map[layout.Set]*layout.Edits{}
	for _, s := range d.sets {
		if s.IsDynamic() && s != layout.Tickets {
			continue
		}
		e := layout.NewEdits(s, d.want.Records(s))
		if d.hasSet(s.Name()) {
			if err := see(e); err != nil {
				return err
			}
		}
		if !e.Empty() {
			d.elements[s] = e
		}
	}
	return nil
}

// compare reads our table and returns how it differs from want. A foreign commit
// meanwhile makes it start again. To be quick it lists no set that should have many
// elements, and finds only those that are missing or differ in it; missing slots it adds.
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
	if err != nil {
		return nil, err
	}
	d := newDifference(want, have, false)
	return d, d.compareElements(func(e *layout.Edits) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		proxier.Progressed(ctx)
		return t.seeElements(ctx, d, e, quick)
	})
}

// manyElements is how many elements are listed at most where asking by key will do: of twice as many, listing
// takes four times as long, 0.3 s for 100,000 of them and a minute for a million. It is less in tests.
var manyElements = 100_000

// seeElements reads the elements of a set. It asks for each that a listing left out, as it may exist, and for all
// where there are too many to be listed: no packet meets others of full slots, as every frontend of the size has all.
func (t *tableConn) seeElements(ctx context.Context, d *difference, e *layout.Edits, quick bool) error {
	name := e.Set.Name()
	if e.Set == layout.Tickets {
		targets := d.want.Records(layout.PoolTargets)
		return t.conn.Scan(t.Table(), name, func(el *nft.Element) error {
			if len(el.Key) == len(layout.PoolKey{}) && targets.Find(el.Key) < 0 {
				e.See(el)
			}
			return nil
		})
	}
	if quick && e.Set.HasSlots() && e.Want.Count() > manyElements/10 {
		if ensured, err := t.ensure(ctx, e); ensured || err != nil {
			return err
		}
	}
	if e.Want.Count() > manyElements && !e.Set.AdmitsSources() && (quick || e.Set.FullSlots()) {
		d.unlisted = d.unlisted || !e.Set.FullSlots()
	} else if err := t.conn.Scan(t.Table(), name, func(el *nft.Element) error { e.See(el); return nil }); err != nil {
		return err
	}
	missing := e.Missing()
	return t.conn.Get(t.Table(), name, len(missing), func(i int) []byte { return e.Want.Key(missing[i]) },
		func(i int, el *nft.Element) { e.SeeKey(missing[i], el) })
}

// ensure adds all elements of a map of slots: the kernel compares them with those that it has, in half of the time that
// it takes to list them, or to ask for each. Slots may come before all else, as a packet meets them only once its frontend
// is one of their size. It reports whether the map holds them all, and no others, as far as these count: see seeElements.
func (t *tableConn) ensure(ctx context.Context, e *layout.Edits) (ensured bool, err error) {
	name, want := e.Set.Name(), e.Want.Count()
	othersCount := want <= manyElements || !e.Set.FullSlots()
	if _, known, err := t.conn.Count(t.Table(), name); err != nil || othersCount && !known {
		return false, err
	}
	t.batch.Reset()
	most := min(chunkBytes, t.conn.MaxBatch())
	for el := range e.Want.All() {
		if t.batch.Len()+el.Size(name) > most {
			if err = t.ensureBatch(ctx); err != nil {
				break
			}
		}
		t.batch.AddElement(name, el)
	}
	if err == nil {
		err = t.ensureBatch(ctx)
	}
	if _, refused := errors.AsType[*nft.CommitError](err); refused { // a slot has another target
		return false, nil
	}
	if err != nil {
		return false, err
	}
	n, _, err := t.conn.Count(t.Table(), name)
	if ensured = err == nil && (n == want || !othersCount); ensured {
		e.SeeAll()
	}
	return ensured, err
}

func (t *tableConn) ensureBatch(ctx context.Context) error {
	defer t.batch.Reset()
	proxier.Progressed(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.conn.Ensure(t.batch)
}

// hasSet reports whether the kernel has a set as it should be, whatever is in it.
func (d *difference) hasSet(name string) bool {
	if d.have == nil || d.replace || d.target.Sets[name] == nil || d.have.Sets[name] == nil {
		return false
	}
	return d.have.Sets[name].Equal(d.target.Sets[name])
}

// empty reports whether there is nothing to do.
func (d *difference) empty() bool {
	return d.have != nil && !d.replace && !d.rewrite && !d.wake && len(d.elements) == 0
}

// keepsFlows reports whether the flow table stays when the rest is written again: its connections do
// too, and some hardware takes no second one meanwhile.
func (d *difference) keepsFlows() bool {
	return d.have != nil && !d.replace && maps.EqualFunc(d.have.Flowtables, d.target.Flowtables, (*nft.Flowtable).Equal)
}
