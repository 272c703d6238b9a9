package layout

import (
	"cmp"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// A new connection takes one of a pool's slots at random, and each target has as
// many of them as its weight, divided by what all weights have in common. Where
// that is more than slotsEach on average, weights are rounded: a pool has the least
// number of slots with which each target's share is off by no more than
// tolerance, of itself. If there is none within slotLimit, it has as many as that
// allows: a target then has a slot more or less than its share, and one whose share is
// less than one slot, such as of weight 1 beside 65535, has one.
const (
	// slotsEach is how many slots a target has at most, on average over its pool.
	slotsEach = 16

	// fewSlots is how many slots a pool may have if it needs them, however few its
	// targets: enough for one per cent.
	fewSlots = 128

	// tolerance is how far a target's share may be off, in thousandths of it.
	tolerance = 20
)

// weights returns the greatest common divisor of the weights, and their sum divided
// by it; 0 and 0 for no targets.
func weights(targets []policy.Target) (divisor, sum uint64) {
	for _, t := range targets {
		divisor = gcd(divisor, uint64(t.Weight))
		sum += uint64(t.Weight)
	}
	return divisor, sum / max(divisor, 1)
}

func slotLimit(targets int) uint64 { return uint64(max(fewSlots, slotsEach*targets)) }

// weightCounts returns how many slots each target has by its weight. What missed says of
// a number of slots comes off the tolerance.
func weightCounts(targets []policy.Target, missed func(slots uint64) uint64) []uint64 {
	divisor, sum := weights(targets)
	if sum > uint64(slotsEach*len(targets)) {
		return rounded(targets, missed)
	}
	counts := make([]uint64, len(targets))
	for i, t := range targets {
		counts[i] = uint64(t.Weight) / divisor
	}
	return counts
}

// rounded returns how many slots each of several targets has.
func rounded(targets []policy.Target, missed func(slots uint64) uint64) []uint64 {
	counts := make([]uint64, len(targets))
	limit := slotLimit(len(targets))
	for slots := uint64(len(targets)); slots <= limit; slots = nextSlotCount(slots) {
		if share(counts, targets, slots, tolerance-missed(slots)) {
			return counts
		}
	}
	approach(counts, targets, limit)
	return counts
}

// nextSlotCount returns the number of slots to try after another: every number up to
// fewSlots, then those whose random numbers all fall on a slot.
func nextSlotCount(slots uint64) uint64 {
	if slots < fewSlots {
		return slots + 1
	}
	return uint64(sizeClass(int(slots) + 1))
}

// share gives each target the whole number of slots below or above its share of
// them, if none is off by more than so many thousandths of it.
func share(counts []uint64, targets []policy.Target, slots, permille uint64) bool {
	sum := policy.WeightOf(targets)
	given := uint64(0)
	var either []int // targets for which both numbers are within the tolerance
	for i, t := range targets {
		exact := uint64(t.Weight) * slots // in parts of a slot, sum of which are one
		below := exact / sum
		far := func(n uint64) bool { return 1000*distance(n*sum, exact) > permille*exact }
		switch farBelow, farAbove := far(below), far(below+1); {
		case farBelow && farAbove:
			return false
		case farBelow:
			below++
		case !farAbove:
			either = append(either, i)
		}
		counts[i] = below
		given += below
	}
	if given > slots || given+uint64(len(either)) < slots {
		return false
	}
	raise(counts, either, targets, slots, sum, slots-given)
	return true
}

// raise gives one slot more to the n of some targets that lack most of their share.
func raise(counts []uint64, some []int, targets []policy.Target, slots, sum, n uint64) {
	lack := func(i int) uint64 { return uint64(targets[i].Weight)*slots - counts[i]*sum }
	slices.SortStableFunc(some, func(a, b int) int { return cmp.Compare(lack(b), lack(a)) })
	for _, i := range some[:n] {
		counts[i]++
	}
}

// approach distributes slots as close to the weights as possible with at least one
// slot for each target: the small ones get theirs first, the others share the rest.
func approach(counts []uint64, targets []policy.Target, slots uint64) {
	order := make([]int, len(targets))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(targets[a].Weight, targets[b].Weight) })
	sum := policy.WeightOf(targets)
	for len(order) > 0 && uint64(targets[order[0]].Weight)*slots < sum {
		counts[order[0]] = 1
		slots, sum = slots-1, sum-uint64(targets[order[0]].Weight)
		order = order[1:]
	}
	left := slots
	for _, i := range order {
		counts[i] = uint64(targets[i].Weight) * slots / sum
		left -= counts[i]
	}
	raise(counts, order, targets, slots, sum, left)
}

// missedTwice returns how likely it is, in thousandths, that two random numbers
// both fall on no slot: shares are off by that much, as the third favours the first slots.
func missedTwice(slots uint64) uint64 {
	all := uint64(sizeClass(int(slots)))
	missed := all - slots
	return (1000*missed*missed + all*all - 1) / (all * all)
}

// worstMissedTwice is missedTwice of the number of slots at which it is largest: one in nine missed.
func worstMissedTwice(uint64) uint64 { return 1000/(9*9) + 1 }

func sumOf(counts []uint64) (sum uint64) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

func distance(a, b uint64) uint64 { return max(a, b) - min(a, b) }

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
