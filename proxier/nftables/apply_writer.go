package nftables

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
)

// loadOrder is the order in which elements are added to sets that packets meet, and
// the reverse of that in which they are removed, where they are too many for one
// transaction. A frontend comes first: from then on packets to it that find no slot
// are dropped, and sent again, rather than refused. What restricts and marks its
// packets comes before its size, from which on they are balanced.
var loadOrder = []kind{
	nodeAddrs, exempt, frontends, sourceRanges, restricted, masquerade, masqueradeNonLocal, masqueradeHost,
	noEndpointsReject, noEndpointsDrop, hairpins, poolTargets, poolSlots, affinityPool, slotMap, affinityBySize, affinityByTimeout, withAffinity, bySize, vips,
}

// A writer fills the batch of a tableConn, and commits it whenever it is full.
// After an error, which it keeps, it does nothing.
type writer struct {
	*tableConn
	ctx   context.Context
	limit int // bytes of a transaction
	err   error
}

// writer returns one whose transactions have at most so many bytes, or fewer where
// the kernel accepts no more from us.
func (t *tableConn) writer(ctx context.Context, most int) *writer {
	t.batch.Reset()
	return &writer{tableConn: t, ctx: ctx, limit: min(most, t.conn.MaxBatch())}
}

// room makes room for so many bytes.
func (w *writer) room(n int) {
	if w.batch.Len()+n > w.limit {
		w.flush()
	}
}

// flush commits the batch.
func (w *writer) flush() {
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	if w.err == nil {
		w.err = w.commit()
		proxier.Progressed(w.ctx)
	}
	w.batch.Reset()
}

func (w *writer) sets(list []set) {
	for _, s := range list {
		w.room(objectSize)
		w.batch.AddSet(s.define(w.fam))
	}
}

// elements applies edits: first what adds, then what removes.
func (w *writer) elements(list []edits) {
	slices.SortFunc(list, func(a, b edits) int {
		return cmp.Or(cmp.Compare(slices.Index(loadOrder, a.set.kind), slices.Index(loadOrder, b.set.kind)), a.set.compare(b.set))
	})
	for _, e := range list {
		if e.set.isInterval() { // the kernel refuses one that overlaps with an existing one
			w.each(e.set, e.removed, w.batch.DeleteElement)
		}
		w.change(e.set, e.changed)
		w.each(e.set, e.added, w.batch.AddElement)
	}
	for _, e := range slices.Backward(list) {
		if !e.set.isInterval() {
			w.each(e.set, e.removed, w.batch.DeleteElement)
		}
	}
}

// each puts elements of a set into the batch.
func (w *writer) each(s set, elements iter.Seq[nft.Element], do func(set string, e nft.Element)) {
	if elements == nil {
		return
	}
	name := s.name()
	for e := range elements {
		w.room(e.Size(name))
		if w.err != nil {
			return
		}
		do(name, e)
	}
}

// changedAtOnce is how many elements are removed and added again in one transaction at least.
const changedAtOnce = 100

// change replaces elements of a set: the kernel can only remove and add them.
func (w *writer) change(s set, elements iter.Seq[nft.Element]) {
	if elements == nil {
		return
	}
	name := s.name()
	for part := range slices.Chunk(slices.Collect(elements), changedAtOnce) {
		size := 0
		for _, e := range part {
			size += 2 * e.Size(name)
		}
		w.room(size)
		for _, e := range part {
			w.batch.DeleteElement(name, e)
		}
		for _, e := range part {
			w.batch.AddElement(name, e)
		}
	}
}

// chains adds chains, without their deferred rules.
func (w *writer) chains(list []*kernelChain) {
	for _, c := range list {
		w.room(c.size())
		w.batch.AddChain(&c.Chain)
		for _, r := range c.rules[:len(c.rules)-c.deferred] {
			w.batch.AddRule(c.Name, r)
		}
	}
}

// deferredRules adds the rules that chains leaves out.
func (w *writer) deferredRules(list []*kernelChain) {
	for _, c := range list {
		for _, r := range c.rules[len(c.rules)-c.deferred:] {
			w.room(ruleSize(r))
			w.batch.AddRule(c.Name, r)
		}
	}
}

// changeChains adds and rewrites chains, and removes those that nothing jumps to any
// more. Each is added before another jumps to it.
func (w *writer) changeChains(ch chainChanges) {
	for _, c := range ch.fresh {
		w.room(c.size())
		w.batch.AddChain(&c.Chain)
		w.rules(c)
	}
	for _, c := range ch.rewritten {
		w.room(c.size())
		w.batch.FlushChain(c.Name)
		w.rules(c)
	}
	for _, name := range ch.gone {
		w.room(objectSize)
		w.batch.FlushChain(name)
	}
	for _, name := range ch.gone {
		w.room(objectSize)
		w.batch.DeleteChain(name)
	}
}

func (w *writer) rules(c *kernelChain) {
	for _, r := range c.rules {
		w.batch.AddRule(c.Name, r)
	}
}

// objectSize is an upper bound of what a set, a rule or a chain takes in a batch, in
// bytes, without expressions: names, a comment, and some attributes.
const objectSize = 512

func ruleSize(r nft.Rule) int { return objectSize + len(r.Exprs) }

func (c *kernelChain) size() int {
	n := 2 * objectSize
	for _, r := range c.rules {
		n += ruleSize(r)
	}
	return n
}

func (w *writer) flowtable(f *nft.Flowtable) {
	if f != nil {
		w.room(objectSize + 24*len(f.Devices))
		w.batch.AddFlowtable(f)
	}
}
