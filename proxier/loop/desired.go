package loop

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A large service changes in pieces. Each Sync has all other changes that have arrived, and one piece
// of one large service, so that a change of another service, or the result of a health check, waits
// for one piece at most.
//
// desired.next has what the kernel holds after the next Sync: of a service that is growing, the
// frontends of all pieces so far. What is wanted is in desired.growing.

// largePieces is how many pieces a change has at least: a smaller one comes in one Sync.
const largePieces = 4

// A desired is what the kernel is to hold of a family after the next Sync, and what of that has changed.
type desired struct {
	node    *policy.Node
	next    *policy.State
	changes *policy.Changes // since the last Sync that succeeded
	queued  time.Time       // when the oldest of them arrived

	growing   map[source.Key]*growth // what the State has in part
	lastGrown source.Key             // which of them had the last piece
	kernel    proxier.Piecer         // how a large change is cut in pieces
	piece     int                    // the size of one
}

func newDesired(fam policy.Family, node *policy.Node) desired {
	return desired{node: node, next: policy.EmptyState(fam, node), changes: policy.NewChanges(), growing: make(map[source.Key]*growth)}
}

// cutFor has large changes cut in pieces for a backend; piece is their size, 0: as the backend says.
func (d *desired) cutFor(b proxier.Backend, piece int) {
	d.kernel = aPiecer{}
	if p, ok := b.(proxier.Piecer); ok {
		d.kernel = p
	}
	d.piece = cmp.Or(piece, d.kernel.PieceSize())
}

// stage has a service come to be as wanted in the next Sync or, if that is a large change, in several. The order numbered
// first, and later ones, are then done when the last piece is. whole: it comes in one piece, as the next Sync writes
// everything. stage reports whether that changes anything.
func (d *desired) stage(key source.Key, wanted *policy.Resolved, queued time.Time, first uint64, whole bool) (changed bool) {
	was, before := d.next.Services[key], d.growing[key]
	delete(d.growing, key)
	most := largePieces * d.piece
	if whole || before == nil && !isLarge(d.kernel, most, was, wanted) {
		if changed = d.changes.Put(d.next, key, wanted) || before != nil; changed {
			d.queued = cmp.Or(d.queued, queued)
		}
		return changed
	}
	g := newGrowth(d.kernel, key, was, wanted)
	if g.left == 0 && (was == g.wanted || was != nil && sameService(was, g.wanted)) {
		return before != nil
	}
	g.first, g.queued = first, queued
	if before != nil {
		g.first, g.queued = before.first, before.queued
		g.resume(before)
	}
	if g.cost <= most {
		d.queued = cmp.Or(d.queued, g.queued)
		d.applyPiece(g, g.next(most))
	} else {
		d.growing[key] = g
		if ch, again := d.changes.Services[key]; again { // another service may have what the last Sync did not yet take from it
			d.applyPiece(g, g.touched(ch))
		}
	}
	return true
}

// between returns a growing service with the frontends of the pieces so far. VIPs that it adds to the refused ones, and
// addresses that it adds to the announced ones, come with the last piece. Those that it gives up go with the first.
func (d *desired) between(g *growth, was *policy.Resolved, frontends []*policy.Frontend) *policy.Resolved {
	r := &policy.Resolved{Key: g.key, Frontends: frontends}
	r.Pools = lists.Keep(g.pools, func(p *policy.Pool) bool { return g.uses[p] > 0 })
	r.HairpinPools = lists.Keep(r.Pools, func(p *policy.Pool) bool { return g.hairpin[p] })
	for _, f := range frontends { // sorted by address
		n := len(r.BoundAddrs)
		if a := f.Key.Addr; (n == 0 || r.BoundAddrs[n-1] != a) && f.Key.Kind != policy.NodePort && g.bound[a] {
			r.BoundAddrs = append(r.BoundAddrs, a)
		}
	}
	if g.wanted == nil {
		return r
	}
	r.Warnings = g.wanted.Warnings
	r.RefusedAddrs = lists.Keep(g.wanted.RefusedAddrs, func(a netip.Addr) bool {
		return d.next.RefusedAddrs[a] > 0 || d.changes.RefusedAddrs[a] < 0
	})
	had := make(map[policy.Announcement]bool)
	for _, n := range was.Announced {
		had[n] = true
	}
	r.Announced = lists.Keep(g.wanted.Announced, func(n policy.Announcement) bool { return had[n] })
	return r
}

