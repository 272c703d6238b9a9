package claims

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A Tracker knows every unit of every source, and which of them owns which claim: a
// service name, an address with port and protocol, a node port. A file is accepted or
// refused as a whole; a refused one keeps what was last accepted of it, and is tried
// again whenever a claim changes that it wants. Files that exchange claims change
// together, as soon as the last of them wants to. Of an object of an API only what
// another unit owns is left out.
//
// Claims and room go to files: first to those of the earliest source, and among these to their present
// owner, then by age, then by name. What files leave goes to objects: to that of the
// earliest source, then to the oldest. Not safe for concurrent use.
type Tracker struct {
	ranks   map[string]int // of sources
	units   map[source.UnitID]*unit
	refused map[source.UnitID]*unit // those of units whose wanted is not used; no objects
	claims  map[Claim]holder        // of files, and of this program itself
	waiting map[Claim][]*unit       // what refused files want, and which of them do
	objects objects

	reserved map[Claim]bool // for this program: those that no file had have no unit in claims

	limits  *source.Products        // of all services together; nil: none
	inFiles source.Products         // of the services in use of files
	ofRank  map[int]source.Products // the parts of inFiles, by rank of the source

	touched map[Claim]bool // those that files took or gave in this step

	accepted []source.Unit // since last asked; without their services; no objects
	news     []*unit       // refused since last asked; some may be accepted by now
}

// A unit is one source.Unit and how it is used.
type unit struct {
	source.Unit
	rank    int               // of its source
	wanted  []*source.Service // as the source last gave it
	used    []*source.Service // as accepted
	hasUsed bool              // used is accepted, even if empty; of an object always false
	named   []bool            // of an object: whether each of wanted has its name
	load    source.Products   // of wanted
	excess  bool              // there is no room for it

	// Of a file.
	usedLoad source.Products // of used
	usedAs   string          // the version of used
	pending  bool            // wanted is not accepted
	waits    bool            // it is in Tracker.waiting; it has been looked at
	stale    bool            // something that it wants was touched since
	holders  []*unit         // own what it wants; nil among them: it can never get it
	renewal  *source.Unit    // has other endpoints for used; nil: nothing has
	lacks    []source.Fault  // why there is no room for these

	refusedAt time.Time
	faults    []source.Fault
}

// A Transition is one service before and after. One of the two may be nil.
type Transition struct {
	Old, New *source.Service
}

// NewTracker returns a Tracker that holds nothing. TCP ports of reserved cannot
// be node ports or health check ports. Sources are in order of precedence.
func NewTracker(reserved []netip.AddrPort, sources ...string) *Tracker {
	t := &Tracker{
		ranks:   make(map[string]int, len(sources)),
		units:   make(map[source.UnitID]*unit),
		refused: make(map[source.UnitID]*unit),
		claims:  make(map[Claim]holder),
		waiting: make(map[Claim][]*unit),
		objects: objects{wants: make(map[Claim][]holder), lacking: make(map[source.UnitID]*unit), dirty: make(map[*unit]bool)},
		touched: make(map[Claim]bool),
		ofRank:  make(map[int]source.Products),
	}
	for i, name := range sources {
		t.ranks[name] = i
	}
	t.Reserve(reserved)
	return t
}

// Reserve replaces the TCP ports that cannot be node ports or health check ports. One that a file has stays
// with it until it lets go. What that changes for others comes with the next Apply.
func (t *Tracker) Reserve(ports []netip.AddrPort) {
	was := t.reserved
	t.reserved = make(map[Claim]bool, len(ports))
	for _, a := range ports {
		t.reserved[Claim{Protocol: source.TCP, Port: a.Port()}] = true
	}
	for c := range was {
		if !t.reserved[c] && t.claims[c] == (holder{}) {
			t.touch(c)
			delete(t.claims, c)
		}
	}
	for c := range t.reserved {
		if _, held := t.claims[c]; !held {
			t.touch(c)
			t.claims[c] = holder{}
		}
	}
}

