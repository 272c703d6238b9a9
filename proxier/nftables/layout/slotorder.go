package layout

import (
	"encoding/binary"
	"math/bits"

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

// places are what no slot has taken yet: each target as often as it has slots, in blocks by
// hash. A slot asks block after block, in an order of its own, and takes the last of the
// first that has any.
type places [][]uint32

// spreadStably appends to buf, for each of n slots, the index of the target that has it.
func spreadStably(buf []uint32, targets []policy.Target, counts []uint64, n int) []uint32 {
	all := newPlaces(targets, counts, n)
	for slot := range n {
		b := all.block(scramble(uint64(slot)))
		last := len(all[b]) - 1
		buf = append(buf, all[b][last])
		all[b] = all[b][:last]
	}
	return buf
}

// blocksOf returns the number of blocks for n places, one or two for each on average: a power
// of two, so that it changes only where the size of the map does.
func blocksOf(n int) int { return 1 << bits.Len(uint(n-1)) / 2 }

// newPlaces returns n places.
func newPlaces(targets []policy.Target, counts []uint64, n int) places {
	const room = 4 // for most blocks enough
	blocks := blocksOf(n)
	all, buf := make(places, blocks), make([]uint32, room*blocks)
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

// block returns the first block that has any, in the order of a slot: at random for a while,
// then each.
func (all places) block(slot uint64) uint64 {
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
