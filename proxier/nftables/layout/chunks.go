package layout

import (
	"slices"

	"svcproxy.dev/svcproxy/internal/maglev"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// ChunkElements is about how many elements a transaction changes at most in a
// table that packets meet. The kernel processes a transaction without a pause, some
// 5 us an element, and nothing else runs on that core.
const ChunkElements = 5_000

// Chunks splits a delta into deltas that are applied one after the other. A service
// changes in one step, and so do services of which one takes over what another
// had: their elements are the same.
//
// Elements that keep packets from being refused come before the services, elements
// that refuse packets after them.
func Chunks(d *policy.Delta, most int) []*policy.Delta {
	if elementsOf(d) <= most {
		return []*policy.Delta{d}
	}
	var list []*policy.Delta
	for part := range slices.Chunk(d.Hairpins.Gained, most) {
		list = append(list, &policy.Delta{Hairpins: onlyGained(part)})
	}
	list = append(list, serviceChunks(d.Services, most)...)
	for part := range slices.Chunk(d.RefusedAddrs.Gained, most) {
		list = append(list, &policy.Delta{RefusedAddrs: onlyGained(part)})
	}
	for part := range slices.Chunk(d.RefusedAddrs.Lost, most) {
		list = append(list, &policy.Delta{RefusedAddrs: onlyLost(part)})
	}
	for part := range slices.Chunk(d.Hairpins.Lost, most) {
		list = append(list, &policy.Delta{Hairpins: onlyLost(part)})
	}
	return list
}

func onlyGained[T comparable](list []T) policy.SetDelta[T] { return policy.SetDelta[T]{Gained: list} }

func onlyLost[T comparable](list []T) policy.SetDelta[T] { return policy.SetDelta[T]{Lost: list} }

// serviceChunks groups services that are applied in one transaction.
func serviceChunks(changes []policy.ServiceChange, most int) []*policy.Delta {
	var list []*policy.Delta
	room := 0
	for _, group := range groupDependent(changes) {
		n := 0
		for _, c := range group {
			n += elementsOfService(c.Old) + elementsOfService(c.New)
		}
		if room < n || len(list) == 0 {
			list = append(list, &policy.Delta{})
			room = most
		}
		last := list[len(list)-1]
		last.Services = append(last.Services, group...)
		room -= n
	}
	return list
}

// groupDependent groups services: one that takes over an address is with the one
// that had it.
func groupDependent(changes []policy.ServiceChange) [][]policy.ServiceChange {
	had := map[policy.FrontendKey]int{}
	for i, c := range changes {
		for _, f := range c.Old.AllFrontends() {
			had[f.Key.WithoutKind()] = i
		}
	}
	group := make([]int, len(changes)) // of each, the first of its group or one on the way to it
	for i := range group {
		group[i] = i
	}
	first := func(i int) int {
		for group[i] != i {
			i = group[i]
		}
		return i
	}
	for i, c := range changes {
		for _, f := range c.New.AllFrontends() {
			if j, ok := had[f.Key.WithoutKind()]; ok {
				a, b := first(i), first(j)
				group[max(a, b)] = min(a, b)
			}
		}
	}
	members := map[int][]policy.ServiceChange{}
	for i, c := range changes {
		members[first(i)] = append(members[first(i)], c)
	}
	var list [][]policy.ServiceChange
	for i := range changes {
		if m := members[i]; m != nil {
			list = append(list, m)
		}
	}
	return list
}

// elementsOf returns an upper estimate of how many elements a delta changes.
func elementsOf(d *policy.Delta) int {
	n := len(d.RefusedAddrs.Gained) + len(d.RefusedAddrs.Lost) + len(d.Hairpins.Gained) + len(d.Hairpins.Lost)
	for _, c := range d.Services {
		n += elementsOfService(c.Old) + elementsOfService(c.New)
	}
	return n
}

// elementsOfService counts slots, targets and source ranges, and for each frontend
// and route the sets in which it is one element.
func elementsOfService(res *policy.Resolved) int {
	const flags = 4
	n := 0
	for _, f := range res.AllFrontends() {
		n += flags + elementsOfPool(f.Outside.Pool) + 2*len(f.NodePortAddrs)
		if f.Split() {
			n += flags + elementsOfPool(f.FromLocal.Pool)
		}
		if f.Restricted {
			n += 1 + len(f.SourceRanges)
		}
	}
	return n
}

func elementsOfPool(p *policy.Pool) int {
	const affinitySets = 3 // timeout, size and pool
	if p.Affinity > 0 {
		return affinitySets + len(p.Targets) + slotCount(p.Targets)
	}
	if p.Hash.On != source.NotHashed {
		return maglev.Size(p.Hash.Endpoints)
	}
	return slotCount(p.Targets)
}
