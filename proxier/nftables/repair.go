package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// repair makes the kernel hold st. It reads our table unless the mirror proves that the kernel holds st, or the table was
// just recreated.
func (b *Backend) repair(ctx context.Context, st *policy.State, recreated bool) error {
	if err := layout.CheckHost(&st.Host); err != nil {
		return err
	}
	b.hooks.HoldOrLog(b.flowtableState.Log, "family", b.Fam)
	suspect := b.needsRepair.Swap(false)
	suspect = b.uncertain.Swap(false) || suspect
	foreign, _, err := b.foreignCommits(b.conn) // before the table is read, so that later ones are noticed
	if err != nil {
		return err
	}
	flows, missing := b.decideFlowtable()
	want := layout.RenderWith(st, flows)
	checksums := want.Checksums()
	if !suspect && !recreated && b.holds(st, checksums, foreign) && flows.Equal(b.mirror.Flows) {
		b.flowtableState.holds(flows, missing)
		return nil
	}
	b.setMirror(nil)
	err = b.writeContent(ctx, want, recreated)
	if flows != nil && refusedFlows(err) { // an interface may have gone meanwhile
		b.flowtableState.failed(err)
		want = layout.Render(st)
		err = b.writeContent(ctx, want, recreated)
	}
	if err != nil {
		return err
	}
	b.flowtableState.holds(want.Flowtable, missing)
	b.foreign.Store(foreign)
	b.loaded = true
	b.setMirror(layout.NewMirror(want, checksums, &st.Host))
	return nil
}

// refusedFlows reports whether the kernel refused a change for its flow table, or for the rule that fills that.
func refusedFlows(err error) bool {
	var refused *nft.CommitError
	return errors.As(err, &refused) && refused.AddsFlows()
}

// holds reports whether the kernel is known to hold what it should.
func (b *Backend) holds(st *policy.State, checksums map[layout.Set]layout.Checksum, foreign uint32) bool {
	if b.mirror == nil || !maps.Equal(b.mirror.Checksums, checksums) || !layout.SameHost(&b.mirror.Host, &st.Host) {
		return false
	}
	return b.watching.Load() || foreign == b.foreign.Load() // no event was heard
}

// writeContent makes our table hold what it should, by what differs, or all of it where it was recreated. If the kernel refuses a change, as
// foreign objects that we do not know refer to ours, the whole table is replaced, in
// one transaction with the chains of the new one; not where it refused the flow table, which costs less to go without than affinity.
func (b *Backend) writeContent(ctx context.Context, want *layout.Content, recreated bool) error {
	if !recreated {
		d, err := b.compare(ctx, want, !b.loaded)
		if err == nil {
			b.unlisted.Store(d.unlisted)
			err = b.write(ctx, d)
		}
		if refused, is := errors.AsType[*nft.CommitError](err); !is || refused.AddsFlows() {
			return err
		}
	}
	d := newDifference(want, nft.NewListing(), true)
	_ = d.compareElements(nil) // there are none
	return b.write(ctx, d)
}

// write sends a difference, in chunks. Where packets have met the table, the chains
// come first, as they translate for existing connections; rules that refuse come
// after all elements. The first time, when another mode may still serve, the chains
// are hooked in after all elements.
func (b *Backend) write(ctx context.Context, d *difference) error {
	if d.empty() {
		return nil
	}
	w := b.writer(ctx, chunkBytes)
	met := b.loaded || d.replace // packets meet the table
	if d.have != nil {
		for _, c := range d.have.Chains {
			met = met || c.Hook != nil
		}
	}
	chains := d.have == nil || d.replace || d.rewrite
	if d.rewrite && len(d.have.Rules["prerouting"]) > 0 {
		w.missingSets(d)
	}
	w.limit = b.conn.MaxBatch() // packets meet the rules of before, or all of these
	w.prepare(d)
	if chains && met {
		w.chains(d.want.Chains)
	}
	w.limit = min(w.limit, chunkBytes)
	ofDynamic := func(e *layout.Edits) bool { return e.Set.IsDynamic() }
	w.elements(slices.DeleteFunc(slices.Collect(maps.Values(d.elements)), ofDynamic))
	if chains && !met {
		w.chains(d.want.Chains)
	}
	if chains {
		w.deferredRules(d.want.Chains)
	}
	if w.flush(); w.err != nil {
		return w.err
	}
	var left []layout.PoolKey
	if tickets := d.elements[layout.Tickets]; tickets != nil {
		for e := range tickets.Removed() {
			left = append(left, layout.PoolKey(e.Key))
		}
	}
	return b.revoke(ctx, left)
}

// missingSets adds and fills the sets that the kernel does not have. The rules that it has, such as those of an earlier
// version, use none of them, and serve until all that the new ones need is there.
func (w *writer) missingSets(d *difference) {
	var edits []*layout.Edits
	for _, s := range d.sets {
		if d.have.Sets[s.Name()] != nil || s.IsDynamic() {
			continue
		}
		w.sets([]layout.Set{s})
		d.have.Sets[s.Name()] = d.target.Sets[s.Name()]
		if e := d.elements[s]; e != nil {
			edits = append(edits, e)
			delete(d.elements, s)
		}
	}
	w.elements(edits)
}

// prepare removes what differs, and adds the missing sets. Foreign maps are removed
// before the chains that they may jump to.
func (w *writer) prepare(d *difference) {
	switch {
	case d.replace:
		w.batch.EnsureTable() // removing what does not exist is an error
		w.batch.DeleteTable()
		w.batch.AddTable(layout.TableComment)
	case d.have == nil:
		w.batch.AddTable(layout.TableComment)
	case d.wake:
		w.batch.AddTable(layout.TableComment)
		w.flush() // the kernel accepts no new base chains in the same transaction
	}
	if d.have != nil && d.rewrite && !d.replace {
		w.clear(d)
	}
	if (d.have == nil || d.replace || d.rewrite) && !d.keepsFlows() {
		w.flowtable(d.target.Flowtables[layout.FlowtableName])
	}
	w.sets(slices.DeleteFunc(slices.Clone(d.sets), func(s layout.Set) bool { return d.hasSet(s.Name()) }))
}

