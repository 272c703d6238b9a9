package nftables

import (
	"slices"
	"time"
)

// Time-outs of affinity are rounded up to one of few, or each that somebody thinks
// of would have chains of its own: four from one half of a day to the next, so that
// none is longer than asked for by more than a fifth, or a second.

// longestExpiry is the longest time-out that a service can have.
const longestExpiry = 24 * time.Hour

// expiries are the time-outs that there are, the shortest first.
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

// roundUp returns whole seconds, which is what the names of sets and chains say.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1) / time.Second * time.Second
}

// expiry returns the time-out that stands for another one.
func expiry(d time.Duration) time.Duration {
	i, _ := slices.BinarySearch(expiries, d)
	if i == len(expiries) {
		return roundUp(d)
	}
	return expiries[i]
}
