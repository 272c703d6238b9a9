package ipvs

import (
	"context"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// beginDelta notes which servers a Sync is going to change. It adds to them those that
// looks have found to differ, reads these again, and returns what looks have found. One
// that was missing is no longer ours, nor is one that another program may have added
// there since.
func (b *Backend) beginDelta(ctx context.Context, keys map[lvs.Key]struct{}, delta *policy.Delta, errs *proxier.Failures) found {
	f := b.mirror.begin(keys, delta)
	if len(f.servers) == 0 {
		return f
	}
	for _, key := range f.missing() {
		b.drop(key)
		b.record.disown(key)
	}
	if err := b.conn.Probe(ctx); err != nil { // the module may have been loaded again
		errs.Add(err)
		return f
	}
	for key := range f.servers {
		if had := b.servers[key]; had != nil {
			errs.Add(b.reread(ctx, key, had))
			proxier.Progressed(ctx)
		}
	}
	return f
}

// repair repairs what looks have found, except for servers. After an error it leaves sets alone: they may
// guard what is still balanced, and everything is compared next.
func (b *Backend) repair(ctx context.Context, st *policy.State, f found, errs *proxier.Failures) {
	if f.timeouts {
		errs.Add(b.setTimeouts(ctx, b.conn))
	}
	if f.addrs {
		b.repairAddrs(ctx, b.members, errs)
	}
	if errs.N == 0 && b.kernel.Damaged() {
		errs.Add(b.kernel.Repair(ctx, b.rules, withBound(st, b.members)))
	}
}

// reread updates one of our servers with what the kernel holds.
func (b *Backend) reread(ctx context.Context, key lvs.Key, had *server) error {
	now, err := readServer(ctx, b.conn, key)
	switch {
	case err != nil:
		return err
	case now == nil: // the next one that another program adds there is not ours
		b.drop(key)
		b.record.disown(key)
	default:
		now.name, now.orphan = had.name, had.orphan
		now.closed, now.closeRemoved = had.closed, had.closeRemoved
		b.servers[key] = now
		b.record.forgetDrains(key, now)
	}
	return nil
}
