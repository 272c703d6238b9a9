package ipvs

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/netutil/lvs"
)

func TestRemindersComeInOrder(t *testing.T) {
	start := time.Now()
	rapid.Check(t, func(rt *rapid.T) {
		var r drainQueue
		want := map[lvs.Key]time.Time{}
		all := keys(6)
		for range rapid.IntRange(0, 30).Draw(rt, "changes") {
			k := rapid.SampledFrom(all).Draw(rt, "key")
			if rapid.IntRange(0, 3).Draw(rt, "remove") == 0 {
				r.remove(k)
				delete(want, k)
			} else {
				at := start.Add(time.Duration(rapid.IntRange(0, 50).Draw(rt, "at")) * time.Second)
				r.set(k, at)
				want[k] = at
			}
		}
		var soonest time.Time
		if len(want) > 0 {
			soonest = slices.MinFunc(slices.Collect(maps.Values(want)), time.Time.Compare)
		}
		if !r.next().Equal(soonest) {
			rt.Fatalf("next %v, want %v", r.next(), soonest)
		}
		now := start.Add(25 * time.Second)
		maps.DeleteFunc(want, func(_ lvs.Key, at time.Time) bool { return at.After(now) })
		due := slices.Concat(r.due(now, 2), r.due(now, 10))
		if len(due) != len(want) || !slices.IsSortedFunc(due, func(a, b lvs.Key) int { return want[a].Compare(want[b]) }) {
			rt.Fatalf("due %v, want %v", due, want)
		}
	})
}

// A drain is looked at when its time is over, not later, and sometimes before.
func TestNextLook(t *testing.T) {
	since := time.Now()
	for _, tt := range []struct{ waited, timeout, want time.Duration }{
		{0, time.Hour, counterLag},
		{0, time.Second, time.Second},
		{counterLag, time.Hour, counterLag},
		{10 * time.Second, time.Hour, 10 * time.Second},
		{10 * time.Second, 12 * time.Second, 2 * time.Second},
		{50 * time.Minute, time.Hour, maxDrainLook},
		{time.Hour - time.Millisecond, time.Hour, time.Millisecond},
		{2 * time.Hour, time.Hour, minDrainLook},
		{-time.Hour, time.Minute, counterLag}, // the clock was set
	} {
		if got := nextLook(since, since.Add(tt.waited), tt.timeout); got != tt.want {
			t.Errorf("after %v of %v: %v, want %v", tt.waited, tt.timeout, got, tt.want)
		}
	}
}
