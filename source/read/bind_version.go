package read

import (
	"bytes"
	"cmp"
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

// Bind binds the services of v to lists. base is what is in use of the file, perhaps of another version; nil: nothing.
// Services that were bound before are in known; places are those of the step, nil: there are no other files in it.
func (rules Rules) Bind(v *Version, list Lookup, base *Bound, places Places, known ...Bindings) *Bound {
	b := &Bound{Version: v, Services: v.Services}
	if len(v.Lists) == 0 {
		return b
	}
	b.Services, b.Lists, b.Kept = slices.Clone(v.Services), map[string]*Version{}, map[source.Key]*Version{}
	b.Faults, b.Known = map[string][]source.Fault{}, Bindings{}
	c := choosing{Bound: b, rules: rules, base: base, places: places, known: append(known, b.Known), again: base.Of(v)}
	if places == nil {
		c.places = Places{}
	}
	if c.base == nil {
		c.base = &Bound{}
	}
	c.begin(list)
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
	*source.Service                // as it was read
	index           int            // of it
	now             *Version       // in use; nil: none
	had             *Version       // nil: none
	refused         bool           // not now
	excess          *source.Excess // why; nil: it does not fit
}

// list returns the version that a service takes; nil: none.
func (x *choice) list() *Version {
	if x.refused {
		return x.had
	}
	return x.now
}

func (c *choosing) begin(list Lookup) {
	var known map[source.Key]*source.Service // nil: all had what is in use, as at a start
	if !c.again {
		known = c.base.Version.ByKey()
	}
	for _, name := range slices.Sorted(maps.Keys(c.Version.Lists)) {
		now, why := list(name)
		if now == nil {
			c.Faults[name] = withoutLists(c.Version, name, why)
		} else {
			c.Lists[name] = now
		}
		for _, i := range c.Version.Lists[name] {
			x := choice{Service: c.Version.Services[i], index: i, now: now, refused: now == nil}
			if l, keeps := c.base.Kept[x.Key]; keeps && (l == nil || filepath.Base(l.Path) == name) {
				x.had = l
			} else if known == nil || known[x.Key] != nil && known[x.Key].EndpointsFrom == name {
				x.had = c.base.Lists[name]
			}
			c.choices = append(c.choices, x)
		}
	}
}

// limit refuses lists with which the services of the file are multiplied to more than it may have. It is asked before
// anything is bound. What services have is counted first, then what takes no more than that.
func (c *choosing) limit() {
	limits := c.rules.Limits.Products()
	if limits.Exceeded(c.sum((*choice).list)) == nil {
		return
	}
	sum := c.sum(func(x *choice) *Version { return x.had })
	for _, smaller := range []bool{true, false} {
		for i := range c.choices {
			x := &c.choices[i]
			had, now := x.size(x.had), x.size(x.now)
			if x.refused || (had.Exceeded(now) == nil) != smaller {
				continue
			}
			with := sum.Minus(had).Plus(now)
			if e := limits.Exceeded(with); e != nil && !smaller {
				x.refused, x.excess = true, e
			} else {
				sum = with
			}
		}
	}
	if e := limits.Exceeded(sum); e != nil && !c.again {
		c.Unfit, c.choices[0].excess = true, e
	}
}

// sum returns what all services are multiplied to with these versions of lists.
func (c *choosing) sum(list func(*choice) *Version) source.Products {
	sum := c.Version.products
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
	return x.ProductsOf(source.CountPorts(x.Ports), l.List.count)
}

// try binds services to what was chosen. It reports whether the list in use does not fit one for which it was.
func (c *choosing) try() (misfits bool) {
	c.share()
	var missing []BindingKey
	for i := range c.choices {
		x := &c.choices[i]
		if l := x.list(); l != nil && !(x.refused && c.again) && !c.find(x.key(l)) {
			missing = append(missing, x.key(l))
		}
	}
	found := make([]binding, len(missing))
	parallel.Do(len(missing), func(i int) {
		found[i].Service, found[i].problems = c.rules.bind(missing[i].Service, missing[i].List)
	})
	for i, key := range missing {
		c.Known[key] = found[i]
	}
	for i := range c.choices {
		if x := &c.choices[i]; !x.refused && anyFatal(c.Known[x.key(x.now)].problems) {
			x.refused, misfits = true, true
		}
	}
	return misfits
}

// share has services that fit no version they had, as those that are new, take what others of their file keep: of several
// versions the one with the lowest ID.
func (c *choosing) share() {
	others := map[string]*Version{}
	keeps := func(x *choice) bool { return x.had != nil && (x.now == nil || x.had.ID != x.now.ID) }
	for i := range c.choices {
		x := &c.choices[i]
		if o := others[x.EndpointsFrom]; x.refused && keeps(x) && (o == nil || bytes.Compare(x.had.ID[:], o.ID[:]) < 0) {
			others[x.EndpointsFrom] = x.had
		}
	}
	for i := range c.choices {
		if x := &c.choices[i]; x.refused && !c.again && !keeps(x) {
			x.had = cmp.Or(others[x.EndpointsFrom], x.had)
		}
	}
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
		l := x.list()
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
		c.note(name, c.Lists[name])
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

// note notes what is wrong with the services that refer to a list, as far as anyone reads it.
func (c *choosing) note(name string, l *Version) {
	var bad, good, missing []BindingKey // good: there are warnings only
	problems := map[bool]int{}          // of those
	for i := range c.choices {
		x := &c.choices[i]
		if x.now != l {
			continue
		}
		if x.excess != nil && c.Faults[name] == nil {
			problem := x.excess.Problem(source.OfFile)
			c.Faults[name] = []source.Fault{{Pos: x.EndpointsFromPos(), Msg: problem.Msg, Hint: problem.Hint}}
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

// Places are where problems of endpoints stand in lists, and bound how many of a step are looked for: many files may refer to
// one list that fits none of them.
type Places map[*EndpointList]*listPlaces

type listPlaces struct {
	at     map[string]source.Position // by path
	placed int                        // problems
}

// place makes faults of the problems of bindings: of an endpoint where that stands, others where the service refers
// to the list. Of services after the first that have many, that is one problem.
func (p Places) place(l *EndpointList, keys []BindingKey, known Bindings) {
	if p[l] == nil {
		p[l] = &listPlaces{at: map[string]source.Position{}}
	}
	is := p[l]
	var missing []source.Path
	for _, key := range keys {
		b := known[key]
		if is.placed > mostPlaced {
			first := slices.IndexFunc(b.problems, func(p source.Problem) bool { return !p.Warning })
			b.problems = slices.Clone(b.problems[max(0, first):][:1])
			known[key] = b
			continue
		}
		is.placed += len(b.problems)
		for _, problem := range b.problems {
			if problem.Path.Under(source.At(ListKey)) {
				missing = append(missing, problem.Path)
			}
		}
	}
	missing = slices.DeleteFunc(missing, func(path source.Path) bool { return is.at[path.String()] != (source.Position{}) })
	if len(missing) > 0 { // else the text of the list need not be read
		for i, at := range l.Positions(missing) {
			is.at[missing[i].String()] = at
		}
	}
	for _, key := range keys {
		b := known[key]
		b.Faults = faultsOf(key.Service, b.problems, func(path source.Path) source.Position {
			return cmp.Or(is.at[path.String()], source.Position{File: l.path})
		})
		if l.hidden {
			b.Faults = hideWords(b.Faults)
		}
		known[key] = b
	}
}

// mostPlaced is how many problems of services with one list are placed: more than decode.Cap keeps.
const mostPlaced = 1000

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
