package layout

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

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

// exactSizes is up to which number of slots each number has chains of its own.
const exactSizes = 32

// sizeClass returns the modulus of the random numbers for a pool of n slots: n
// itself, or above exactSizes the next of a few. A number that falls on no slot is
// drawn again, so that all slots are equally likely.
func sizeClass(n int) uint32 {
	if n <= exactSizes {
		return uint32(n)
	}
	step := 1 << (bits.Len(uint(n-1)) - 4) // eight sizes from one power of two to the next
	return uint32((n + step - 1) / step * step)
}

// minSlots returns the fewest slots that a pool of a size can have.
func minSlots(size uint32) uint32 {
	if size <= exactSizes {
		return size
	}
	step := uint32(1) << (bits.Len32(size-1) - 4)
	return size - step + 1
}

// moduli returns the limits below which random numbers are drawn, one after the
// other until one falls on a slot.
func moduli(size uint32) []uint32 {
	if least := minSlots(size); least < size {
		return []uint32{size, size, least}
	}
	return []uint32{size}
}

// magnitude returns how many binary digits a count has: 0 for 0, 1 for 1, 2 for 2 and 3.
func magnitude(count int) int { return bits.Len(uint(count)) }

// Timeouts of affinity are rounded up to one of a few, as each has chains of its
// own: four for each halving of a day, so that none is longer than configured by
// more than a fifth, or a second.

// longestExpiry is the longest timeout that a service can have.
const longestExpiry = 24 * time.Hour

// expiries are the possible timeouts, the shortest first.
var expiries = func() (list []time.Duration) {
	// 24 h divided by 2^(0/4) to 2^(3/4), in ms.
	for _, ms := range []int64{86_400_000, 72_653_450, 61_094_026, 51_373_747} {
		for ; ms > 0; ms /= 2 {
			list = append(list, roundUp(time.Duration(ms)*time.Millisecond))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}()

// roundUp returns whole seconds, the unit in the names of sets and chains.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1) / time.Second * time.Second
}

// expiryClass returns the timeout that is used for a configured one.
func expiryClass(d time.Duration) time.Duration {
	i, _ := slices.BinarySearch(expiries, d)
	if i == len(expiries) {
		return roundUp(d)
	}
	return expiries[i]
}
