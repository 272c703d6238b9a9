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
		if f.FromLocal.Pool != f.Outside.Pool && !yield(share{outside: policy.Route{Pool: f.FromLocal.Pool}}) {
			return
		}
		_ = yield(share{local: policy.Route{Pool: f.FromLocal.Pool}}) && yield(share{f.Outside, f.FromLocal})
	}
}

// sharing says what the frontends of a growing service need together.
type sharing struct {
	uses    map[share]int              // by how many frontends in the State
	users   map[share]*policy.Frontend // one of these
	hairpin map[*policy.Pool]bool      // the State's HairpinPools
	targets map[policy.Hairpin]int     // how many of these have it
	wanted  map[*policy.Pool]bool      // pools of what is wanted; true: of its HairpinPools
}

func newSharing(now, wanted *policy.Resolved) sharing {
	s := sharing{
		uses: usesOf(now.Frontends), users: make(map[share]*policy.Frontend), hairpin: make(map[*policy.Pool]bool),
		targets: make(map[policy.Hairpin]int), wanted: make(map[*policy.Pool]bool),
	}
	for _, p := range now.HairpinPools {
		s.setHairpin(p, true)
	}
	if wanted != nil {
		for _, p := range wanted.Pools {
			s.wanted[p] = false
		}
		for _, p := range wanted.HairpinPools {
			s.wanted[p] = true
		}
	}
	return s
}

// usesOf returns how many of the frontends need each share.
func usesOf(frontends []*policy.Frontend) map[share]int {
	uses := make(map[share]int)
	for _, f := range frontends {
		for s := range sharesOf(f) {
			uses[s]++
		}
	}
	return uses
}

// count updates uses, users are found later.
func (s *sharing) count(part *policy.ServiceChange) {
	for sh, n := range usesOf(part.Old.Frontends) {
		if s.uses[sh] -= n; s.uses[sh] == 0 {
			delete(s.uses, sh)
		}
	}
	for sh, n := range usesOf(part.New.Frontends) {
		s.uses[sh] += n
	}
}

// inUse reports whether a frontend in the State has a pool.
func (s *sharing) inUse(p *policy.Pool) bool {
	return s.uses[share{outside: policy.Route{Pool: p}}] > 0
}

// addUsers adds to both sides of a part one frontend that stays for each share that others need, too.
func (s *sharing) addUsers(part *policy.ServiceChange, was *policy.Resolved) {
	places, own, missing := make(map[policy.FrontendKey]bool), usesOf(part.New.Frontends), make(map[share]bool)
	for _, f := range slices.Concat(part.Old.Frontends, part.New.Frontends) {
		places[f.Key.WithoutKind()] = true
		for sh := range sharesOf(f) {
			if s.uses[sh] > own[sh] {
				missing[sh] = true
			}
		}
	}
	var users []*policy.Frontend
	add := func(f *policy.Frontend) {
		users = append(users, f)
		for sh := range sharesOf(f) {
			delete(missing, sh)
		}
	}
	for sh := range missing {
		if f := s.users[sh]; missing[sh] && f != nil && !places[f.Key.WithoutKind()] && hasFrontend(was, f) {
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
		for sh := range sharesOf(f) {
			if missing[sh] {
				needed, s.users[sh] = true, f
			}
		}
		if needed {
			add(f)
		}
	}
	for _, f := range part.New.Frontends {
		for sh := range sharesOf(f) {
			s.users[sh] = f
		}
	}
	for _, r := range []*policy.Resolved{part.Old, part.New} {
		r.Frontends = append(r.Frontends, users...)
		slices.SortFunc(r.Frontends, func(a, b *policy.Frontend) int { return a.Key.Compare(b.Key) })
	}
}

// setHairpin has the targets of a pool be hairpins or not, and returns those that are from now on, or no more.
func (s *sharing) setHairpin(p *policy.Pool, is bool) (gained, lost []policy.Hairpin) {
	if s.hairpin[p] == is {
		return nil, nil
	}
	if s.hairpin[p] = is; !is {
		delete(s.hairpin, p)
	}
	for _, t := range p.Targets {
		at := policy.NewHairpin(t.AddrPort, p.Protocol)
		if is {
			if s.targets[at]++; s.targets[at] == 1 {
				gained = append(gained, at)
			}
		} else if s.targets[at]--; s.targets[at] == 0 {
			delete(s.targets, at)
			lost = append(lost, at)
		}
	}
	return gained, lost
}

// hairpins returns the targets that may reach themselves from a piece on, and those that may no more.
func (s *sharing) hairpins(part *policy.ServiceChange, last bool) (gained, lost []policy.Hairpin) {
	set := func(p *policy.Pool, is bool) {
		more, less := s.setHairpin(p, is)
		gained, lost = append(gained, more...), append(lost, less...)
	}
	for _, p := range policy.PoolsOf(part.New.Frontends) {
		if s.wanted[p] {
			set(p, true)
		}
	}
	for _, p := range policy.PoolsOf(part.Old.Frontends) {
		if !s.inUse(p) {
			set(p, false)
		}
	}
	if !last {
		return gained, lost
	}
	for p, is := range s.wanted {
		set(p, is)
	}
	for p := range s.hairpin {
		set(p, s.wanted[p])
	}
	return gained, lost
}
