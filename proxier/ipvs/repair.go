package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
)

// touch says that a Sync is going to change servers, before it does. It adds to
// them those that looks have found to differ, reads these again, and returns what
// looks have found. One that was missing is not ours any more, nor is the one that
// another program may have made there since.
func (b *Backend) beginDelta(ctx context.Context, keys map[lvs.Key]struct{}, delta *proxier.Delta, errs *failures) found {
	f := b.mirror.begin(keys, delta)
	if len(f.servers) == 0 {
		return f
	}
	for _, key := range f.missing() {
		b.dropMissing(key)
	}
	if err := b.conn.Probe(ctx); err != nil { // the module may be another than it was
		errs.add(err)
		return f
	}
	for key := range f.servers {
		if had := b.servers[key]; had != nil {
			errs.add(b.reread(ctx, key, had))
			proxier.Progressed(ctx)
		}
	}
	return f
}

// reread has the mirror of Syncs follow what the kernel holds of a server of ours.
func (b *Backend) reread(ctx context.Context, key lvs.Key, had *server) error {
	now, err := readServer(ctx, b.conn, key)
	switch {
	case err != nil:
		return err
	case now == nil:
		b.dropMissing(key)
	default:
		now.name, now.orphan = had.name, had.orphan
		b.servers[key] = now
		b.forgetDrains(key, now)
	}
	return nil
}

// lose follows the end of a server of ours, with all that depends on it: the next
// that somebody makes there is not ours.
func (b *Backend) dropMissing(key lvs.Key) {
	b.countOrphan(key.Addr, b.servers[key], -1)
	delete(b.servers, key)
	b.record.disown(key)
}

// forget gives up the mirror, but not what looks have missed.
func (b *Backend) forgetMirror() {
	for _, key := range b.mirror.forget() {
		b.record.disown(key)
	}
}

// readServer returns a server as the kernel holds it; nil: it is not there.
func readServer(ctx context.Context, conn *lvs.Conn, key lvs.Key) (*server, error) {
	s, err := conn.Server(ctx, key)
	if errors.Is(err, lvs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dests, err := conn.Destinations(ctx, key)
	if err != nil {
		return nil, err
	}
	return serverFrom(lvs.Listing{Server: s, Destinations: dests}), nil
}

// forgetDrains drops those of destinations that a server has no more.
func (b *Backend) forgetDrains(key lvs.Key, now *server) {
	for at := range b.record.drains[key] {
		if !slices.ContainsFunc(now.dests, func(d dest) bool { return d.AddrPort == at }) {
			b.record.drained(drainChange{key: key, at: at})
		}
	}
}

// repair puts right what looks have found besides servers.
func (b *Backend) repair(ctx context.Context, st *proxier.State, f found, errs *failures) {
	if f.timeouts {
		errs.add(b.setTimeouts(ctx))
	}
	if len(f.addrs) > 0 {
		b.repairAddrs(ctx, f.addrs, errs)
	}
	if b.kernel.Damaged() {
		errs.add(b.kernel.Repair(ctx, b.rules, withBound(st, b.members)))
	}
}

// repairAddrs has our device carry the given addresses if they are wanted there.
func (b *Backend) repairAddrs(ctx context.Context, addrs map[netip.Addr]struct{}, errs *failures) {
	there, have, err := addrsOf(b.device, b.fam)
	if err == nil && !there {
		err = b.device.Make()
	}
	if err != nil {
		errs.add(err)
		return
	}
	want := map[netip.Addr]struct{}{}
	for a := range addrs {
		if _, member := b.members[a]; member {
			want[a] = struct{}{}
		}
	}
	copyKeys(b.bound, have, addrs)
	maps.DeleteFunc(have, func(a netip.Addr, _ struct{}) bool { _, asked := addrs[a]; return !asked })
	missing, extra := addrDifference(have, want)
	b.unbind(ctx, extra, errs)
	b.bind(ctx, missing, errs)
}

// retryRefused is how long after the kernel refused a server, as its scheduler is
// missing, it is tried again. Each try has the kernel run modprobe.
const retryRefused = 30 * time.Second

// lacking are wanted servers that the kernel refused.
type retrySchedule struct {
	n   int
	due time.Time // when some are to be tried again; zero: there are none
}

// count follows a Sync that succeeded. When one can be had after all, the others
// are tried at once.
func (l *retrySchedule) count(r refused, now time.Time) {
	n := 0
	for _, why := range r {
		if !why.foreign {
			n++
		}
	}
	switch {
	case n == 0:
		l.due = time.Time{}
	case n < l.n:
		l.due = now
	case !now.Before(l.due):
		l.due = now.Add(retryRefused)
	}
	l.n = n
}

// retry adds to keys some of the servers that the kernel refused, when that is due.
func (b *Backend) retry(now time.Time, keys map[lvs.Key]struct{}) {
	if b.retries.due.IsZero() || now.Before(b.retries.due) {
		return
	}
	left := maxDue
	for key, why := range b.refused { // others the next time: in no order
		if why.foreign {
			continue
		}
		keys[key] = struct{}{}
		if left--; left == 0 {
			return
		}
	}
}