// clear removes all rules and chains, and the sets that differ.
func (w *writer) clear(d *difference) {
	w.batch.FlushChain("")
	for name := range d.have.Sets {
		if !d.hasSet(name) {
			w.batch.DeleteSet(name)
		}
	}
	for name := range d.have.Chains {
		w.batch.DeleteChain(name)
	}
	if d.keepsFlows() {
		return
	}
	for name := range d.have.Flowtables {
		w.batch.DeleteFlowtable(name)
	}
}

// restoreChains restores the chains at once if another process has removed our table, made
// it dormant, or modified its rules. The kernel keeps the connections, but while
// nothing translates their packets, these reach the wrong socket, which resets them.
// It reports whether the table was recreated: with chains, without elements. A flow table that the
// kernel refuses, as an interface has gone, is left out until repair decides on it: all else waits for none.
func (b *Backend) restoreChains(ctx context.Context) (recreated bool, err error) {
	if b.mirror == nil || !b.needsRepair.Load() {
		return false, nil
	}
	recreated, err = b.restoreMirror(ctx, b.mirror)
	if b.mirror.Flows != nil && refusedFlows(err) {
		b.dropFlows(b.Dialect)
		recreated, err = b.restoreMirror(ctx, b.mirror)
	}
	return recreated, err
}

// restoreMirror restores the chains of a mirror, with the flow table that it has.
func (t *tableConn) restoreMirror(ctx context.Context, m *layout.Mirror) (recreated bool, err error) {
	exists, dormant, err := t.conn.Lookup(t.Table())
	switch {
	case err != nil:
		return false, err
	case exists && !dormant:
		return false, t.restoreStructure(ctx, m)
	}
	w := t.writer(ctx, chunkBytes)
	t.batch.AddTable(layout.TableComment)
	if !exists {
		w.flowtable(m.Flows)
		w.sets(layout.SetsInUse(m.Counts()))
		w.chains(m.InOrder(t.Dialect))
	}
	w.flush()
	return !exists && w.err == nil, w.err
}

// restoreStructure restores chains and rules without reading elements, of which
// there may be a million. Sets that differ are made again; the deferred rules
// then wait for their elements. A flow table that only lost an interface is left to repair.
func (t *tableConn) restoreStructure(ctx context.Context, m *layout.Mirror) error {
	have, err := t.conn.List(t.Table())
	switch {
	case errors.Is(err, nft.ErrChanged): // repair reads all of it, and tries again
		return nil
	case err != nil:
		return err
	case have == nil || have.Others > 0:
		return nil
	}
	d := &difference{target: m.Listing(t.Dialect), sets: layout.SetsInUse(m.Counts()), have: have, rewrite: true}
	same := *d.target
	same.Flowtables = maps.Clone(have.Flowtables)
	maps.DeleteFunc(same.Flowtables, func(name string, _ *nft.Flowtable) bool { return name != layout.FlowtableName })
	if have.Equal(&same) {
		return nil
	}
	chains, w := m.InOrder(t.Dialect), t.writer(ctx, math.MaxInt)
	w.prepare(d)
	w.chains(chains)
	if maps.EqualFunc(have.Sets, d.target.Sets, (*nft.Set).Equal) {
		w.deferredRules(chains)
	}
	w.flush()
	return w.err
}

// Warnings implements proxier.Warner.
func (b *Backend) Warnings() []string {
	b.flowtableState.mu.Lock()
	defer b.flowtableState.mu.Unlock()
	if b.flowtableState.warning == "" {
		return nil
	}
	return []string{fmt.Sprintf("[nftables] flowtable: %s (%s)", b.flowtableState.warning, b.Fam)}
}

// decideFlowtable returns the flow table that the table is to have; nil: none. What this kernel
// does not take is tried again by the next repair, and an interface that comes makes a look report
// a difference. warning says what is missing.
func (b *Backend) decideFlowtable() (flows *nft.Flowtable, warning string) {
	s := &b.flowtableState
	if len(s.Flowtable) == 0 {
		return nil, ""
	}
	flows, links, warning := b.possibleFlowtable()
	s.mu.Lock()
	s.links = links
	s.mu.Unlock()
	if flows == nil {
		s.warn(warning)
	}
	return flows, warning
}

// possibleFlowtable returns what this kernel takes of the flow table of the settings; nil: nothing.
// links are those configured interfaces that exist, and warning says what is missing.
func (b *Backend) possibleFlowtable() (flows *nft.Flowtable, links map[string]int, warning string) {
	s := &b.flowtableState
	if len(s.Flowtable) == 0 {
		return nil, nil, ""
	}
	links, err := s.present()
	var warnings []string
	if err != nil {
		s.mu.Lock()
		links = s.links // they may well be there
		s.mu.Unlock()
		warnings = append(warnings, err.Error())
	} else if missing := s.missing(links); len(missing) > 0 {
		warnings = append(warnings, "there is no interface "+strings.Join(missing, ", "))
	}
	flows, why := b.accepted(slices.Sorted(maps.Keys(links)), s.Offload, b.mirror)
	if why != "" {
		warnings = append(warnings, why)
	}
	if flows == nil {
		warnings = append(warnings, "packets take the usual way")
	}
	return flows, links, strings.Join(warnings, "; ")
}
