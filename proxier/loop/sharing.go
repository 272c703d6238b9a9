package loop

import (
	"iter"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// A share is something in the kernel that several frontends of a service may need: what there is of a
// pool, of a pool that rules balance to for local sources, or of a pair of routes.
type share struct{ outside, local policy.Route }

// sharesOf yields those of a frontend.
func sharesOf(f *policy.Frontend) iter.Seq[share] {
	return func(yield func(share) bool) {
		if !yield(share{outside: policy.Route{Pool: f.Outside.Pool}}) || !f.Split() {
			return
		}
		if f.Local.Pool != f.Outside.Pool && !yield(share{outside: policy.Route{Pool: f.Local.Pool}}) {
			return
		}
		_ = yield(share{local: policy.Route{Pool: f.Local.Pool}}) && yield(share{f.Outside, f.Local})
	}
}

// sharing says which shares the frontends of a growing service need.
type sharing struct {
	uses  map[share]int              // by how many frontends in the State
	users map[share]*policy.Frontend // one of these
}

func newSharing(frontends []*policy.Frontend) sharing {
	s := sharing{uses: make(map[share]int), users: make(map[share]*policy.Frontend)}
	s.add(frontends)
	return s
}

func (s *sharing) add(frontends []*policy.Frontend) {
	for _, f := range frontends {
		for sh := range sharesOf(f) {
			s.uses[sh]++
		}
	}
}

// count updates uses, users are found later.
func (s *sharing) count(part *policy.ServiceChange) {
	for _, f := range part.Old.Frontends {
		for sh := range sharesOf(f) {
			if s.uses[sh]--; s.uses[sh] == 0 {
				delete(s.uses, sh)
			}
		}
	}
	s.add(part.New.Frontends)
}

// inUse reports whether a frontend in the State has a pool.
func (s *sharing) inUse(p *policy.Pool) bool {
	return s.uses[share{outside: policy.Route{Pool: p}}] > 0
}

// addUsers adds to both sides of a part one frontend that stays for each share that others need, too.
func (g *sharing) addUsers(part *policy.ServiceChange, was *policy.Resolved) {
	places, own, missing := make(map[policy.FrontendKey]bool), make(map[share]int), make(map[share]bool)
	for _, f := range part.New.Frontends {
		places[f.Key.WithoutKind()] = true
		for s := range sharesOf(f) {
			own[s]++
		}
	}
	for _, f := range part.Old.Frontends {
		places[f.Key.WithoutKind()] = true
	}
	for _, r := range []*policy.Resolved{part.Old, part.New} {
		for _, f := range r.Frontends {
			for s := range sharesOf(f) {
				if g.uses[s] > own[s] {
					missing[s] = true
				}
			}
		}
	}
	var users []*policy.Frontend
	add := func(f *policy.Frontend) {
		users = append(users, f)
		for s := range sharesOf(f) {
			delete(missing, s)
		}
	}
	for s := range missing {
		if f := g.users[s]; missing[s] && f != nil && !places[f.Key.WithoutKind()] && hasFrontend(was, f) {
			add(f)
		}
	}
	for _, f := range slices.Backward(was.Frontends) {
		if len(missing) == 0 {
			break
		}
		if places[f.Key.WithoutKind()] {
			continue
		}
		needed := false
		for s := range sharesOf(f) {
			if missing[s] {
				needed, g.users[s] = true, f
			}
		}
		if needed {
			add(f)
		}
	}
	for _, f := range part.New.Frontends {
		for s := range sharesOf(f) {
			g.users[s] = f
		}
	}
	for _, r := range []*policy.Resolved{part.Old, part.New} {
		r.Frontends = append(r.Frontends, users...)
		slices.SortFunc(r.Frontends, func(a, b *policy.Frontend) int { return a.Key.Compare(b.Key) })
	}
}
