package layout

import (
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// serviceOf returns a service whose endpoints have weights.
func serviceOf(slowStart time.Duration, weights ...uint16) *source.Service {
	svc := &source.Service{
		Key: source.Key{Namespace: "default", Name: "web"}, VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 8080}}, SlowStart: slowStart,
	}
	for i, w := range weights {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		svc.Endpoints = append(svc.Endpoints, source.Endpoint{Addr: a, Weight: w, Ready: true, Serving: true})
	}
	return svc
}

// atTenths returns the service while its endpoint i has so many tenths of its share; 0: while it is not there.
func atTenths(svc *source.Service, i int, share uint8) *policy.Resolved {
	known := policy.Conditions{svc.EndpointAt(&svc.Endpoints[i]): {Share: share % tenths}} // 0: all of it
	if share == 0 {
		fewer := *svc
		fewer.Endpoints = slices.Delete(slices.Clone(svc.Endpoints), i, i+1)
		svc = &fewer
	}
	return policy.Resolve(svc, known, &policy.Node{}, policy.IPv4)
}

// slotChanges returns how many slots come, go or get another target.
func slotChanges(old, now *policy.Resolved) (n int) {
	m := &Mirror{Pools: newPoolIDs(hash32), Checksums: map[Set]Checksum{}}
	d := &policy.Delta{Services: []policy.ServiceChange{{Old: old, New: now}}}
	for _, e := range m.elementEdits(Dialects[policy.IPv4], d) {
		if e.Set.kind == slotMap {
			n += sizeOf(&TableUpdate{Edits: []*Edits{e}})
		}
	}
	return n
}

func slotsOf(res *policy.Resolved) int { return len(spread(nil, res.Pools[0].Targets)) }

// From the first tenth of its share to all of it an endpoint changes about as many slots as come to it,
// however many there are. All change only where the pool goes over to a map of another size, once in
// a start at most; or where it is so small that these are few.
func TestSlowStartStep(t *testing.T) {
	for _, tt := range []struct{ endpoints, most, sizes int }{
		{endpoints: 3, most: 2 * 30}, // from one map to another, by each step
		{endpoints: 16, most: 2 * 160},
		{endpoints: 17, most: 26, sizes: 1}, // to 161 slots when it comes: 160 is the end of a size
		{endpoints: 100, most: 35},
		{endpoints: 103, most: 35, sizes: 1}, // 1,024
		{endpoints: 1000, most: 47},
		{endpoints: 1024, most: 47},
		{endpoints: 1025, most: 47, sizes: 1}, // 10,240
	} {
		svc, sizes := serviceOf(time.Minute, equal(tt.endpoints)...), 0
		was := atTenths(svc, tt.endpoints/2, 0)
		for share := uint8(1); share <= tenths; share++ {
			now := atTenths(svc, tt.endpoints/2, share)
			n := slotChanges(was, now)
			switch over := sizeClass(slotsOf(was)) != sizeClass(slotsOf(now)); {
			case over && tt.endpoints > fewTargets:
				sizes++
			case n == 0 || n > tt.most:
				t.Errorf("%d endpoints, %d tenths: %d of %d slots change, want 1 to %d", tt.endpoints, share, n, slotsOf(now), tt.most)
			}
			was = now
		}
		if sizes != tt.sizes {
			t.Errorf("%d endpoints: %d times to another map, want %d", tt.endpoints, sizes, tt.sizes)
		}
	}
}

// An endpoint that leaves takes its own slots with it, and moves few others.
func TestLeavingMovesFewSlots(t *testing.T) {
	for _, tt := range []struct {
		endpoints int
		slowStart time.Duration
		own       int
	}{
		{100, 0, 1}, {1000, 0, 1}, {100, time.Minute, tenths}, {1000, time.Minute, tenths},
	} {
		svc, sum := serviceOf(tt.slowStart, equal(tt.endpoints)...), 0
		for i := 0; i < tt.endpoints; i += tt.endpoints / 20 {
			all := atTenths(svc, i, tenths)
			n := slotChanges(all, atTenths(svc, i, 0))
			if most := mostChanged(tt.own, slotsOf(all)); n > most {
				t.Errorf("%d of %d endpoints, slow start %s: %d slots change, want %d at most", i, tt.endpoints, tt.slowStart, n, most)
			}
			sum += n
		}
		if mean, most := sum/20, 2*mostChanged(tt.own, slotsOf(atTenths(svc, 0, tenths)))/5; mean > most {
			t.Errorf("%d endpoints, slow start %s: %d slots change in the mean, want %d at most", tt.endpoints, tt.slowStart, mean, most)
		}
	}
}

