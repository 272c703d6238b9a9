package healthcheck

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source"
)

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
