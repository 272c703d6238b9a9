// Package ipvs is the backend that balances with IPVS, the kernel's load balancer.
//
//	State ──► virtual servers ─────────────────────► netutil/lvs
//	      ├─► addresses of our dummy device ───────► netutil/links
//	      └─► chains and sets (proxier/filter) ────► iptables, netutil/ipset
//
// IPVS sees packets to addresses of this host only. So service addresses that no
// other device has are put on a device of ours; packets to no service there are
// refused by chains and sets, or daemons of the host would answer.
//
// IPVS has no transactions and no owners. A mirror of what it holds tells what to
// send, and a record on disk which virtual servers are ours: existing ones that are
// not recorded are foreign, and never touched.
//
//	ipvs.go, retire.go   Sync, Plan and Cleanup; leaving
//	backend.go           the Backend, and what it is opened with
//	sync.go              a sync: by a snapshot of everything, by a delta, and of what looks found
//	snapshot.go          everything, and what waits for the rules
//	look.go              looks beside the syncs
//	owner.go             what is ours, and sending what changes there
//	record.go            which servers are ours
//	holdings.go          the servers that the Backend holds, and what cannot be served
//	difference.go        what leads from one to the other, with destinations that drain
//	servers.go, text.go  the servers of a State, and what they count
//	objects.go           what the kernel has, and lacks, of one frontend, for explain
package ipvs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Sync implements proxier.Backend. It continues after failures, so that a server that
// the kernel refuses does not block others. A change that cannot be written, because
// others removed what it changes, is followed by a comparison of everything.
func (b *Backend) Sync(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	err := b.sync(ctx, st, delta)
	b.unsupported.SyncEnded(err)
	if errors.Is(err, lvs.ErrReloaded) {
		err = fmt.Errorf("%w: %w", proxier.ErrRestart, err)
	}
	if err != nil {
		return fmt.Errorf("ipvs, %s: %w", b.fam, b.rules.Blame(err))
	}
	b.logForeign(b.claims)
	b.mirror.end(b.servers, b.bound, b.foreign)
	b.countRefused(time.Now())
	return proxier.JoinPartialErrors(b.unserved(b.refused), b.unsupported.Unserved())
}

func (b *Backend) sync(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	if delta != nil && b.servers != nil && b.kernel.CanApply() && b.unsupported.CanFollow(delta) {
		err := b.written(b.applyDelta(ctx, st, b.unsupported.Delta(delta)))
		if err == nil || ctx.Err() != nil {
			return err
		}
		b.log.Warn("writing a change failed; comparing everything", "family", b.fam, "err", err)
	}
	b.forget(b.record)
	return b.written(b.resync(ctx, st))
}

// written completes the record after a write, and returns the error of either, after which
// nothing is known of what the kernel holds.
func (b *Backend) written(err error) error {
	b.disownUnsent()
	if err != nil {
		b.forget(b.record)
	}
	flushErr := b.record.flush()
	if flushErr != nil {
		b.forget(b.record)
	}
	if err = errors.Join(err, flushErr); err != nil {
		b.servers = nil
	}
	return err
}

// Cleanup implements proxier.Backend.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.forget(b.record)
	b.servers = nil
	if err := errors.Join(b.remove(ctx), b.kernel.Cleanup(ctx)); err != nil {
		return fmt.Errorf("ipvs, %s: removing what is ours: %w", b.fam, err)
	}
	return nil
}

// Plan implements proxier.Backend: it returns what resync would change.
func (b *Backend) Plan(ctx context.Context, st *policy.State) (_ []proxier.Change, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("ipvs, %s: %w", b.fam, err)
		}
	}()
	st = b.unsupported.Preview(st)
	p, err := b.takeSnapshot(ctx, st, b.opts, b.servers)
	if err != nil {
		return nil, err
	}
	changes := p.changes()
	differ, err := timeoutsDiffer(ctx, b.conn, b.timeouts)
	if err != nil {
		return nil, err
	}
	if differ {
		changes = append(changes, proxier.Change{Op: "change", Object: "timeouts of IPVS"})
	}
	rest, err := b.kernel.Plan(ctx, layout.NewIPVSRules(b.fam), withBound(st, p.members))
	if err != nil {
		return nil, err
	}
	return append(changes, rest...), nil
}

var (
	_ proxier.Watcher = (*Backend)(nil)
	_ proxier.Retirer = (*Backend)(nil)
	_ proxier.Warner  = (*Backend)(nil)
	_ proxier.Counter = (*Backend)(nil)
)
