package nftables

import (
	"context"
	"maps"
	"slices"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// pieceBytes is about how much is sent at once to a table that no packet meets
// yet, some 20,000 elements: the kernel holds a buffer of 4 KiB for each as long
// as it works on a transaction, if anybody listens for events.
const pieceBytes = 1 << 20

// repair makes the kernel hold st. It reads our table only if somebody else may
// have changed it.
func (b *Backend) repair(ctx context.Context, st *proxier.State) error {
	if err := checkHost(&st.Host); err != nil {
		return err
	}
	suspect := b.touched.Swap(false)
	suspect = b.doubted.Swap(false) || suspect
	foreign, err := b.strangers(b.conn) // before the table is read: who comes later is noticed
	if err != nil {
		return err
	}
	want := render(b.dialect, st)
	tallies := want.tallies()
	if !suspect && b.holds(st, tallies, foreign) {
		return nil
	}
	b.know(nil)
	diff, err := b.compare(want)
	if err != nil {
		return err
	}
	if err := b.write(ctx, diff); err != nil {
		return err
	}
	b.foreign.Store(foreign)
	b.settle(st, diff, tallies)
	return nil
}

// holds reports whether the kernel is known to hold what it should.
func (b *Backend) holds(st *proxier.State, tallies map[set]tally, foreign uint32) bool {
	if b.held == nil || !maps.Equal(b.held.tallies, tallies) || !sameHost(&b.held.host, &st.Host) {
		return false
	}
	return b.watching.Load() || foreign == b.foreign.Load() // events would have told
}

// strangers returns how many of the commits in this network namespace were not
// ours. It means something beside another such number only.
func (b *Backend) strangers(conn *nft.Conn) (uint32, error) {
	ours := b.commits.Load()
	g, err := conn.Generation()
	return g.ID - ours, err
}

// sameHost compares what the chains depend on; node addresses are elements.
func sameHost(a, b *proxier.Host) bool {
	return a.MarkBit == b.MarkBit && slices.Equal(a.LocalCIDRs, b.LocalCIDRs) &&
		slices.Equal(a.LocalInterfaces, b.LocalInterfaces) && slices.Equal(a.ServiceCIDRs, b.ServiceCIDRs)
}

// settle remembers what the kernel holds now.
func (b *Backend) settle(st *proxier.State, d *difference, tallies map[set]tally) {
	chains := make(map[string]*written, len(d.chains))
	for _, c := range d.chains {
		chains[c.Name] = c
	}
	b.know(&held{tallies: tallies, chains: chains, pools: d.want.pools, host: st.Host})
}

// write sends a difference: in one transaction, but for the elements of a table
// that no packet meets yet.
func (b *Backend) write(ctx context.Context, d *difference) error {
	if d.empty() {
		return nil
	}
	b.batch.Reset()
	unmet := d.have == nil || d.have != nil && !hooks(d.have)
	b.prepare(d)
	for _, s := range setsInUse(d.want.counts()) {
		if s.isFilled() {
			continue
		}
		var err error
		d.elementChanges(s, func(op string, e nft.Element) {
			if err == nil {
				b.put(op, s, e)
				err = b.piece(ctx, unmet)
			}
		})
		if err != nil {
			return err
		}
	}
	if d.have == nil || d.replace || d.rewrite {
		for _, c := range d.chains {
			b.rules(c)
		}
	}
	if err := b.commit(); err != nil {
		return err
	}
	if b.batch.Len() > pieceBytes { // the memory is not needed again soon
		b.batch = nft.NewBatch(b.table())
	}
	return b.revokeListed(d.tickets)
}

// hooks tells whether packets meet a table.
func hooks(l *nft.Listing) bool {
	for _, c := range l.Chains {
		if c.Hook != nil {
			return true
		}
	}
	return false
}

// prepare removes what is not as it should be, and makes the sets. The chains are
// made by rules: those that packets come by are the last.
func (b *Backend) prepare(d *difference) {
	if d.replace {
		b.batch.DeleteTable()
	}
	if d.have == nil || d.replace || d.wake {
		b.batch.AddTable(tableComment)
	}
	rewrite := d.have != nil && d.rewrite && !d.replace
	if rewrite {
		b.batch.FlushChain("")
		for name := range d.have.Chains {
			b.batch.DeleteChain(name)
		}
	}
	d.setChanges(func(op, name string) {
		if rewrite && op != "add" {
			b.batch.DeleteSet(name)
		}
	})
	for _, s := range setsInUse(d.want.counts()) {
		if !d.keeps(s) {
			b.batch.AddSet(s.define(b.fam))
		}
	}
}

func (b *Backend) put(op string, s set, e nft.Element) {
	if op == "add" {
		b.batch.AddElement(s.name(), e)
	} else {
		b.batch.DeleteElement(s.name(), e)
	}
}

// rules makes a chain with its rules.
func (b *Backend) rules(c *written) {
	b.batch.AddChain(&c.Chain)
	for _, r := range c.rules {
		b.batch.AddRule(c.Name, r)
	}
}

// piece sends what there is so far, if that is much and no packet meets the table.
func (b *Backend) piece(ctx context.Context, unmet bool) error {
	if !unmet || b.batch.Len() < pieceBytes {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	defer b.batch.Reset()
	return b.commit()
}
