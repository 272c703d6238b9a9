package loop

import (
	"svcproxy.dev/svcproxy/proxier/policy"
)

// hairpins are the targets of a growing service that may reach themselves.
type hairpins struct {
	pools   map[*policy.Pool]bool  // the State's HairpinPools
	targets map[policy.Hairpin]int // how many of these have it
	wanted  map[*policy.Pool]bool  // of what is wanted; true: of its HairpinPools
}

func newHairpins(now, wanted *policy.Resolved) hairpins {
	h := hairpins{pools: make(map[*policy.Pool]bool), targets: make(map[policy.Hairpin]int), wanted: make(map[*policy.Pool]bool)}
	for _, p := range now.HairpinPools {
		h.set(p, true)
	}
	if wanted != nil {
		for _, p := range wanted.Pools {
			h.wanted[p] = false
		}
		for _, p := range wanted.HairpinPools {
			h.wanted[p] = true
		}
	}
	return h
}

// set has the targets of a pool be hairpins or not, and returns those that are from now on, or no more.
func (h *hairpins) set(p *policy.Pool, is bool) (gained, lost []policy.Hairpin) {
	if h.pools[p] == is {
		return nil, nil
	}
	if h.pools[p] = is; !is {
		delete(h.pools, p)
	}
	for _, t := range p.Targets {
		at := policy.NewHairpin(t.AddrPort, p.Protocol)
		if is {
			if h.targets[at]++; h.targets[at] == 1 {
				gained = append(gained, at)
			}
		} else if h.targets[at]--; h.targets[at] == 0 {
			delete(h.targets, at)
			lost = append(lost, at)
		}
	}
	return gained, lost
}

// change returns the targets that may reach themselves from a piece on, and those that may no more.
func (h *hairpins) change(part *policy.ServiceChange, uses *sharing, last bool) (gained, lost []policy.Hairpin) {
	set := func(p *policy.Pool, is bool) {
		more, less := h.set(p, is)
		gained, lost = append(gained, more...), append(lost, less...)
	}
	for _, p := range policy.PoolsOf(part.New.Frontends) {
		if h.wanted[p] {
			set(p, true)
		}
	}
	for _, p := range policy.PoolsOf(part.Old.Frontends) {
		if !uses.inUse(p) {
			set(p, false)
		}
	}
	if !last {
		return gained, lost
	}
	for p, is := range h.wanted {
		set(p, is)
	}
	for p := range h.pools {
		set(p, h.wanted[p])
	}
	return gained, lost
}