// grow puts into the State what the next Sync has of growing services: a full one all. It reports
// whether there are any.
func (d *desired) grow(full bool) bool {
	switch {
	case len(d.growing) == 0:
		return false
	case full:
		for _, g := range d.growing {
			d.applyPiece(g, g.next(g.cost))
		}
	default:
		d.stagePiece()
	}
	return true
}

// stagePiece puts into the State what the next Sync has of growing services: one piece, and what
// moves between a service that changes and a growing one.
func (d *desired) stagePiece() {
	todo := slices.Collect(maps.Values(d.changes.Services))
	g := d.nextGrowing()
	d.lastGrown = g.key
	todo = append(todo, d.applyPiece(g, g.next(d.piece)))
	for ; len(todo) > 0; todo = todo[1:] {
		for key, g := range d.growing {
			if key == todo[0].Key() {
				continue
			}
			if piece := g.touched(todo[0]); len(piece) > 0 {
				todo = append(todo, d.applyPiece(g, piece))
			}
		}
	}
}

// nextGrowing returns the service whose turn it is to grow: they take turns in the order of their names.
func (d *desired) nextGrowing() *growth {
	keys := slices.SortedFunc(maps.Keys(d.growing), source.Key.Compare)
	for _, key := range keys {
		if key.Compare(d.lastGrown) > 0 {
			return d.growing[key]
		}
	}
	return d.growing[keys[0]]
}

// applyPiece puts the pairs of a piece into the State, and returns the change.
func (d *desired) applyPiece(g *growth, piece []int) policy.ServiceChange {
	was, now := cmp.Or(d.next.Services[g.key], &policy.Resolved{Key: g.key}), g.wanted
	frontends := g.grown(was, piece)
	if g.left > 0 {
		now = d.between(g, was, frontends)
	} else {
		delete(d.growing, g.key)
		d.queued = cmp.Or(d.queued, g.queued)
	}
	d.changes.PutPart(d.next, g.key, now)
	return policy.ServiceChange{Old: was, New: now}
}

// resolved returns all services as they were last resolved.
func (d *desired) resolved() []*policy.Resolved {
	all := make([]*policy.Resolved, 0, len(d.next.Services))
	for key, r := range d.next.Services {
		if d.growing[key] == nil {
			all = append(all, r)
		}
	}
	for _, g := range d.growing {
		if g.wanted != nil {
			all = append(all, g.wanted)
		}
	}
	return all
}

// holding returns a function that reports whether the kernel holds a frontend of a service
// as it was last resolved. known: it is known what the kernel holds.
func (d *desired) holding(key source.Key, known bool) func(*policy.Frontend) bool {
	was := d.changes.Before(d.next, key)
	return func(fe *policy.Frontend) bool { return known && hasFrontend(was, fe) }
}

// wantedState returns the State as it will be when all services are complete.
func (d *desired) wantedState() *policy.State {
	if len(d.growing) == 0 {
		return d.next
	}
	st, ch := *d.next, policy.NewChanges()
	st.Services, st.RefusedAddrs = maps.Clone(st.Services), maps.Clone(st.RefusedAddrs)
	st.Hairpins, st.BoundAddrs = maps.Clone(st.Hairpins), maps.Clone(st.BoundAddrs)
	for key, g := range d.growing {
		ch.Put(&st, key, g.wanted)
	}
	return &st
}

// heldOf returns the last order of those up to told that is done with all before, once the State is synced.
func (d *desired) heldOf(told uint64) uint64 {
	for _, g := range d.growing {
		told = min(told, g.first-1)
	}
	return told
}

// former returns all services as they were last synced.
func (d *desired) former() map[source.Key]*policy.Resolved {
	all := maps.Clone(d.next.Services)
	for key := range d.changes.Services {
		was := d.changes.Before(d.next, key)
		if delete(all, key); was != nil {
			all[key] = was
		}
	}
	return all
}

// unsynced returns the services that differ from what was last synced, in order of their names.
func (d *desired) unsynced(wanted *policy.State) []policy.ServiceChange {
	all := policy.NewChanges()
	for key := range d.changes.Services {
		all.Note(key, d.changes.Before(d.next, key), wanted.Services[key])
	}
	for key, g := range d.growing {
		all.Note(key, d.changes.Before(d.next, key), g.wanted)
	}
	return all.Sorted()
}
