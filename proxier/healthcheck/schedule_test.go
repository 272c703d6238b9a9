package healthcheck

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// tolerance is by how much a probe may be early (jitter) or late (tick).
func tolerance(iv time.Duration) time.Duration { return iv/jitter + 2*tick }

func TestProbesAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, iv = 10_000, 5 * time.Second
		w, check := newWorld(t, Config{}), every(iv)
		for n := range count {
			w.Watch(question(n, check), check, Result{})
		}
		time.Sleep(3 * iv) // what is watched long before Run is no burst either
		w.restart()
		w.run()
		time.Sleep(3 * iv)
		const window = 100 * time.Millisecond
		starts := make([]int, 4*iv/window)
		for n := range count {
			times := w.at(n)
			if len(times) < 2 || times[0] > iv+2*tick {
				t.Fatalf("endpoint %d was asked at %v", n, times)
			}
			for i, at := range times {
				starts[at/window]++
				if gap := at - times[max(i, 1)-1]; gap > iv+tolerance(iv) || i > 1 && gap < iv-tolerance(iv) {
					t.Errorf("endpoint %d was asked at %v", n, times)
				}
			}
		}
		even := count / int(iv/window)
		for i, probes := range starts {
			if probes > even*3/2+atOnce {
				t.Errorf("%d probes begin within %v of %v, want some %d", probes, window, time.Duration(i)*window, even)
			}
		}
	})
}

func TestFewAreAskedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Hour)
		for n := range atOnce + 100 {
			w.Watch(question(n, check), check, Result{})
		}
		known := Result{State: source.CheckPassed, Passed: true}
		w.Watch(question(1000, check), check, known)
		w.run()
		time.Sleep(2 * tick)
		synctest.Wait()
		if got := w.askedOf(); got < atOnce || got > atOnce+10 {
			t.Errorf("%d are asked at once, want %d", got, atOnce)
		}
		time.Sleep(firstWait + 2*tick)
		synctest.Wait()
		if got := w.askedOf(); got != atOnce+101 {
			t.Errorf("%d are asked soon, want all %d", got, atOnce+101)
		}
	})
}

// TestStoppedMachineAsksNothingAtOnce stops the goroutine of Run, as a machine that stands still does: what was due
// meanwhile is not asked at once.
func TestStoppedMachineAsksNothingAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, iv = 1000, 5 * time.Second
		var stop atomic.Bool
		w := newWorld(t, Config{Report: func(Question, Result) {
			if stop.CompareAndSwap(true, false) {
				time.Sleep(time.Minute)
			}
		}})
		check := every(iv)
		for n := range count {
			w.Watch(question(n, check), check, Result{})
		}
		w.run()
		time.Sleep(2 * iv)
		stop.Store(true)
		w.Watch(question(count, check), check, Result{})
		time.Sleep(iv) // it has been reported
		w.restart()
		time.Sleep(time.Minute + iv)
		first := time.Hour
		for n := range count {
			first = min(first, slices.Min(append(w.at(n), time.Hour)))
		}
		soon := 0
		for n := range count {
			for _, at := range w.at(n) {
				if at < first+100*time.Millisecond {
					soon++
				}
			}
		}
		if soon == 0 || soon > 3*count/50 {
			t.Errorf("%d of %d are asked at once, want some %d", soon, count, count/50)
		}
		for n := range count {
			if times := w.at(n); len(times) == 0 || times[0] > first+iv+tolerance(iv) {
				t.Fatalf("endpoint %d is asked at %v, the first one at %v", n, times, first)
			}
		}
	})
}

// What is known already is asked when its turn comes, also where few are.
func TestKnownWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Hour)
		w.Watch(question(1, check), check, Result{State: source.CheckPassed, Passed: true})
		w.run()
		time.Sleep(2 * tick)
		synctest.Wait()
		if times := w.at(1); len(times) != 0 {
			t.Errorf("asked at %v", times)
		}
		time.Sleep(firstWait)
		if times := w.at(1); len(times) != 1 {
			t.Errorf("asked at %v, want once within %v", times, firstWait)
		}
	})
}

// A turn that is far too late is left out, but no two in a row.
func TestLateTurnIsLeftOut(t *testing.T) {
	now := time.Now()
	e := &entry{check: every(time.Second), due: now.Add(-time.Minute)}
	if got := []bool{e.late(now), e.late(now), e.late(now)}; !slices.Equal(got, []bool{true, false, true}) {
		t.Errorf("left out: %v", got)
	}
	e.due = now.Add(-e.interval() / 5)
	if e.late(now) {
		t.Error("a fifth of an interval is too late")
	}
}

// What is lost together fails within FailTime of each other, and what comes back together passes
// within ReturnTime. Both are no longer than that takes, save for the time of an answer.
func TestEndpointsLostTogetherFailTogether(t *testing.T) {
	for _, check := range []*source.HealthCheck{
		{Type: source.CheckTCP, Interval: 5 * time.Second, IntervalDown: 5 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3},
		{Type: source.CheckTCP, Interval: time.Second, IntervalDown: 30 * time.Second, Timeout: time.Second, Rise: 1, Fall: 1},
		{Type: source.CheckTCP, Interval: 10 * time.Second, IntervalDown: time.Second, Timeout: 500 * time.Millisecond, Rise: 5, Fall: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			const count = 200
			w := newWorld(t, Config{})
			for n := range count {
				w.Watch(question(n, check), check, Result{State: source.CheckPassed, Passed: true})
			}
			w.run()
			time.Sleep(3 * check.Interval)
			lost := func(int, int) (time.Duration, error) { return time.Hour, nil }
			back := func(int, int) (time.Duration, error) { return time.Millisecond, nil }
			for _, tt := range []struct {
				is     string
				answer func(int, int) (time.Duration, error)
				most   time.Duration
				least  time.Duration
			}{
				{"failed", lost, FailTime(check), check.Interval * 9 / 10},
				{"passed", back, ReturnTime(check), check.IntervalDown * 9 / 10},
				{"failed", lost, FailTime(check), check.Interval * 9 / 10},
			} {
				w.mu.Lock()
				w.answer, w.reports = tt.answer, nil
				w.mu.Unlock()
				time.Sleep(2*FailTime(check) + time.Duration(check.Rise)*check.IntervalDown + ReturnTime(check))
				synctest.Wait()
				if got := w.apart(); len(w.reports) != count || got > tt.most || got < tt.least {
					t.Errorf("interval %v, %v down, timeout %v: %d %s within %v, want %v at most", check.Interval, check.IntervalDown, check.Timeout, len(w.reports), tt.is, got, tt.most)
				}
			}
		})
	}
}

// apart returns the time between the first report and the last.
func (w *world) apart() time.Duration {
	var first, last time.Time
	for _, r := range w.reports {
		if first.IsZero() || r.result.Since.Before(first) {
			first = r.result.Since
		}
		if r.result.Since.After(last) {
			last = r.result.Since
		}
	}
	return last.Sub(first)
}
