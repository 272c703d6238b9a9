package layout

import (
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// A step of a slow start is to change few slots, however many the pool has. Divided
// by what all weights have in common, weights of which one has a tenth, then two, give
// each other target another number of slots. So above fewTargets each target of a service
// with slow start has tenths, whether one starts or not: ten slots for each that it has by
// its settled weight, as far as slotLimit allows. One that starts has its share of these:
// a whole number of slots, at least one. Those of all others stay what they are, from the
// first step to the last; where weights are equal, also when it comes and when it leaves.
//
// A smaller pool is rewritten by each step, which is at most 256 slots.
const (
	// fewTargets is up to how many targets a pool is rewritten by each step of a slow start.
	fewTargets = 16

	tenths = policy.SlowStartSteps
)

// inTenths reports whether targets have slots for each step of a slow start.
func inTenths(targets []policy.Target) bool {
	return len(targets) > fewTargets && targets[0].Settled > 0
}

// startCounts returns how many slots each of many targets has, some of which start.
func startCounts(targets []policy.Target) []uint64 {
	counts := weightCounts(settled(targets), worstMissedTwice)
	steps := min(tenths, slotLimit(len(targets))/sumOf(counts))
	alike := startAlike(targets)
	for i, t := range targets {
		if counts[i] *= steps; !alike {
			counts[i] = max(1, (counts[i]*uint64(t.Weight)+uint64(t.Settled)/2)/uint64(t.Settled))
		}
	}
	return counts
}

// settled returns the targets as they are when none of them starts.
func settled(targets []policy.Target) []policy.Target {
	list := slices.Clone(targets)
	for i := range list {
		list[i].Weight = list[i].Settled
	}
	return list
}

// startAlike reports whether all targets have the same part of their weight: all of it,
// or less where all began at once. Their shares are then those of settled ones.
func startAlike(targets []policy.Target) bool {
	first := targets[0]
	for _, t := range targets[1:] {
		if uint32(t.Weight)*uint32(first.Settled) != uint32(first.Weight)*uint32(t.Settled) {
			return false
		}
	}
	return true
}
