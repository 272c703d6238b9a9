package read

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"svcproxy.dev/svcproxy/internal/parallel"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A Bound is a version of a service file whose services have the endpoints of their lists. What a list says itself
// decides whether it is in use. Whether it fits is decided here, for each service:
//
//   - It takes the list in use where that fits it, and the file stays within the limits.
//   - Else it keeps the version of the list that it has. The fault is one of the list.
//   - Where that does not fit either, since the service is new or has changed, the version of the file cannot be used.
type Bound struct {
	Version  *Version
	Services []*source.Service         // in the order of the version
	Lists    map[string]*Version       // those in use, by name
	Kept     map[source.Key]*Version   // what services keep in place of these; nil: a service has no endpoints
	Faults   map[string][]source.Fault // why, by name of the list
	Warned   []source.Fault
	Unfit    bool     // the version cannot be used, since a service fits no version of its list; only a start uses it nevertheless
	Known    Bindings // what was bound, so that it is not bound again

	own source.Products // of the services without the endpoints of lists
}

// A binding is a service that was bound to a list.
type binding struct {
	Service  *source.Service
	problems []source.Problem
	Faults   []source.Fault // those, with their places; nil: not placed yet
}

// Bindings are services that were bound to lists. Neither the one nor the other ever changes.
type Bindings map[BindingKey]binding

// A BindingKey names a binding.
type BindingKey struct {
	Service *source.Service // as it was read
	List    *EndpointList
}

// A Lookup returns the version of a list that is in use, or says why there is none.
type Lookup func(name string) (list *Version, why string)

// Bind binds the services of v to lists. base is what is in use of the file, perhaps of another version; nil: nothing. kept are
// versions of lists, by name, that services may keep whose own base has none, as at a start: the newest last. Services that were
// bound before are in known; places are those of the step, nil: there are no other files in it.
func (rules Rules) Bind(v *Version, list Lookup, base *Bound, kept map[string][]*Version, places Places, known ...Bindings) *Bound {
	b := &Bound{Version: v, Services: v.Services}
	if len(v.Lists) == 0 {
		return b
	}
	b.Services, b.Lists, b.Kept = slices.Clone(v.Services), map[string]*Version{}, map[source.Key]*Version{}
	b.Faults, b.Known = map[string][]source.Fault{}, Bindings{}
	c := choosing{Bound: b, rules: rules, base: cmp.Or(base, &Bound{}), places: places, known: append(known, b.Known), again: base.Of(v)}
	if places == nil {
		c.places = Places{}
	}
	c.begin(list, kept)
	for c.limit(); c.try(); c.limit() {
	}
	c.end()
	return b
}

// Of reports whether b is of version v.
func (b *Bound) Of(v *Version) bool {
	return b != nil && b.Version != nil && b.Version.ID == v.ID
}

// AllFaults returns the faults of all lists.
func (b *Bound) AllFaults() (faults []source.Fault) {
	for _, name := range slices.Sorted(maps.Keys(b.Faults)) {
		faults = append(faults, b.Faults[name]...)
	}
	return decode.Cap(b.Version.Path, faults)
}

// A choosing finds out which version of its list each service of a file takes.
type choosing struct {
	*Bound
	rules   Rules
	base    *Bound
	places  Places
	known   []Bindings
	again   bool // base is of this version, and what fits nothing stays as it is there
	choices []choice
}

// A choice is which version of its list a service takes.
type choice struct {
	*source.Service            // as it was read
	index           int        // of it
	now             *Version   // in use; nil: none
	others          []*Version // what it may keep, the best first
	refused         bool       // not now
}

// had returns the best that the service may keep; nil: nothing.
func (x *choice) had() *Version {
	if len(x.others) == 0 {
		return nil
	}
	return x.others[0]
}

// chosen returns the version that a service takes; nil: none.
func (x *choice) chosen() *Version {
	if x.refused {
		return x.had()
	}
	return x.now
}

