package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Holdings are the servers that IPVS holds for a State, after the last Sync.
type holdings struct {
	servers map[lvs.Key]*server // nil: unknown
	claims  *frontendPairs
	members map[netip.Addr]struct{} // of the set of bound addresses: those of services, and where servers drain
	orphans map[netip.Addr]int      // how many servers there are only kept to drain
	checks  map[lvs.Key]time.Time   // when to check servers for their drains
}

// compare notes how to change servers. It returns their addresses on our device that
// neither services nor draining servers need any more.
func (h *holdings) compare(d *difference, keys []lvs.Key, scheduler string, st *policy.State) (freed []netip.Addr) {
	pools := map[*policy.Pool][]lvs.Destination{}
	for _, key := range keys {
		had := h.servers[key]
		now := d.server(key, had, h.claims.server(key, scheduler, pools))
		h.countOrphan(key.Addr, had, -1)
		h.countOrphan(key.Addr, now, 1)
		h.servers[key] = now
		if now == nil {
			delete(h.servers, key)
		}
		_, member := h.members[key.Addr]
		if member && h.orphans[key.Addr] == 0 && st.BoundAddrs[key.Addr] == 0 {
			freed = append(freed, key.Addr)
		}
	}
	return freed
}

// countOrphan counts servers that are only kept to drain.
func (h *holdings) countOrphan(a netip.Addr, s *server, by int) {
	if s == nil || !s.orphan {
		return
	}
	if h.orphans[a] += by; h.orphans[a] == 0 {
		delete(h.orphans, a)
	}
}

// drop drops a server that another program removed.
func (h *holdings) drop(key lvs.Key) {
	h.countOrphan(key.Addr, h.servers[key], -1)
	delete(h.servers, key)
}

// addrChanges returns the addresses to bind, which bound lacks, and the delta for the chains and sets:
// addresses where servers drain stay until they are freed.
func (h *holdings) addrChanges(st *policy.State, delta *policy.Delta, bound map[netip.Addr]struct{}, freed []netip.Addr) (bind []netip.Addr, shown *policy.Delta) {
	for _, a := range delta.BoundAddrs.Gained {
		if _, has := bound[a]; !has {
			bind = append(bind, a)
		}
	}
	d := *delta
	d.BoundAddrs = policy.SetDelta[netip.Addr]{}
	for _, a := range slices.Concat(delta.BoundAddrs.Gained, delta.BoundAddrs.Lost, freed) {
		_, was := h.members[a]
		switch is := st.BoundAddrs[a] > 0 || h.orphans[a] > 0; {
		case is && !was:
			h.members[a] = struct{}{}
			d.BoundAddrs.Gained = append(d.BoundAddrs.Gained, a)
		case was && !is:
			delete(h.members, a)
			d.BoundAddrs.Lost = append(d.BoundAddrs.Lost, a)
		}
	}
	slices.SortFunc(d.BoundAddrs.Lost, netip.Addr.Compare)
	return bind, &d
}

// readDue adds to keys the servers whose drains are due, after reading which of their
// destinations have connections.
func (h *holdings) readDue(ctx context.Context, conn *lvs.Conn, now time.Time, keys map[lvs.Key]struct{}, errs *proxier.Failures) {
	left := maxDue
	for key, at := range h.checks { // in random order, so others the next time
		if at.After(now) {
			continue
		}
		delete(h.checks, key)
		if h.servers[key] == nil {
			continue
		}
		keys[key] = struct{}{}
		list, err := conn.Destinations(ctx, key)
		if !errors.Is(err, lvs.ErrNotExist) { // another program removed it, which a look will find
			errs.Add(err)
		}
		h.servers[key] = h.servers[key].withCounts(list)
		if left--; left == 0 {
			return
		}
	}
}

// withCounts returns a copy of s that notes which of its destinations are in use.
func (s *server) withCounts(list []lvs.Destination) *server {
	out := *s
	out.dests = slices.Clone(s.dests)
	for _, l := range list {
		if i, has := slices.BinarySearchFunc(out.dests, l, compareDests); has {
			out.dests[i].Busy = l.Busy
		}
	}
	return &out
}

// queueDrain sets when to check the drains of a server.
func (h *holdings) queueDrain(key lvs.Key, d *difference) {
	if len(d.drains[key]) == 0 || h.servers[key] == nil {
		delete(h.checks, key)
		return
	}
	soonest := maxDrainLook
	for _, since := range d.drains[key] {
		soonest = min(soonest, nextLook(since, d.now, drainTime(key, d.timeout)))
	}
	if h.checks == nil {
		h.checks = map[lvs.Key]time.Time{}
	}
	h.checks[key] = d.now.Add(soonest)
}

// nextDrainCheck returns when to check the first server; zero: there is none.
func (h *holdings) nextDrainCheck() (next time.Time) {
	for _, at := range h.checks {
		next = times.Due(next, at)
	}
	return next
}

// unserved returns the error for refused virtual servers; nil if there are none.
func (h *holdings) unserved(r refused) *proxier.PartialError {
	u := r.unserved()
	if u == nil {
		return nil
	}
	u.Frontends = make(map[policy.FrontendKey]bool, len(r))
	for key, why := range r {
		f := h.claims.by[key].frontend()
		if f == nil {
			continue
		}
		elsewhere := f.Key.Kind == policy.NodePort && len(h.claims.host.Addrs(f)) > 1
		u.Frontends[f.Key] = !elsewhere && (why.foreign || !h.servers[key].takes())
	}
	return u
}

// The time between two checks of a drain grows with its age up to maxDrainLook. After
// its timeout, which it survives only if the kernel lost it, it is checked every
// minDrainLook.
const (
	minDrainLook = time.Second
	maxDrainLook = 30 * time.Second
)

// nextLook returns how long after now to check a drain: its connections may have ended,
// or it has timed out.
func nextLook(since, now time.Time, timeout time.Duration) time.Duration {
	waited := max(0, now.Sub(since))
	switch left := timeout - waited; {
	case left <= 0:
		return minDrainLook
	case waited < counterLag:
		return min(counterLag-waited, left)
	default:
		return min(waited, maxDrainLook, left)
	}
}
