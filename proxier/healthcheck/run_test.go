package healthcheck

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// TestStoppedProbe has probes that outlast their timeout by far, as only a machine that
// stood still makes them: one is not counted, a second in a row is.
func TestStoppedProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		check, turn := every(time.Minute), 0
		check.Fall = 1
		w := newWorld(t, Config{Ask: func(context.Context, Question) error {
			if turn++; turn == 2 || turn >= 4 {
				time.Sleep(2 * check.Timeout)
				return timeoutError("connect")
			}
			return nil
		}})
		w.Watch(question(1, check), check, Result{})
		w.run()
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if len(w.reports) != 2 || w.reports[1].result.State != source.CheckFailed {
			t.Fatalf("reported %+v, want up and down", w.reports)
		}
		if r := w.reports[1].result; r.Row != 1 || r.Asked.Sub(w.start) < 3*time.Minute {
			t.Errorf("down at %v, want by the fifth probe: %+v", r.Asked.Sub(w.start), r)
		}
	})
}

// TestOwnFaultsDoNotCount has a host that cannot ask, which says nothing of the endpoint.
func TestOwnFaultsDoNotCount(t *testing.T) {
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
		if r := w.Result(q); r.State != source.CheckUnknown || r.Error != "not asked: too many open files" {
			t.Errorf("after the first: %+v", r)
		}
		time.Sleep(time.Minute)
		if r := w.Result(q); r.State != source.CheckPassed || r.Error != "" || r.Row != 4 || r.NotAsked != "not asked: too many open files" {
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
		release := make(chan struct{})
		w := newWorld(t, Config{Ask: func(context.Context, Question) error { <-release; return nil }})
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

// A state that changes twice before it can be told is told once, as it is then, and nothing of a
// question that nobody asks any more.
func TestChangesMergeBeforeTheyAreReported(t *testing.T) {
	w, check := newWorld(t, Config{}), every(time.Minute)
	check.Fall = 1
	q, other := question(1, check), question(2, check)
	for _, q := range []Question{q, other} {
		w.Watch(q, check, Result{})
		w.record(w.entries[q], nil, time.Now(), 0)
	}
	w.record(w.entries[q], errDead, time.Now(), 0)
	w.Forget(other)
	if all := w.changes(); len(all) != 1 || all[0].q != q || all[0].result.State != source.CheckFailed {
		t.Errorf("changes: %+v, want one to down", all)
	}
	if all := w.changes(); len(all) != 0 {
		t.Errorf("changes that were told: %+v", all)
	}
}

// An answer that comes when nobody wants it any more is not counted.
func TestForgottenIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Minute)
		w.answer = func(int, int) (time.Duration, error) { return time.Second, nil }
		w.Watch(question(1, check), check, Result{})
		w.run()
		time.Sleep(time.Second / 2)
		w.Forget(question(1, check))
		time.Sleep(time.Minute)
		if n := w.counted(t); n != 0 {
			t.Errorf("%d probes were counted", n)
		}
	})
}

// An answer counts however late it is: only one that did not come may be the fault of a machine
// that stood still. And a host that cannot ask has tried to, also where a state is known.
func TestLateAnswersCount(t *testing.T) {
	w, check := newWorld(t, Config{}), every(time.Minute)
	e := &entry{check: check}
	w.record(e, nil, time.Now(), 10*check.Timeout)
	if e.result.State != source.CheckPassed {
		t.Errorf("after a late answer: %+v", e.result)
	}
	began := time.Now()
	e = &entry{check: check, result: Result{State: source.CheckPassed, Passed: true}}
	w.record(e, &ownError{errors.New("too many open files")}, began, 0)
	if r := e.result; r.State != source.CheckPassed || !r.Asked.Equal(began) || r.Error != "" || r.NotAsked == "" {
		t.Errorf("of a host that cannot ask: %+v", r)
	}
}
