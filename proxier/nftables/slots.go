package nftables

import (
	"math/bits"

	"svcproxy/proxier"
)

// A new connection takes one of a pool's slots at random, and each target has as
// many of them as its weight, divided by what all weights have in common.
const (
	// manySlots is how many slots a pool has at most, where that is enough for its
	// targets: weights beyond it are rounded.
	manySlots = 1000

	// slotsEach is how many slots a target has on average where weights are rounded:
	// half a slot is 3 % of them.
	slotsEach = 16

	// exactSizes is up to which number of slots each number has a chain of its own.
	exactSizes = 32
)

// weights returns what the weights of targets have in common, and what they add
// up to without it; 0 and 0 for no targets.
func weights(targets []proxier.Target) (divisor, sum uint64) {
	for _, t := range targets {
		divisor = gcd(divisor, uint64(t.Weight))
		sum += uint64(t.Weight)
	}
	return divisor, sum / max(divisor, 1)
}

// slotLimit is how many slots a number of targets have, whose weights add up to
// sum. It is a few more where rounding would leave a target none.
func slotLimit(targets int, sum uint64) uint64 {
	return min(sum, uint64(max(manySlots, slotsEach*targets)))
}

// slotCount is how many slots targets have, or a few less.
func slotCount(targets []proxier.Target) int {
	_, sum := weights(targets)
	return int(slotLimit(len(targets), sum))
}

// spread appends to buf, for each slot, the index of the target that has it.
func spread(buf []uint32, targets []proxier.Target) []uint32 {
	divisor, sum := weights(targets)
	if divisor == 0 {
		return buf
	}
	limit := slotLimit(len(targets), sum)
	var passed, given uint64 // of sum, of limit
	for i, t := range targets {
		passed += uint64(t.Weight) / divisor
		upTo := (2*passed*limit + sum) / (2 * sum) // rounded
		for n := max(1, int64(upTo)-int64(given)); n > 0; n-- {
			buf = append(buf, uint32(i))
			given++
		}
	}
	return buf
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// size returns the number that a connection's random number is below, for a pool
// of n slots: n itself, or above exactSizes the next of few. A number that falls
// on no slot is drawn again, so that every slot is as likely as the others.
func size(n int) uint32 {
	if n <= exactSizes {
		return uint32(n)
	}
	step := 1 << (bits.Len(uint(n-1)) - 4) // eight sizes from one power of two to the next
	return uint32((n + step - 1) / step * step)
}

// surely returns how many slots every pool of a size has.
func surely(size uint32) uint32 {
	if size <= exactSizes {
		return size
	}
	step := uint32(1) << (bits.Len32(size-1) - 4)
	return size - step + 1
}
