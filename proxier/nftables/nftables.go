// Package nftables is the backend that balances with one nftables table a family.
//
//	State ──► layout.Content (pure: elements, chains) ──► difference ──► transactions
//
// Package layout says what the table holds, and has the words for it. This one reads and
// writes the kernel. A change of one endpoint: Sync (nftables.go) applies the Delta, which has services before
// and after, whole or, while a large one grows, in parts. layout.Mirror renders both and makes Edits of what differs; the writer makes one transaction of them
// (apply.go). The first Sync, and one after an error, compares the whole table (repair.go, compare.go), which makes
// Edits too, and writes these. A foreign change: Watch hears it (backend.go), and the next Sync restores the chains and
// repairs the rest in the same way.
//
// Words, besides those of proxier and layout:
//
//   - restore: to put the table and its chains back at once, without reading elements, after
//     another process changed them.
//
// The files; what they use of each other is without cycles (a method may stand in another file than its type):
//
//	table      the connection to one family's table
//	compare    what differs between the table and its content; plan says it in text
//	mirror     the mirror, for looks beside the syncs
//	backend    the Backend, and what it remembers from one call to the next; it hears foreign changes
//	flowtable  the short way of established connections: its interfaces, and what the kernel takes
//	apply      a Delta sent to the kernel, without reading it; apply_tickets: of endpoints that left
//	look       does the table still match the mirror?
//	repair     the table is made to match its content, or its chains restored at once; which flow table it gets
//	objects    what the table has, and lacks, of one frontend, and whom a client keeps, for explain
//	probe      whether this kernel supports all of it
//	nftables   New, Sync, Plan, Cleanup
package nftables

import (
	"context"
	"errors"
	"fmt"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// New returns a Backend for the network namespace of the caller. It fails where
// the kernel lacks something that our rules need, which is probed, whatever its version.
func New(ctx context.Context, fam policy.Family, opts Options) (*Backend, error) {
	b, err := open(ctx, layout.Dialects[fam])
	if err != nil {
		return nil, fmt.Errorf("nftables mode, %s: %w", fam, err)
	}
	b.flowtableState.init(fam, opts)
	return b, nil
}

// Cleanup removes what any Backend may have left of a family. It needs less of the
// kernel than New: without nf_tables there is nothing to remove.
func Cleanup(ctx context.Context, fam policy.Family) error {
	conn, err := nft.Dial()
	if nft.NotSupported(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nftables, %s: %w", fam, err)
	}
	b := &Backend{tableConn: newTableConn(layout.Dialects[fam], conn)}
	return errors.Join(b.Cleanup(ctx), conn.Close())
}

func open(ctx context.Context, d *layout.Dialect) (*Backend, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	if err := probe(conn, d); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	monitor, err := nft.NewMonitor(d.Table(), conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Backend{tableConn: newTableConn(d, conn), monitor: monitor, hooks: nft.NewHolder(d.Family)}, nil
}

// Close closes the sockets. The kernel keeps the table, which has the hooks too.
func (b *Backend) Close() error {
	return errors.Join(b.monitor.Close(), b.conn.Close(), b.hooks.Release())
}

// Sync implements proxier.Backend. With a delta it reads nothing and sends the
// elements of the services that changed, in one transaction or, where that would
// keep a core busy for long, in several, after the chains that they need. What
// another process has modified is repaired in two steps: chains before the delta, as
// connections depend on them; elements after it, or in its place where the kernel
// refuses it.
func (b *Backend) Sync(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	err := ctx.Err()
	if err == nil {
		err = b.sync(ctx, st, delta)
	}
	if err != nil {
		b.setMirror(nil)
		return fmt.Errorf("nftables, %s: %w", b.Fam, err)
	}
	return nil
}

// sync applies the delta where the mirror is known, and else, or where the kernel refuses
// it, compares and repairs the whole table. Chains that are gone come before either.
func (b *Backend) sync(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	recreated, err := b.restoreChains(ctx)
	canUseDelta := err == nil && !recreated && delta != nil && b.mirror != nil
	if canUseDelta { // Renumber records the names of these pools, so it is called only if the mirror may follow this delta
		canUseDelta = b.mirror.Pools.Renumber(delta.Services)
	}
	if canUseDelta {
		if err = b.writeDelta(ctx, delta); err == nil && !b.needsRepair.Load() {
			return nil
		}
	}
	var refused *nft.CommitError
	if errors.As(err, &refused) { // another program modified our table
		b.needsRepair.Store(true)
		recreated, err = b.restoreChains(ctx)
	}
	if err != nil && !errors.As(err, &refused) {
		return err
	}
	// Another program changed the table, the kernel refused the delta, or there is none: compare everything.
	return b.repair(ctx, st, recreated)
}

// PieceSize implements proxier.Piecer. On two busy cores and with 200,000 frontends, one took 80 ms.
func (b *Backend) PieceSize() int { return 5_000 }

// Slots implements proxier.Piecer.
func (b *Backend) Slots(p *policy.Pool) int { return layout.SettledSlots(p) }

// SharesPool implements proxier.Piecer: there are elements of a pool, rather than of its frontends, of one with
// session affinity.
func (b *Backend) SharesPool(f *policy.Frontend) bool {
	return f.Outside.Pool.Affinity > 0 || f.FromLocal.Pool.Affinity > 0
}

// Plan implements proxier.Backend.
func (b *Backend) Plan(ctx context.Context, st *policy.State) (_ []proxier.Change, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("nftables, %s: %w", b.Fam, err)
		}
	}()
	if err := layout.CheckHost(&st.Host); err != nil {
		return nil, err
	}
	flows, _, _ := b.possibleFlowtable()
	diff, err := b.compare(ctx, layout.RenderWith(st, flows), false)
	if err != nil {
		return nil, err
	}
	return diff.changes(), nil
}

// Cleanup implements proxier.Backend. The rules go first, in one transaction: those of
// a deleted chain work until the kernel unhooks it, and packets that are not
// balanced any more would be refused meanwhile.
func (b *Backend) Cleanup(ctx context.Context) error {
	there, _, err := b.conn.Lookup(b.Table())
	there = there && err == nil // only for the log
	b.setMirror(nil)
	b.loaded = false
	for _, remove := range []func(){func() { b.batch.FlushChain("") }, b.batch.DeleteTable} {
		b.batch.Reset()
		b.batch.EnsureTable() // removing what does not exist is an error
		remove()
		if err := b.commit(); err != nil {
			return fmt.Errorf("nftables, %s: removing our table: %w", b.Fam, err)
		}
	}
	if there {
		proxier.Removed(ctx, "table "+b.Keyword+" "+layout.TableName)
	}
	there, err = nft.RemoveHooks(b.Family)
	if err = errors.Join(b.hooks.Release(), err); err != nil {
		return fmt.Errorf("nftables, %s: %w", b.Fam, err)
	}
	if there {
		proxier.Removed(ctx, "table "+b.Keyword+" "+nft.HooksTable)
	}
	return nil
}

var (
	_ proxier.Watcher = (*Backend)(nil)
	_ proxier.Warner  = (*Backend)(nil)
)
