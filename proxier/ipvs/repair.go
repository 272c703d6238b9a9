package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// beginDelta notes which servers a Sync is going to change. It adds to them those that
// looks have found to differ, reads these again, and returns what looks have found. One
// that was missing is no longer ours, nor is one that another program may have added
// there since.
func (b *Backend) beginDelta(ctx context.Context, keys map[lvs.Key]struct{}, delta *policy.Delta, errs *failures) found {
	f := b.mirror.begin(keys, delta)
	if len(f.servers) == 0 {
		return f
	}
	for _, key := range f.missing() {
		b.dropMissing(key)
	}
	if err := b.conn.Probe(ctx); err != nil { // the module may have been loaded again
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

// reread updates one of our servers with what the kernel holds.
func (b *Backend) reread(ctx context.Context, key lvs.Key, had *server) error {
	now, err := readServer(ctx, b.conn, key)
	switch {
	case err != nil:
		return err
	case now == nil:
		b.dropMissing(key)
	default:
		now.name, now.orphan = had.name, had.orphan
		now.closed, now.closeRemoved = had.closed, had.closeRemoved
		b.servers[key] = now
		b.forgetDrains(key, now)
	}
	return nil
}

// dropMissing drops one of our servers that was removed, and its record: the next one
// that another program adds there is not ours.
func (b *Backend) dropMissing(key lvs.Key) {
	b.countOrphan(key.Addr, b.servers[key], -1)
	delete(b.servers, key)
	b.record.disown(key)
}

// forgetMirror clears the mirror, and disowns servers that looks found missing.
func (b *Backend) forgetMirror() {
	for _, key := range b.mirror.forget() {
		b.record.disown(key)
	}
}

// readServer returns a server as the kernel holds it; nil: it does not exist.
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

// forgetDrains drops the drains of destinations that a server no longer has.
func (b *Backend) forgetDrains(key lvs.Key, now *server) {
	for at := range b.record.drains[key] {
		if !slices.ContainsFunc(now.dests, func(d dest) bool { return d.AddrPort == at }) {
			b.record.drained(drainChange{key: key, at: at})
		}
	}
}

// repair repairs what looks have found, except for servers. After an error it leaves sets alone: they may
// guard what is still balanced, and everything is compared next.
func (b *Backend) repair(ctx context.Context, st *policy.State, f found, errs *failures) {
	if f.timeouts {
		errs.add(b.setTimeouts(ctx))
	}
	if len(f.addrs.Some) > 0 {
		b.repairAddrs(ctx, f.addrs.Some, errs)
	}
	if errs.n == 0 && b.kernel.Damaged() {
		errs.add(b.kernel.Repair(ctx, b.rules, withBound(st, b.members)))
	}
}

// repairAddrs adds or removes the given addresses of our device, as desired.
func (b *Backend) repairAddrs(ctx context.Context, addrs map[netip.Addr]bool, errs *failures) {
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
		copyKey(b.bound, have, a)
		if _, member := b.members[a]; member {
			want[a] = struct{}{}
		}
	}
	maps.DeleteFunc(have, func(a netip.Addr, _ struct{}) bool { return !addrs[a] })
	missing, extra := addrDifference(have, want)
	b.unbind(ctx, extra, errs)
	b.bind(ctx, missing, errs)
}

// retryRefused is how long after the kernel refused a server, for a missing scheduler
// say, it is tried again. Each try makes the kernel run modprobe.
const retryRefused = 30 * time.Second

// A retrySchedule is when to retry servers that the kernel refused.
type retrySchedule struct {
	n   int       // number of them
	due time.Time // when to retry some; zero: there are none
}

// count updates l after a Sync that succeeded. If a server was accepted after all, the
// others are tried at once.
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

// retry adds some of the servers that the kernel refused to keys, if they are due.
func (b *Backend) retry(now time.Time, keys map[lvs.Key]struct{}) {
	if b.retries.due.IsZero() || now.Before(b.retries.due) {
		return
	}
	left := maxDue
	for key, why := range b.refused { // in random order, so others the next time
		if why.foreign {
			continue
		}
		keys[key] = struct{}{}
		if left--; left == 0 {
			return
		}
	}
}
