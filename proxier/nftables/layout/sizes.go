package layout

import (
	"math/bits"
	"slices"
	"time"
)

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