// Apply applies one step of a source and returns what it changed, over all units,
// sorted by the names of services.
func (t *Tracker) Apply(ch source.Changes) []Transition {
	st := step{t, make(map[source.Key]*source.Service), make(map[*unit]bool), make(map[*unit]former), make(map[int][]*unit), make(map[*unit]bool)}
	var files, objects []source.Unit
	for _, u := range ch.Set {
		if u.Partial {
			objects = append(objects, u)
		} else {
			files = append(files, u)
		}
	}
	for _, id := range ch.Delete {
		if u := t.units[id]; u != nil && !u.Partial {
			st.remove(u)
		}
	}
	st.settle(t.candidates(st.setWanted(files)))
	for _, id := range ch.Delete {
		if u := t.units[id]; u != nil && u.Partial {
			st.removeObject(u)
		}
	}
	for _, u := range objects {
		st.setObject(u)
	}
	st.settleObjects()
	return st.transitions()
}

// A step is one Apply. It remembers the services of all units that it touches as they were.
type step struct {
	*Tracker
	before map[source.Key]*source.Service // nil: there was none
	failed map[*unit]bool                 // files that cannot get what they want in this step

	had     map[*unit]former // what evicted files had
	later   map[int][]*unit  // by rank: files in use of sources behind it, in order; those accepted since clear are not in it
	evicted map[*unit]bool   // files whose claims or room one of an earlier source took, until they have another try
}

func (t step) remove(u *unit) {
	t.remember(u)
	t.release(u)
	t.setUsedLoad(u, source.Products{})
	t.unwait(u)
	delete(t.units, u.ID)
	delete(t.refused, u.ID)
}

// unit returns the unit of an ID, a new one where there is none.
func (t *Tracker) unit(id source.UnitID) *unit {
	u := t.units[id]
	if u == nil {
		u = &unit{rank: t.ranks[id.Source]}
		t.units[id] = u
	}
	return u
}

// renew gives the services in use of files other endpoints, for as long as another version of the file is refused. What they
// claim is the same. Those for which there is no room wait until there is, which others may leave that have fewer by now. Files
// of later sources leave it at once.
func (t step) renew(files map[source.UnitID]*unit) {
	clear(t.later)
	waiting := slices.DeleteFunc(slices.Collect(maps.Values(files)), func(u *unit) bool { return u.renewal == nil })
	slices.SortFunc(waiting, (*unit).compare)
	for n := -1; n != len(waiting); {
		n = len(waiting)
		waiting = slices.DeleteFunc(waiting, t.renewed)
	}
}

// renewed is renew of one file. It returns false where there is no room.
func (t step) renewed(u *unit) bool {
	load := source.TotalProducts(u.renewal.Services)
	if all := t.withoutLater(u.rank).Minus(u.usedLoad).Plus(load); t.exceeded(all) {
		p := t.limits.Exceeded(all, "with what lists say by now all services")
		u.lacks = []source.Fault{{Pos: source.Position{File: u.ID.Name}, Msg: p.Msg, Hint: p.Hint}}
		return false
	}
	t.makeRoom(u.rank, u.usedLoad, load)
	t.remember(u)
	t.release(u)
	t.setUsedLoad(u, load)
	u.used, u.renewal, u.lacks = u.renewal.Services, nil, nil
	t.acquire(u, u.used)
	return true
}

// setWanted sets what files want, and returns them.
func (t step) setWanted(set []source.Unit) map[source.UnitID]*unit {
	dirty := make(map[source.UnitID]*unit, len(set))
	for _, su := range set {
		u := t.unit(su.ID)
		t.unwait(u)
		u.renewal, u.lacks = nil, nil
		if su.InUse != nil && u.hasUsed && u.usedAs == su.InUse.Version {
			u.renewal = su.InUse
		}
		u.Unit, u.wanted, u.pending = su, su.Services, true
		u.load = source.TotalProducts(su.Services)
		u.Services, u.InUse = nil, nil
		dirty[su.ID] = u
	}
	t.renew(dirty)
	return dirty
}

// compare orders units by precedence.
func (u *unit) compare(o *unit) int {
	return cmp.Or(
		cmp.Compare(u.rank, o.rank),
		cmp.Compare(u.class(), o.class()),
		cmp.Compare(u.Since, o.Since),
		cmp.Compare(u.ID.Name, o.ID.Name),
	)
}

// class is lower for a unit of which a version is in use, and among these and the others for one of known age.
func (u *unit) class() (n int) {
	if !u.hasUsed {
		n += 2
	}
	if u.Since == 0 {
		n++
	}
	return n
}

