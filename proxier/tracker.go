package proxier

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy/source"
)

// A Tracker knows every unit of every source, and which of them has which
// claim: a service name, an address with port and protocol, a node port. A unit
// is accepted or refused whole; a refused one keeps what was last accepted of
// it, and is looked at again whenever anything changes.
//
// Claims go to the lower Rank, and among equal ranks to who has them, then to
// the earlier name. Not safe for concurrent use.
type Tracker struct {
	units   map[source.UnitID]*unit
	refused map[source.UnitID]*unit // those of units whose wanted is not used
	claims  map[claim]holder

	accepted []source.Unit // since last asked; without their services
	news     []*unit       // refused since last asked; some may be accepted by now
}

// A unit is one source.Unit with what became of it.
type unit struct {
	source.Unit
	wanted []*source.Service // as the source last gave it
	used   []*source.Service // as accepted
	held   bool              // used is accepted, be it empty

	since  time.Time // of the refusal
	faults []source.Fault
}

// A Transition is one service before and after. One of the two may be nil.
type Transition struct {
	Old, New *source.Service
}

// NewTracker returns a Tracker that holds nothing. TCP ports of reserved cannot
// be node ports or health check ports.
func NewTracker(reserved []netip.AddrPort) *Tracker {
	t := &Tracker{
		units:   make(map[source.UnitID]*unit),
		refused: make(map[source.UnitID]*unit),
		claims:  make(map[claim]holder),
	}
	for _, a := range reserved {
		t.claims[claim{protocol: source.TCP, port: a.Port()}] = holder{}
	}
	return t
}

// Apply takes one step of a source and returns what it changed, over all units,
// in order of the names of services.
func (t *Tracker) Apply(ch source.Changes) []Transition {
	st := step{t, make(map[source.Key]*source.Service)}
	for _, id := range ch.Delete {
		st.remove(id)
	}
	dirty, pending := t.take(ch.Set), t.inOrder(t.refused)
	all := union(dirty, pending)
	switch {
	case st.swap(all):
	case len(all) > len(dirty) && st.swap(dirty):
		st.settle(t.inOrder(t.refused))
	default:
		st.settle(all)
	}
	return st.transitions()
}

// A step is one Apply. It remembers the services of all units it touches, as they were before.
type step struct {
	*Tracker
	before map[source.Key]*source.Service // nil: there was none
}

func (t step) remove(id source.UnitID) {
	if u := t.units[id]; u != nil {
		t.remember(u)
		t.release(u)
		delete(t.units, id)
		delete(t.refused, id)
	}
}

// take notes what units now want, and returns them in order.
func (t *Tracker) take(set []source.Unit) []*unit {
	dirty := make(map[source.UnitID]*unit, len(set))
	for _, su := range set {
		u := t.units[su.ID]
		if u == nil {
			u = &unit{}
			t.units[su.ID] = u
		}
		u.Unit, u.wanted = su, su.Services
		u.Services = nil
		dirty[su.ID] = u
	}
	return t.inOrder(dirty)
}

// inOrder sorts units so that who comes first has the better right.
func (t *Tracker) inOrder(units map[source.UnitID]*unit) []*unit {
	list := make([]*unit, 0, len(units))
	for _, u := range units {
		list = append(list, u)
	}
	slices.SortFunc(list, (*unit).compare)
	return list
}

func (u *unit) compare(o *unit) int {
	return cmp.Or(
		cmp.Compare(u.Rank.Class, o.Rank.Class),
		compareTrueFirst(u.held, o.held),
		compareTrueFirst(u.Rank.Since != 0, o.Rank.Since != 0),
		cmp.Compare(u.Rank.Since, o.Rank.Since),
		cmp.Compare(u.ID.Name, o.ID.Name),
	)
}

func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// swap tries to give all units what they want in one step, so that two that
// trade claims do not stand in each other's way. It changes nothing if that fails.
func (t step) swap(units []*unit) bool {
	for _, u := range units {
		t.release(u)
	}
	for i, u := range units {
		if t.evicts(u) || len(t.conflicts(u)) > 0 {
			t.undo(units, i)
			return false
		}
		t.acquire(u, u.wanted)
	}
	for _, u := range units {
		t.remember(u)
	}
	for _, u := range units {
		t.accept(u)
	}
	return true
}

