package ipvs

import (
	"context"
	"errors"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/netutil/lvs"
)

// NextDue returns when a Sync with an empty delta has something to do: connections may
// have drained or timed out, the last Sync left repairs to the next, or the kernel may
// accept now what it refused. Zero: not before something changes. It must be called
// from the goroutine that calls Sync.
func (b *Backend) NextDue() time.Time {
	if b.servers == nil { // the next Sync compares everything
		return time.Time{}
	}
	if b.mirror.unrepaired() {
		return time.Now()
	}
	return times.Due(b.drainQueue.next(), b.retries.due)
}

// lookAtDue adds to keys the servers whose drains are due, after reading which of their
// destinations have connections.
func (b *Backend) lookAtDue(ctx context.Context, now time.Time, keys map[lvs.Key]struct{}, errs *failures) {
	for _, key := range b.drainQueue.due(now, maxDue) {
		if b.servers[key] == nil {
			continue
		}
		keys[key] = struct{}{}
		list, err := b.conn.Destinations(ctx, key)
		if !errors.Is(err, lvs.ErrNotExist) { // another program removed it, which a look will find
			errs.add(err)
		}
		b.servers[key] = b.servers[key].withIdle(list)
	}
}

// withIdle returns a copy of s that notes which of its destinations are idle.
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

// queueDrains queues all drains.
func (b *Backend) queueDrains(now time.Time) {
	b.drainQueue = drainQueue{}
	for key := range b.record.drains {
		b.queueDrain(key, now)
	}
}

// queueDrain queues the drains of a server.
func (b *Backend) queueDrain(key lvs.Key, now time.Time) {
	if len(b.record.drains[key]) == 0 || b.servers[key] == nil {
		b.drainQueue.remove(key)
		return
	}
	soonest := maxDrainLook
	for _, since := range b.record.drains[key] {
		soonest = min(soonest, nextLook(since, now, drainTime(key, b.opts.DrainTimeout)))
	}
	b.drainQueue.set(key, now.Add(soonest))
}