func (c *choosing) begin(list Lookup, kept map[string][]*Version) {
	var had map[source.Key]*source.Service // where another version is in use
	if c.own = c.base.own; !c.again {
		had, c.own = c.base.Version.ByKey(), source.Products{}
		for _, s := range c.Version.Services {
			c.own = c.own.Plus(s.Products())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Version.Lists)) {
		now, why := list(name)
		if now == nil {
			c.Faults[name] = withoutLists(c.Version, name, why)
		} else {
			c.Lists[name] = now
		}
		shared := c.shared(name, kept[name])
		if now != nil && kept != nil && c.base.Version == nil { // it was used before this start
			shared = append(shared, now)
		}
		for _, i := range c.Version.Lists[name] {
			x := choice{Service: c.Version.Services[i], index: i, now: now, refused: now == nil, others: shared}
			if was := had[x.Key]; c.again || was != nil && was.EndpointsFrom == name {
				l, keeps := c.base.Kept[x.Key]
				if !keeps {
					l = c.base.Lists[name]
				}
				switch {
				case c.again:
					x.others = []*Version{l}
				case l != nil:
					x.others = slices.Concat([]*Version{l}, shared)
				}
			}
			c.choices = append(c.choices, x)
		}
	}
}

// shared returns the versions of a list that any service may keep: those that others of the file have, and kept.
func (c *choosing) shared(name string, kept []*Version) (list []*Version) {
	of := map[[sha256.Size]byte]*Version{}
	if l, now := c.base.Lists[name], c.Lists[name]; l != nil && (now == nil || l.ID != now.ID) {
		of[l.ID] = l
	}
	for _, l := range c.base.Kept {
		if l != nil && filepath.Base(l.Path) == name {
			of[l.ID] = l
		}
	}
	list = slices.SortedFunc(maps.Values(of), func(a, b *Version) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	for _, l := range slices.Backward(kept) {
		if l.List != nil && of[l.ID] == nil {
			list = append(list, l)
		}
	}
	return list
}

// limit refuses lists with which the services of the file are multiplied to more than it may have. It is asked before
// anything is bound. What services have is counted first, then what takes no more than that.
func (c *choosing) limit() {
	limits := c.rules.Limits.Products()
	if limits.Exceeded(c.sum((*choice).chosen), source.OfFile) == nil {
		return
	}
	sum := c.sum((*choice).had)
	for _, smaller := range []bool{true, false} {
		for i := range c.choices {
			x := &c.choices[i]
			had, now := x.size(x.had()), x.size(x.now)
			if x.refused || (had.Exceeded(now, source.OfFile) == nil) != smaller {
				continue
			}
			with := sum.Minus(had).Plus(now)
			if e := limits.Exceeded(with, source.OfFile); e != nil && !smaller {
				x.refused = true
				c.noteExcess(x, e)
			} else {
				sum = with
			}
		}
	}
	if e := limits.Exceeded(sum, source.OfFile); e != nil && !c.again {
		c.Unfit = true
		c.noteExcess(&c.choices[0], e)
	}
}

// noteExcess notes why a list is not for a service, unless something else is noted of it.
func (c *choosing) noteExcess(x *choice, problem *source.Problem) {
	if c.Faults[x.EndpointsFrom] == nil {
		c.Faults[x.EndpointsFrom] = []source.Fault{{Pos: x.EndpointsFromPos(), Msg: problem.Msg, Hint: problem.Hint}}
	}
}

// sum returns what all services are multiplied to with these versions of lists.
func (c *choosing) sum(list func(*choice) *Version) source.Products {
	sum := c.own
	for i := range c.choices {
		x := &c.choices[i]
		sum = sum.Minus(x.size(nil)).Plus(x.size(list(x)))
	}
	return sum
}

// size returns what a service is multiplied to with a version of a list; nil: none.
func (x *choice) size(l *Version) source.Products {
	if l == nil {
		return x.Products()
	}
	return x.ProductsWith(l.List.count)
}

// try binds services to what was chosen. It reports whether that does not fit one which has another choice.
func (c *choosing) try() (misfits bool) {
	var missing []BindingKey
	for i := range c.choices {
		x := &c.choices[i]
		if l := x.chosen(); l != nil && !(x.refused && c.again) && !c.find(x.key(l)) {
			missing = append(missing, x.key(l))
		}
	}
	for some := range slices.Chunk(missing, 32) { // a few first: they may say that a list fits none
		found := make([]binding, len(some))
		parallel.Do(len(some), func(i int) { found[i] = c.places.ask(c.rules, some[i]) })
		for i, key := range some {
			c.Known[key] = found[i]
			c.places.remember(key.List, found[i].problems)
		}
	}
	for i := range c.choices {
		x := &c.choices[i]
		switch l := x.chosen(); {
		case l == nil || x.refused && c.again || !anyFatal(c.Known[x.key(l)].problems):
		case !x.refused:
			x.refused, misfits = true, true
		case len(x.others) > 1:
			x.others, misfits = x.others[1:], true
		}
	}
	return misfits
}

func (x *choice) key(l *Version) BindingKey { return BindingKey{x.Service, l.List} }

// find reports whether something is bound already.
func (c *choosing) find(key BindingKey) bool {
	for _, known := range c.known {
		if b, ok := known[key]; ok {
			c.Known[key] = b
			return true
		}
	}
	return false
}

// end sets the services, and what is wrong.
func (c *choosing) end() {
	for i := range c.choices {
		x := &c.choices[i]
		l := x.chosen()
		switch {
		case x.refused && c.again:
			c.Services[x.index], c.Kept[x.Key] = c.base.Services[x.index], l
			continue
		case l == nil:
			c.Unfit = true
		case anyFatal(c.Known[x.key(l)].problems):
			c.Unfit = true
			l = c.unchecked(x, l)
		default:
			c.Services[x.index] = c.Known[x.key(l)].Service
		}
		if x.refused {
			c.Kept[x.Key] = l
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Lists)) {
		c.report(name, c.Lists[name])
	}
	if c.Warned = decode.Cap(c.Version.Path, c.Warned); c.Version.Hidden {
		c.Warned = hideWords(c.Warned)
		for name, faults := range c.Faults {
			c.Faults[name] = hideWords(faults)
		}
	}
}

// unchecked binds a service to what it has where only this host cannot do that any more. At a start there is nothing else
// that it could stay. It returns nil where that is not why.
func (c *choosing) unchecked(x *choice, l *Version) *Version {
	rules := c.rules
	rules.Check = nil
	bound, problems := rules.bind(x.Service, l.List)
	if anyFatal(problems) {
		return nil
	}
	c.Services[x.index] = bound
	return l
}

// withoutLists returns the faults of services whose list does not exist, up to the fault limit.
func withoutLists(v *Version, name, why string) (faults []source.Fault) {
	hint := ""
	if why == LacksList {
		hint = "the file is used once the list is there: [] is one without endpoints"
	}
	for _, i := range v.Lists[name] {
		if s := v.Services[i]; !decode.TooMany(faults) {
			faults = append(faults, source.Fault{Pos: s.EndpointsFromPos(), Msg: source.Excerpt(s.EndpointsFrom) + " " + why, Hint: hint})
		}
	}
	return decode.Cap(v.Path, faults)
}

// report notes what is wrong with the services that refer to a list, as far as anyone reads it.
func (c *choosing) report(name string, l *Version) {
	var bad, good, missing []BindingKey // good: there are warnings only
	problems := map[bool]int{}          // of those
	for i := range c.choices {
		x := &c.choices[i]
		if x.now != l {
			continue
		}
		found := c.Known[x.key(l)]
		if len(found.problems) == 0 {
			continue
		}
		of, fatal := &good, anyFatal(found.problems)
		if fatal {
			of = &bad
		}
		if problems[fatal] > mostPlaced {
			continue
		}
		*of, problems[fatal] = append(*of, x.key(l)), problems[fatal]+len(found.problems)
		if found.Faults == nil {
			missing = append(missing, x.key(l))
		}
	}
	c.places.place(l.List, missing, c.Known)
	for _, key := range bad {
		c.Faults[name] = decode.Cap(c.Version.Path, append(c.Faults[name], c.Known[key].Faults...))
	}
	for _, key := range good {
		if !decode.TooMany(c.Warned) {
			c.Warned = append(c.Warned, c.Known[key].Faults...)
		}
	}
}

// Places are what a step knows of the lists of its files: where endpoints stand that do not fit, and which one did not fit
// services so often that others are asked about it alone. Many files may refer to one list that fits none of them.
type Places map[*EndpointList]*listPlaces

type listPlaces struct {
	at       map[string]source.Position // by path
	problems int                        // of services that it does not fit
	misfit   int                        // the index of an endpoint that did not fit the last of these
}

// mostPlaced is how many problems of services with one list are found and placed: more than decode.Cap keeps.
const mostPlaced = 1000

// ask binds a service to a list. Of a list that many did not fit, it stops at the first endpoint at fault that others had.
func (p Places) ask(rules Rules, key BindingKey) (b binding) {
	if is := p[key.List]; is != nil && is.problems > mostPlaced {
		var one EndpointList
		one.take(key.List.Endpoints[is.misfit : is.misfit+1])
		_, problems := rules.bind(key.Service, &one)
		for _, problem := range problems {
			if i := misfitAt(problem); i == 0 {
				problem.Path = slices.Clone(problem.Path)
				problem.Path[1].Index = is.misfit
				return binding{problems: []source.Problem{problem}}
			}
		}
	}
	b.Service, b.problems = rules.bind(key.Service, key.List)
	return b
}

// misfitAt returns the index of the endpoint that cannot be used, as a problem says; -1: of none.
func misfitAt(p source.Problem) int {
	if p.Warning || len(p.Path) < 2 || !p.Path.Under(source.At(ListKey)) {
		return -1
	}
	return p.Path[1].Index
}

// remember notes the problems of a service that is bound to l.
func (p Places) remember(l *EndpointList, problems []source.Problem) {
	for _, problem := range problems {
		if i := misfitAt(problem); i >= 0 {
			is := p.entry(l)
			is.problems, is.misfit = is.problems+len(problems), i
			return
		}
	}
}

func (p Places) entry(l *EndpointList) *listPlaces {
	if p[l] == nil {
		p[l] = &listPlaces{at: map[string]source.Position{}}
	}
	return p[l]
}

// place makes faults of the problems of bindings: of an endpoint where that stands, others where the service refers
// to the list.
func (p Places) place(l *EndpointList, keys []BindingKey, known Bindings) {
	at := p.entry(l).at
	var missing []source.Path
	for _, key := range keys {
		for _, problem := range known[key].problems {
			if problem.Path.Under(source.At(ListKey)) && at[problem.Path.String()] == (source.Position{}) {
				missing = append(missing, problem.Path)
			}
		}
	}
	if len(missing) > 0 { // else the text of the list need not be read
		for i, pos := range l.Positions(missing) {
			at[missing[i].String()] = pos
		}
	}
	for _, key := range keys {
		b := known[key]
		b.Faults = faultsOf(key.Service, b.problems, func(path source.Path) source.Position {
			return cmp.Or(at[path.String()], source.Position{File: l.path})
		})
		if l.hidden {
			b.Faults = hideWords(b.Faults)
		}
		known[key] = b
	}
}

// LacksList is why there is no list of a name.
const LacksList = "is no file of this directory"

// HeldList is why there is none although the file is there, and good.
const HeldList = "is held, and waits for svcproxy apply or svcproxy confirm"

// BrokenList is why there is none although the file is there.
func BrokenList(v *Version) string {
	if f := source.FirstError(v.Faults); f != nil {
		return fmt.Sprintf("cannot be used, and no good version of it is known: %s", f)
	}
	return LacksList
}
