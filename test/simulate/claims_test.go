package simulate

import (
	"cmp"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/policy"
)

// Sources, in order of precedence.
const (
	files   = "file"
	objects = "kubernetes"
)

// A unit is a file or an object of an API, as it was last handed over.
type unit struct {
	source.Unit
	used     []*source.Service // of a file: as last accepted
	accepted bool              // used is a version that was
	pending  bool              // Services is not
}

// Claims are a model of which unit owns which claim. A file has all that it names or nothing; files that exchange claims change
// together. Of what files leave, an object has what no object before it has.
type claims struct{ units map[source.UnitID]*unit }

func newClaims() *claims { return &claims{map[source.UnitID]*unit{}} }

// apply takes over what a source hands over.
func (c *claims) apply(ch source.Changes) {
	for _, id := range ch.Delete {
		delete(c.units, id)
	}
	for _, su := range ch.Set {
		u := c.units[su.ID]
		if u == nil {
			u = new(unit)
			c.units[su.ID] = u
		}
		u.Unit, u.pending = su, true
	}
	for _, u := range c.of(files) {
		c.settle(u)
	}
}

// of returns the units of a source in the order in which they get claims.
func (c *claims) of(name string) (list []*unit) {
	for _, u := range c.units {
		if u.ID.Source == name {
			list = append(list, u)
		}
	}
	last := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	slices.SortFunc(list, func(a, b *unit) int {
		return cmp.Or(last(!a.accepted)-last(!b.accepted), last(a.Since == 0)-last(b.Since == 0), cmp.Compare(a.Since, b.Since),
			cmp.Compare(a.ID.Name, b.ID.Name))
	})
	return list
}

// all returns what a source hands over that hands over everything.
func (c *claims) all(name string) (ch source.Changes) {
	for _, u := range c.of(name) {
		ch.Set = append(ch.Set, u.Unit)
	}
	return ch
}

// settle accepts a pending file together with as few other pending ones as it takes.
func (c *claims) settle(u *unit) {
	var others []*unit
	for _, o := range c.of(files) {
		if o != u && o.pending {
			others = append(others, o)
		}
	}
	for size := 0; u.pending && size <= len(others); size++ {
		for set := range 1 << len(others) {
			team := []*unit{u}
			for i, o := range others {
				if set>>i&1 == 1 {
					team = append(team, o)
				}
			}
			if len(team) == size+1 && c.fits(team) {
				for _, o := range team {
					o.used, o.accepted, o.pending = o.Services, true, false
				}
				return
			}
		}
	}
}

// fits reports whether no claim is made twice if a team changes.
func (c *claims) fits(team []*unit) bool {
	made := map[any]bool{}
	for _, u := range c.of(files) {
		list := u.used
		if slices.Contains(team, u) {
			list = u.Services
		}
		for _, s := range list {
			for _, x := range claimsOf(s) {
				if made[x] {
					return false
				}
				made[x] = true
			}
		}
	}
	return true
}

// claimsOf returns the name of a service, and its addresses and ports.
func claimsOf(s *source.Service) []any {
	all := []any{s.Key}
	for _, a := range policy.Claims(s) {
		all = append(all, a)
	}
	return all
}

// inUse returns the services in use.
func (c *claims) inUse() (list []*source.Service) {
	taken := map[any]bool{}
	for _, u := range c.of(files) {
		for _, s := range u.used {
			list = append(list, s)
			for _, x := range claimsOf(s) {
				taken[x] = true
			}
		}
	}
	for _, u := range c.of(objects) {
		for _, s := range u.Services {
			if taken[s.Key] {
				continue
			}
			rest := *s
			for _, a := range policy.Claims(s) {
				if taken[a] {
					rest.Without = append(rest.Without, a)
				}
			}
			for _, x := range claimsOf(s) {
				taken[x] = true
			}
			list = append(list, &rest)
		}
	}
	return list
}
