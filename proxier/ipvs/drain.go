package ipvs

import (
	"context"
	"errors"
	"slices"
	"time"

	"svcproxy/netutil/lvs"
)

// NextDue returns when a Sync with an empty delta has something to do: a drain's
// connections may have ended, or its time is over, the last Sync left repairs to
// the next, or what the kernel refused may be had now. Zero: not before something
// changes. It is of the goroutine that calls Sync.
func (b *Backend) NextDue() time.Time {
	if b.servers == nil { // the next Sync looks at everything
		return time.Time{}
	}
	if b.mirror.unrepaired() {
		return time.Now()
	}
	return earlier(b.drainQueue.next(), b.retries.due)
}

// earlier returns the first of two times; zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// lookAtDue adds the servers to keys whose drains are due, after it has asked
// which of their destinations have connections.
func (b *Backend) lookAtDue(ctx context.Context, now time.Time, keys map[lvs.Key]struct{}, errs *failures) {
	for _, key := range b.drainQueue.due(now, maxDue) {
		if b.servers[key] == nil {
			continue
		}
		keys[key] = struct{}{}
		list, err := b.conn.Destinations(ctx, key)
		if !errors.Is(err, lvs.ErrNotExist) { // another program removed it: a look finds that out
			errs.add(err)
		}
		b.servers[key] = b.servers[key].withIdle(list)
	}
}

// withIdle returns a copy of s that knows which of its destinations are idle.
func (s *server) withIdle(list []lvs.Destination) *server {
	out := *s
	out.dests = slices.Clone(s.dests)
	for _, l := range list {
		i, has := slices.BinarySearchFunc(out.dests, l, func(d dest, l lvs.Destination) int { return d.Compare(l.AddrPort) })
		if has {
			out.dests[i].idle = l.Idle()
		}
	}
	return &out
}

// remindOfAll sets when to look at which drains.
func (b *Backend) queueDrains(now time.Time) {
	b.drainQueue = drainQueue{}
	for key := range b.record.drains {
		b.queueDrain(key, now)
	}
}

// remind sets when to look at the drains of a server.
func (b *Backend) queueDrain(key lvs.Key, now time.Time) {
	if len(b.record.drains[key]) == 0 || b.servers[key] == nil {
		b.drainQueue.remove(key)
		return
	}
	soonest := maxDrainLook
	for _, since := range b.record.drains[key] {
		soonest = min(soonest, nextLook(since, now, b.opts.DrainTimeout))
	}
	b.drainQueue.set(key, now.Add(soonest))
}
