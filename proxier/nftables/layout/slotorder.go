package layout

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"svcproxy.dev/svcproxy/internal/maglev"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Which slot a target has is up to us, and an element that stays is one that the
// kernel is not told of. In the order of targets, one that leaves moves all after it.
// So each slot, from the first on, prefers targets in an order of its own, and takes
// the first that is left. If one leaves, its slot takes another, which a later slot had,
// which takes another: each time any of those still left, so that the next is half way
// to the end on average, and some ln(n) of n slots change. The same goes backwards for
// one that comes. It depends on the targets alone, not on what was there before.
//
// Up to exactSizes each number of slots has a map of its own: those are written
// anyway when the number changes, and stay in the order of targets, for readers.

// slotCount returns how many slots targets have, or a few more.
func slotCount(targets []policy.Target) int {
	if inTenths(targets) {
		return int(slotLimit(len(targets)))
	}
	_, sum := weights(targets)
	return int(min(sum, slotLimit(len(targets))))
}

// SettledSlots returns how many slots a pool has while no target of it starts.
func SettledSlots(p *policy.Pool) int {
	if p.Hash.On != source.NotHashed {
		return maglev.Size(p.Hash.Endpoints)
	}
	_, sum := weights(p.Targets)
	return int(min(sum, slotLimit(len(p.Targets))))
}

// spread appends to buf, for each slot, the index of the target that has it.
func spread(buf []uint32, targets []policy.Target) []uint32 {
	counts := slotCounts(targets)
	if n := sumOf(counts); n > exactSizes {
		return spreadStably(buf, targets, counts, int(n))
	}
	for i, n := range counts {
		buf = appendSlots(buf, i, n)
	}
	return buf
}

// slotCounts returns how many slots each target has.
func slotCounts(targets []policy.Target) []uint64 {
	if inTenths(targets) {
		return startCounts(targets)
	}
	return weightCounts(targets, missedTwice)
}

func appendSlots(buf []uint32, target int, n uint64) []uint32 {
	for range n {
		buf = append(buf, uint32(target))
	}
	return buf
}

// spreadStably appends to buf, for each of n slots, the index of the target that has it. A slot asks block after
// block, in an order of its own, and takes the last of the first that has any.
func spreadStably(buf []uint32, targets []policy.Target, counts []uint64, n int) []uint32 {
	all := newPlaces(targets, counts, n)
	for slot := range n {
		b := firstBlock(all, scramble(uint64(slot)))
		last := len(all[b]) - 1
		buf = append(buf, all[b][last])
		all[b] = all[b][:last]
	}
	return buf
}

// blocksOf returns the number of blocks for n places, one or two for each on average: a power
// of two, so that it changes only where the size of the map does.
func blocksOf(n int) int { return 1 << bits.Len(uint(n-1)) / 2 }

// newPlaces returns what no slot has taken yet, n in all: each target as often as it has slots, in blocks by hash.
func newPlaces(targets []policy.Target, counts []uint64, n int) [][]uint32 {
	const room = 4 // for most blocks enough
	blocks := blocksOf(n)
	all, buf := make([][]uint32, blocks), make([]uint32, room*blocks)
	for b := range all {
		all[b] = buf[room*b : room*b : room*(b+1)]
	}
	for i, t := range targets {
		own := hashTarget(t)
		for k := range counts[i] {
			b := scramble(own+k) % uint64(blocks)
			all[b] = append(all[b], uint32(i))
		}
	}
	return all
}

// firstBlock returns the first block that has any, in the order of a slot: at random for a while,
// then each.
func firstBlock(all [][]uint32, slot uint64) uint64 {
	blocks := uint64(len(all))
	for try := uint64(0); ; try++ {
		b := try % blocks
		if try < 4*blocks {
			b = scramble(slot+try) % blocks
		}
		if len(all[b]) > 0 {
			return b
		}
	}
}

// hashTarget is the same in each run, as the slots in the kernel outlive ours.
func hashTarget(t policy.Target) uint64 {
	a := t.Addr().As16()
	high, low := binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	return scramble(scramble(high+uint64(t.Port())) ^ low)
}

// scramble is the output function of splitmix64: each bit of x changes half of all.
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

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
