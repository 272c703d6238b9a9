package healthcheck

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// world is a Checker in a bubble, whose endpoints answer as the test says.
type world struct {
	*Checker
	t      *testing.T
	start  time.Time
	answer func(n int, turn int) (time.Duration, error) // of endpoint n, asked for the turn-th time

	mu      sync.Mutex
	asked   map[int][]time.Duration // when each was, since the start
	busy    int
	busiest int
	reports []change
}

func newWorld(t *testing.T, cfg Config) *world {
	w := &world{t: t, start: time.Now(), asked: map[int][]time.Duration{}}
	w.answer = func(int, int) (time.Duration, error) { return time.Millisecond, nil }
	cfg.Log = slog.New(slog.DiscardHandler)
	if cfg.Report == nil {
		cfg.Report = func(q Question, r Result) { w.reports = append(w.reports, change{q, r}) }
	}
	w.Checker = NewChecker(cfg)
	w.Checker.make = func(*source.HealthCheck) (asker, error) { return w, nil }
	return w
}

// run runs the Checker until the test ends.
func (w *world) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Errorf("Run: %v", err)
		}
	})
}

func (w *world) ask(ctx context.Context, q Question) error {
	n := number(q)
	w.mu.Lock()
	w.asked[n] = append(w.asked[n], time.Since(w.start))
	took, err := w.answer(n, len(w.asked[n]))
	w.busy++
	w.busiest = max(w.busiest, w.busy)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.busy--
		w.mu.Unlock()
	}()
	select {
	case <-time.After(took):
		return err
	case <-ctx.Done():
		return of("connect", ctx.Err())
	}
}

// at returns when an endpoint was asked so far.
func (w *world) at(n int) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked[n])
}

// askedOf returns how many endpoints were asked.
func (w *world) askedOf() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.asked)
}

// restart begins the times of at again.
func (w *world) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.asked)
	w.start = time.Now()
}

func question(n int, check *source.HealthCheck) Question {
	addr := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(10<<24+n))))
	svc := &source.Service{HealthCheck: check, Ports: []source.Port{{TargetPort: 80}}}
	return Ask(svc, &source.Endpoint{Addr: addr})
}

func number(q Question) int {
	b := q.At.Addr().As4()
	return int(binary.BigEndian.Uint32(b[:]) - 10<<24)
}

func every(iv time.Duration) *source.HealthCheck {
	return &source.HealthCheck{Type: source.CheckTCP, Interval: iv, IntervalDown: iv, Timeout: 2 * time.Second, Rise: 2, Fall: 3}
}

var errDead = errors.New("connection refused")

// tolerance is by how much a probe may be early (jitter) or late (tick).
func tolerance(iv time.Duration) time.Duration { return iv/jitter + 2*tick }

func TestSpread(t *testing.T) {
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
			if len(times) < 2 || times[0] > iv {
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
		known := Result{State: Up, Passed: true}
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

func TestSameQuestionIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Second)
		q := question(1, check)
		w.run()
		w.Watch(q, check, Result{})
		w.Watch(q, check, Result{})
		time.Sleep(10 * time.Second)
		if n := len(w.at(1)); n < 10 || n > 12 {
			t.Errorf("asked %d times in 10 s", n)
		}
		w.Forget(q)
		w.restart()
		time.Sleep(10 * time.Second)
		if n := len(w.at(1)); n < 9 || w.Result(q).State != Up {
			t.Errorf("one still watches it: asked %d times in 10 s, %v", n, w.Result(q))
		}
		w.Forget(q)
		w.Forget(q)
		w.restart()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := len(w.at(1)); n != 0 || w.Result(q) != (Result{}) || len(w.askers) != 0 {
			t.Errorf("nobody watches it: asked %d times, %v", n, w.Result(q))
		}
	})
}

// TestForgottenWhileAsked forgets a question whose answer is still to come, and watches it again.
func TestForgottenWhileAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Second)
		w.answer = func(_, turn int) (time.Duration, error) { return time.Second, errDead }
		q := question(1, check)
		w.run()
		w.Watch(q, check, Result{})
		time.Sleep(500 * time.Millisecond)
		w.Forget(q)
		w.Watch(q, check, Result{State: Up, Passed: true})
		time.Sleep(time.Second)
		synctest.Wait()
		if r := w.Result(q); r.State != Up || len(w.reports) != 0 {
			t.Errorf("the answer to a forgotten question is used: %v, %v", r, w.reports)
		}
		w.Forget(q)
		w.restart()
		time.Sleep(10 * time.Second)
		if times := w.at(1); len(times) != 0 {
			t.Errorf("a forgotten question is asked at %v", times)
		}
	})
}

func TestReportsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Second)
		check.IntervalDown = 3 * time.Second
		w.answer = func(_, turn int) (time.Duration, error) {
			if turn > 5 && turn <= 15 {
				return time.Millisecond, errDead
			}
			return time.Millisecond, nil
		}
		q := question(1, check)
		w.Watch(q, check, Result{})
		w.run()
		time.Sleep(time.Minute)
		synctest.Wait()
		var states []State
		for _, r := range w.reports {
			states = append(states, r.result.State)
		}
		if !slices.Equal(states, []State{Up, Down, Up}) {
			t.Errorf("reported %v, want up, down, up", states)
		}
		times := w.at(1)
		for i, iv := range map[int]time.Duration{5: time.Second, 10: 3 * time.Second, 16: 3 * time.Second, 20: time.Second} {
			if gap := times[i] - times[i-1]; gap < iv-tolerance(iv) || gap > iv+tolerance(iv) {
				t.Errorf("asked %v after the one before, want %v (turn %d)", gap, iv, i)
			}
		}
		down, up := w.reports[1].result, w.reports[2].result
		if down.Error != "connection refused" || down.Row != 3 || !down.Passed || up.Row != 2 || up.Error != "" {
			t.Errorf("reported %+v and %+v", down, up)
		}
	})
}

// TestDead has more dead endpoints than there are slots for: the others are asked on
// time, and the dead ones as often as the slots allow.
func TestDead(t *testing.T) {
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

// TestStopped has the goroutine of Run stand still, as all of a machine does: what was due meanwhile is not asked at once.
func TestStopped(t *testing.T) {
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
				soon += one(at < first+100*time.Millisecond)
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

type askFunc func(ctx context.Context, q Question) error

func (f askFunc) ask(ctx context.Context, q Question) error { return f(ctx, q) }

// TestStoppedProbe has probes that outlast their timeout by far, as only a machine that
// stood still makes them: one is not counted, a second in a row is.
func TestStoppedProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check, turn := newWorld(t, Config{}), every(time.Minute), 0
		check.Fall = 1
		w.Checker.make = func(*source.HealthCheck) (asker, error) {
			return askFunc(func(context.Context, Question) error {
				if turn++; turn == 2 || turn >= 4 {
					time.Sleep(2 * check.Timeout)
					return timeoutError("connect")
				}
				return nil
			}), nil
		}
		w.Watch(question(1, check), check, Result{})
		w.run()
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if len(w.reports) != 2 || w.reports[1].result.State != Down {
			t.Fatalf("reported %+v, want up and down", w.reports)
		}
		if r := w.reports[1].result; r.Row != 1 || r.Asked.Sub(w.start) < 3*time.Minute {
			t.Errorf("down at %v, want by the fifth probe: %+v", r.Asked.Sub(w.start), r)
		}
	})
}

// TestOwnFaults has a host that cannot ask, which says nothing of the endpoint.
func TestOwnFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Second)
		w.answer = func(_, turn int) (time.Duration, error) {
			if turn == 1 || turn > 5 && turn < 100 {
				return 0, &ownError{errors.New("too many open files")}
			}
			return 0, nil
		}
		q := question(1, check)
		w.Watch(q, check, Result{})
		w.run()
		time.Sleep(100 * time.Millisecond)
		if r := w.Result(q); r.State != Unknown || r.Error != "not asked: too many open files" {
			t.Errorf("after the first: %+v", r)
		}
		time.Sleep(time.Minute)
		if r := w.Result(q); r.State != Up || r.Error != "" || r.Row != 4 || r.NotAsked != "not asked: too many open files" {
			t.Errorf("after some answers: %+v", r)
		}
		time.Sleep(time.Minute)
		if r := w.Result(q); r.NotAsked != "" || r.Row < 5 {
			t.Errorf("in the end: %+v", r)
		}
	})
}

func TestParallelPrograms(t *testing.T) {
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

// TestEndWhileAProbeHangs has a probe that outlasts its timeout and the end.
func TestEndWhileAProbeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, release := newWorld(t, Config{}), make(chan struct{})
		w.Checker.make = func(*source.HealthCheck) (asker, error) {
			return askFunc(func(context.Context, Question) error { <-release; return nil }), nil
		}
		w.Watch(question(1, every(time.Second)), every(time.Second), Result{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		time.Sleep(time.Minute)
		cancel()
		select {
		case <-ended:
		case <-time.After(2 * endWait):
			t.Error("Run waits for a probe that does not end")
		}
		close(release)
	})
}

func TestAnswers(t *testing.T) {
	var all tallies
	all.add(source.CheckExec, passed, 3*time.Millisecond)
	all.add(source.CheckExec, passed, time.Hour)
	a := all.answers()[int(source.CheckExec-1)*int(outcomes)]
	if a.Type != "exec" || a.Outcome != "passed" || a.Count != 2 || a.Sum != 3600.003 || a.Buckets[0.002] != 0 || a.Buckets[0.004] != 1 || a.Buckets[16.384] != 1 {
		t.Errorf("answers %+v", a)
	}
}