// starting returns targets of a service with slow start that have tenths of their weights.
func starting(weights []uint16, shares []uint8) []policy.Target {
	targets := weighted(weights...)
	for i := range targets {
		targets[i].Settled = targets[i].Weight * tenths
		targets[i].Weight *= uint16(shares[i])
	}
	return targets
}

// drawStart draws targets of some weight, of which few or many start.
func drawStart(t *rapid.T, targets, most int) (weights []uint16, shares []uint8) {
	few := rapid.Bool().Draw(t, "few start")
	for range targets {
		share := rapid.Uint8Range(1, tenths).Draw(t, "tenths")
		if few && rapid.IntRange(0, 9).Draw(t, "starts") > 0 {
			share = tenths
		}
		weights = append(weights, rapid.Uint16Range(1, uint16(most)).Draw(t, "weight"))
		shares = append(shares, share)
	}
	return weights, shares
}

// A target that starts has its share of the slots that it has else, rounded, and those of others are as many
// as if it did not: whatever the weights are, and however many start.
func TestStartCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(fewTargets+1, 90).Draw(t, "targets")
		weights, shares := drawStart(t, n, rapid.SampledFrom([]int{1, 3, 100, 6553}).Draw(t, "largest weight"))
		targets := starting(weights, shares)
		counts, of := slotCounts(targets), slotCounts(settled(targets))
		if sum, most := sumOf(counts), slotCount(targets); sum > uint64(most) || most > slotsEach*n {
			t.Fatalf("%d slots, want %d at most, and that %d at most", sum, most, slotsEach*n)
		}
		if startAlike(targets) {
			copy(shares, slices.Repeat([]uint8{tenths}, n))
		}
		for i, got := range counts {
			want := float64(of[i]) * float64(shares[i]) / tenths
			if got < 1 || shares[i] == tenths && got != of[i] || math.Abs(float64(got)-max(1, want)) > 0.5 {
				t.Fatalf("weight %d, %d tenths: %d slots, want %.1f", weights[i], shares[i], got, want)
			}
		}
	})
}

// Shares of targets that start are as near to the weights as those of settled ones, where these have ten
// slots for each of theirs.
func TestStartShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(fewTargets+1, 400).Draw(t, "targets")
		targets := starting(drawStart(t, n, 1))
		near(t, targets)
	})
}

// Settled weights have shares within 2 % wherever slots are enough for that.
func TestSettledShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(fewTargets+1, 60).Draw(t, "targets")
		weights, _ := drawStart(t, n, rapid.SampledFrom([]int{3, 100, 6553}).Draw(t, "largest weight"))
		targets := starting(weights, slices.Repeat([]uint8{tenths}, n))
		if sumOf(weightCounts(targets, worstMissedTwice)) < slotLimit(n) {
			near(t, targets)
		}
	})
}

// A step of one target, whatever the weights are, and also while others start, changes about as many slots as
// it gets, or moves the pool to a map of another size.
func TestAnyStepMovesFewSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(fewTargets+1, 90).Draw(t, "targets")
		weights, shares := drawStart(t, n, rapid.SampledFrom([]int{1, 3, 100, 6553}).Draw(t, "largest weight"))
		i := rapid.IntRange(0, n-1).Draw(t, "one")
		shares[i] = rapid.Uint8Range(1, tenths-1).Draw(t, "of it")
		was := starting(weights, shares)
		shares[i]++
		now := starting(weights, shares)
		if startAlike(was) || startAlike(now) && slices.Max(shares) < tenths {
			return // the first or the last of all that begin at once
		}
		before, after := spread(nil, was), spread(nil, now)
		changed, size := movedSlots(before, after), sizeClass(len(before))
		if most := mostChanged(len(after)-len(before), len(after)); size == sizeClass(len(after)) && changed > most {
			t.Fatalf("%d of %d slots change, want %d at most", changed, len(after), most)
		}
	})
}
