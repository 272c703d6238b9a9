package ipvs

import (
	"testing"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
)

// The next check is the soonest one of those that are left.
func TestNextDrainCheck(t *testing.T) {
	h, now, all := holdings{servers: map[lvs.Key]*server{}}, time.Now(), keys(3)
	drain := func(key lvs.Key, waited time.Duration) {
		h.servers[key] = &server{}
		h.queueDrain(key, &difference{now: now, timeout: time.Hour, drains: drains{key: {{}: now.Add(-waited)}}})
	}
	want := func(after time.Duration) {
		t.Helper()
		if got := h.nextDrainCheck(); !got.Equal(now.Add(after)) {
			t.Errorf("next check after %v, want %v", got.Sub(now), after)
		}
	}
	if next := h.nextDrainCheck(); !next.IsZero() {
		t.Errorf("next check at %v though nothing drains", next)
	}
	drain(all[0], time.Minute)
	want(maxDrainLook)
	drain(all[1], counterLag-time.Second)
	drain(all[2], 10*time.Second)
	want(time.Second)
	h.queueDrain(all[1], &difference{now: now})
	want(10 * time.Second)
}

// A drain is looked at when its time is over, not later, and sometimes before.
func TestNextLookOfDrains(t *testing.T) {
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
