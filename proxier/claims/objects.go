package claims

import (
	"maps"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// objects knows which of the units that can be used in part wants which claim. The
// oldest gets it, unless a file does, so that the outcome does not depend on the
// order of events.
type objects struct {
	wants   map[Claim][]holder      // who wants the claim, the oldest first
	lacking map[source.UnitID]*unit // some of whose claims another unit owns
	dirty   map[*unit]bool          // to be settled in this step
	load    source.Products         // of all that is wanted
	excess  int                     // how many there is no room for
}

// want notes that h wants c.
func (o *objects) want(c Claim, h holder) {
	list := o.wants[c]
	if slices.Contains(list, h) { // an address that stands in two lists
		return
	}
	i, _ := slices.BinarySearchFunc(list, h, func(a, b holder) int {
		if a.unit.compare(b.unit) <= 0 {
			return -1
		}
		return 1
	})
	if o.wants[c] = slices.Insert(list, i, h); i == 0 && len(list) > 0 {
		o.touch(c)
	}
}

// leave notes that h no longer wants c.
func (o *objects) leave(c Claim, h holder) {
	i := slices.Index(o.wants[c], h)
	if i < 0 {
		return
	}
	if o.wants[c] = slices.Delete(o.wants[c], i, i+1); i == 0 {
		o.touch(c) // another one gets it, and the messages of the rest change
	}
	if len(o.wants[c]) == 0 {
		delete(o.wants, c)
	}
}

// touch has all units settled that want c.
func (o *objects) touch(c Claim) {
	for _, h := range o.wants[c] {
		o.dirty[h.unit] = true
	}
}

// first returns the holder that gets a claim unless a file has it; zero: none wants it.
func (o *objects) first(c Claim) (h holder) {
	if list := o.wants[c]; len(list) > 0 {
		return list[0]
	}
	return h
}

// used returns the service of a name as an object provides it; nil: none does.
func (o *objects) used(key source.Key) *source.Service {
	h := o.first(Claim{key: key})
	if h.unit == nil {
		return nil
	}
	i := slices.IndexFunc(h.unit.used, func(s *source.Service) bool { return s.Key == key })
	if i < 0 {
		return nil
	}
	return h.unit.used[i]
}

// setObject sets what an object wants.
func (t step) setObject(su source.Unit) {
	u := t.unit(su.ID)
	t.withdraw(u) // what it wanted before
	u.Unit, u.wanted, u.named = su, su.Services, make([]bool, len(su.Services))
	u.Services = nil
	u.load = source.TotalProducts(u.wanted)
	t.objects.load = t.objects.load.Plus(u.load)
	for _, s := range u.wanted {
		t.objects.want(Claim{key: s.Key}, holder{u, s})
	}
	t.objects.dirty[u] = true
}

// withdraw withdraws all claims of an object.
func (t step) withdraw(u *unit) {
	t.objects.load = t.objects.load.Minus(u.load)
	for i, s := range u.wanted {
		t.enter(u, i, false)
		t.objects.leave(Claim{key: s.Key}, holder{u, s})
	}
}

// removeObject removes an object.
func (t step) removeObject(u *unit) {
	t.remember(u)
	t.withdraw(u)
	delete(t.units, u.ID)
	delete(t.objects.lacking, u.ID)
	delete(t.objects.dirty, u)
}

// enter lets one service of u claim everything, or only its name: if another unit
// owns the name, nothing of the service is used.
func (t step) enter(u *unit, i int, named bool) {
	if u.named[i] == named {
		return
	}
	u.named[i] = named
	for c := range Of(u.wanted[i]) {
		switch {
		case c.Port == 0:
		case named:
			t.objects.want(c, holder{u, u.wanted[i]})
		default:
			t.objects.leave(c, holder{u, u.wanted[i]})
		}
	}
}

// settleObjects grants objects the claims that no unit before them owns.
func (t step) settleObjects() {
	t.admit()
	for c := range t.touched {
		t.objects.touch(c)
	}
	clear(t.touched)
	var dirty []*unit
	for len(t.objects.dirty) > 0 { // a unit that enters makes others dirty
		next := slices.SortedFunc(maps.Keys(t.objects.dirty), (*unit).compare)
		t.objects.dirty = make(map[*unit]bool) // not cleared: that costs what the first list took, each time
		for _, u := range next {
			for i, s := range u.wanted {
				t.enter(u, i, !u.excess && t.owner(Claim{key: s.Key}) == holder{u, s})
			}
		}
		dirty = append(dirty, next...)
	}
	for _, u := range dirty {
		t.remember(u)
	}
	for _, u := range dirty {
		t.useRest(u)
	}
}

// owner returns the holder of a claim.
func (t *Tracker) owner(c Claim) holder {
	if h, held := t.claims[c]; held {
		return h
	}
	return t.objects.first(c)
}

// useRest uses the part of an object whose claims it owns.
func (t step) useRest(u *unit) {
	var used []*source.Service
	var faults []source.Fault
	if u.excess {
		faults = u.faults
	} else {
		for i, s := range u.wanted {
			rest, why := t.rest(holder{u, s}, u.named[i])
			if faults = append(faults, why...); rest != nil {
				used = append(used, rest)
			}
		}
	}
	u.used, u.faults = used, faults
	t.rememberAbsent(u)
	if _, was := t.objects.lacking[u.ID]; len(faults) > 0 && !was {
		u.refusedAt = time.Now()
		t.objects.lacking[u.ID] = u
		t.news = append(t.news, u)
	} else if len(faults) == 0 {
		delete(t.objects.lacking, u.ID)
	}
}

// rest returns the service without the claims that another unit owns (nil if it owns
// the name), and says which they are.
func (t step) rest(h holder, named bool) (*source.Service, []source.Fault) {
	if !named {
		c := Claim{key: h.svc.Key}
		return nil, []source.Fault{taken(h.svc, c, t.owner(c))}
	}
	var faults []source.Fault
	out := *h.svc
	for c := range Of(h.svc) {
		o := t.owner(c)
		if o == h {
			continue
		}
		faults = append(faults, taken(h.svc, c, o))
		if !c.Addr.IsValid() && c.Protocol == source.TCP && c.Port == out.HealthCheckNodePort {
			out.HealthCheckNodePort = 0
			continue
		}
		out.Without = append(out.Without, c.PortAddr())
	}
	if len(faults) == 0 {
		return h.svc, nil
	}
	return &out, faults
}
