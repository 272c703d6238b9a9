package healthcheck

import (
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// TestDeadEndpointsDelayNoOthers has more dead endpoints than there are slots for: the others are asked on
// time, and the dead ones as often as the slots allow.
func TestDeadEndpointsDelayNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dead, alive, slots, iv = 1000, 50, 200, 5 * time.Second
		w, check := newWorld(t, Config{Parallel: slots}), every(iv)
		w.answer = func(n, _ int) (time.Duration, error) {
			if n < dead {
				return time.Hour, nil
			}
			return time.Millisecond, nil
		}
		for n := range dead + alive {
			w.Watch(question(n, check), check, Result{})
		}
		w.run()
		time.Sleep(time.Minute)
		w.restart()
		time.Sleep(time.Minute)
		synctest.Wait()
		if w.busiest > slots {
			t.Errorf("%d probes were under way, want at most %d", w.busiest, slots)
		}
		w.gaps(dead, dead+alive, iv+tolerance(iv))
		w.gaps(0, dead, dead*check.Timeout/(slots*3/4)+iv)
	})
}

// gaps requires that endpoints from first on were asked at least so often.
func (w *world) gaps(first, end int, most time.Duration) {
	w.t.Helper()
	for n := first; n < end; n++ {
		times := w.at(n)
		if len(times) < int(time.Minute/most) {
			w.t.Fatalf("endpoint %d was asked at %v", n, times)
		}
		for i := 1; i < len(times); i++ {
			if gap := times[i] - times[i-1]; gap > most {
				w.t.Fatalf("endpoint %d was not asked for %v, want at most %v", n, gap, most)
			}
		}
	}
}

func TestParallelProgramsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Second)
		check.Type = source.CheckExec
		w.answer = func(int, int) (time.Duration, error) { return time.Hour, nil }
		for n := range 200 {
			w.Watch(question(n, check), check, Result{})
		}
		w.run()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if w.busiest != programs {
			t.Errorf("%d programs ran at once, want %d", w.busiest, programs)
		}
	})
}

// Whose turn it is: the one that waits longest, without those that nobody wants to know of any
// more, and without the slow ones where these have all that they may have.
func TestTurnOfTheLongestWaiting(t *testing.T) {
	now := time.Now()
	l := newLane(4)
	name := map[*entry]string{nil: "none"}
	put := func(text string, slow bool, users int, ago time.Duration) *entry {
		e := &entry{slow: slow, users: users, due: now.Add(-ago)}
		name[e] = text
		l.put(e)
		return e
	}
	put("forgotten", false, 0, time.Minute)
	put("fast 1", false, 1, 30*time.Second)
	put("fast 2", false, 1, 10*time.Second)
	put("forgotten too", true, 0, time.Minute)
	for _, text := range []string{"slow 1", "slow 2", "slow 3", "slow 4"} {
		put(text, true, 1, 20*time.Second)
	}
	next := func(want string) {
		t.Helper()
		if got := name[l.next()]; got != want {
			t.Errorf("it is the turn of %s, want %s", got, want)
		}
	}
	for _, want := range []string{"fast 1", "slow 1", "slow 2", "slow 3", "none"} {
		next(want)
	}
	l.take(false, -1)
	next("fast 2")
	l.take(false, -1)
	next("none") // three quarters of the slots are of slow ones
	l.take(true, -1)
	next("slow 4")
}