func (t step) accept(u *unit) {
	t.unwait(u)
	t.setUsedLoad(u, u.load)
	u.used, u.hasUsed, u.pending, u.faults, u.usedAs = u.wanted, true, false, nil, u.Version
	u.renewal, u.lacks = nil, nil
	t.rememberAbsent(u)
	t.accepted = append(t.accepted, u.Unit)
	delete(t.refused, u.ID)
}

func (t step) refuse(u *unit) {
	if t.refused[u.ID] == nil {
		u.refusedAt = time.Now()
		t.refused[u.ID] = u
		t.news = append(t.news, u)
	}
}

// remember notes the services in use of a unit, as they were before the step.
func (t step) remember(u *unit) {
	for _, s := range u.used {
		if _, known := t.before[s.Key]; !known {
			t.before[s.Key] = s
		}
	}
}

// rememberAbsent notes what the names that a unit now uses stood for before the step,
// if no unit of its kind had them. Files are settled first, when objects are still as
// they were.
func (t step) rememberAbsent(u *unit) {
	for _, s := range u.used {
		if _, known := t.before[s.Key]; known {
			continue
		}
		t.before[s.Key] = nil
		if !u.Partial {
			t.before[s.Key] = t.objects.used(s.Key)
		}
	}
}

// transitions compares what was before with what is now.
func (t step) transitions() []Transition {
	var out []Transition
	for _, key := range slices.SortedFunc(maps.Keys(t.before), source.Key.Compare) {
		tr := Transition{Old: t.before[key], New: t.InUse(key)}
		if tr.Old == tr.New || tr.Old != nil && tr.New != nil && tr.Old.Equal(tr.New) {
			continue
		}
		out = append(out, tr)
	}
	return out
}

// InUse returns the service of a name; nil: there is none.
func (t *Tracker) InUse(key source.Key) *source.Service {
	if h, held := t.claims[Claim{key: key}]; held {
		return h.svc
	}
	return t.objects.used(key)
}

// Refusals returns the units that are not used as they stand, by name.
func (t *Tracker) Refusals() []Refusal {
	var out []Refusal
	for _, list := range []map[source.UnitID]*unit{t.refused, t.objects.lacking} {
		for _, u := range slices.SortedFunc(maps.Values(list), (*unit).compare) {
			out = append(out, u.refusal())
		}
	}
	return out
}

// NewRefusals returns the units that were refused since it was last called.
func (t *Tracker) NewRefusals() []Refusal {
	var out []Refusal
	for _, u := range t.news {
		if t.refused[u.ID] == u || t.objects.lacking[u.ID] == u {
			out = append(out, u.refusal())
		}
	}
	t.news = nil
	return out
}

func (u *unit) refusal() Refusal {
	return Refusal{Unit: u.ID, Since: u.refusedAt, Stale: u.hasUsed, Partial: u.Partial && len(u.used) > 0, NoRoom: u.excess, Faults: slices.Concat(u.faults, u.lacks), Wanted: u.wanted}
}

// Accepted returns the files that were accepted since it was last called, in
// the versions that were, without their services.
func (t *Tracker) Accepted() []source.Unit {
	list := t.accepted
	t.accepted = nil
	return list
}

// Services calls visit with every service in use and the unit it is from.
func (t *Tracker) Services(visit func(*source.Service, source.UnitID)) {
	for _, u := range t.units {
		for _, s := range u.used {
			visit(s, u.ID)
		}
	}
}

// RefusedAnnouncers returns the services of refused units that are not in use, and would be announced.
func (t *Tracker) RefusedAnnouncers() (list []*source.Service) {
	for _, u := range slices.SortedFunc(maps.Values(t.refused), (*unit).compare) {
		for _, s := range u.wanted {
			if s.Announce != 0 && t.InUse(s.Key) == nil {
				list = append(list, s)
			}
		}
	}
	return list
}

// Key returns the name of the service.
func (tr Transition) Key() source.Key { return cmp.Or(tr.New, tr.Old).Key }

// A Refusal is a unit that is not used as it stands, because another unit holds something it claims.
type Refusal struct {
	Unit    source.UnitID  `json:"unit"`
	Since   time.Time      `json:"since"`
	Stale   bool           `json:"stale"`             // an earlier version of it is in use
	Partial bool           `json:"partial,omitempty"` // all but what Faults name is in use
	NoRoom  bool           `json:"no_room,omitempty"` // with it all services would be more than Config.Limits
	Faults  []source.Fault `json:"faults"`

	Wanted []*source.Service `json:"-"` // as it stands
}