// undo takes back a swap that gave the first n units what they want.
func (t step) undo(units []*unit, n int) {
	for _, u := range units[:n] {
		for _, s := range u.wanted {
			for c := range claims(s) {
				delete(t.claims, c)
			}
		}
	}
	for _, u := range units {
		t.acquire(u, u.used)
	}
}

// settle gives units what they want one by one, until no more of them can have it.
func (t step) settle(units []*unit) {
	for progress := true; progress; {
		progress = false
		var left []*unit
		for _, u := range units {
			if t.try(u) {
				progress = true
			} else {
				left = append(left, u)
			}
		}
		units = left
	}
}

// try gives one unit what it wants, or notes why it cannot have it.
func (t step) try(u *unit) bool {
	t.release(u)
	if faults := t.conflicts(u); len(faults) > 0 {
		t.acquire(u, u.used)
		t.refuse(u, faults)
		return false
	}
	losers := t.evict(u)
	t.acquire(u, u.wanted)
	t.accept(u)
	for _, l := range losers {
		t.refuse(l, t.conflicts(l))
	}
	return true
}

// evict takes everything from the units that hold what u wants.
func (t step) evict(u *unit) []*unit {
	var losers []*unit
	for _, s := range u.wanted {
		for c := range claims(s) {
			if h, held := t.claims[c]; held {
				t.remember(h.unit)
				t.release(h.unit)
				h.unit.used, h.unit.held = nil, false
				losers = append(losers, h.unit)
			}
		}
	}
	return losers
}

func (t step) accept(u *unit) {
	t.remember(u)
	for _, s := range u.wanted {
		if _, known := t.before[s.Key]; !known {
			t.before[s.Key] = nil
		}
	}
	u.used, u.held, u.faults = u.wanted, true, nil
	t.accepted = append(t.accepted, u.Unit)
	delete(t.refused, u.ID)
}

func (t step) refuse(u *unit, faults []source.Fault) {
	if t.refused[u.ID] == nil {
		u.since = time.Now()
		t.refused[u.ID] = u
		t.news = append(t.news, u)
	}
	u.faults = faults
}

// remember notes the services in use of a unit, as they were before the step.
func (t step) remember(u *unit) {
	for _, s := range u.used {
		if _, known := t.before[s.Key]; !known {
			t.before[s.Key] = s
		}
	}
}

// transitions compares what was before with what is now.
func (t step) transitions() []Transition {
	var out []Transition
	for _, key := range slices.SortedFunc(maps.Keys(t.before), source.Key.Compare) {
		tr := Transition{Old: t.before[key], New: t.claims[claim{key: key}].svc}
		if tr.Old == tr.New || tr.Old != nil && tr.New != nil && tr.Old.Equal(tr.New) {
			continue
		}
		out = append(out, tr)
	}
	return out
}

// union returns all units of a and b, each once, in order.
func union(a, b []*unit) []*unit {
	out := slices.Concat(a, b)
	slices.SortFunc(out, (*unit).compare)
	return slices.Compact(out)
}

// Refusals returns the units that are not used as they stand, by name.
func (t *Tracker) Refusals() []Refusal {
	var out []Refusal
	for _, u := range t.inOrder(t.refused) {
		out = append(out, u.refusal())
	}
	return out
}

// NewRefusals returns the units that have come to be refused since it was last called.
func (t *Tracker) NewRefusals() []Refusal {
	var out []Refusal
	for _, u := range t.news {
		if t.refused[u.ID] == u {
			out = append(out, u.refusal())
		}
	}
	t.news = nil
	return out
}

func (u *unit) refusal() Refusal {
	return Refusal{Unit: u.ID, Since: u.since, Stale: u.held, Faults: u.faults}
}

// Accepted returns the units that were accepted since it was last called, in
// the versions that were, without their services.
func (t *Tracker) Accepted() []source.Unit {
	list := t.accepted
	t.accepted = nil
	return list
}

// services calls visit with every service in use and the unit it is from.
func (t *Tracker) services(visit func(*source.Service, source.UnitID)) {
	for _, u := range t.units {
		for _, s := range u.used {
			visit(s, u.ID)
		}
	}
}
