//go:build !nokubernetes

package kubernetes

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

// What the API server says of itself counts; that something is too old is an answer.
func TestAnswersOfTheServer(t *testing.T) {
	for _, tt := range []struct {
		err    error
		answer bool
		leave  time.Duration
	}{
		{apierrors.NewTooManyRequests("busy", 20), false, 20 * time.Second},
		{errors.New("no"), false, 0},
		{apierrors.NewResourceExpired("too old"), true, 0},
	} {
		if answer, leave := answered(tt.err); answer != tt.answer || leave != tt.leave {
			t.Errorf("%v: %v, %v; want %v, %v", tt.err, answer, leave, tt.answer, tt.leave)
		}
	}
}

// A server that says when to ask again is asked then.
func TestRetryAfterIsObeyed(t *testing.T) {
	t.Parallel()
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	a.mu.Lock()
	a.busy = 2
	a.mu.Unlock()
	r := run(t, at(a))
	turned := func() []time.Time {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.turned
	}
	r.eventually("asked again", func() bool { return len(turned()) >= kinds+2 })
	for i, list := kinds, turned(); i < kinds+2; i++ { // at first each kind asks
		if gap := list[i].Sub(list[i-1]); gap < 1900*time.Millisecond {
			t.Errorf("asked again after %v, and told 2 s", gap)
		}
	}
	a.mu.Lock()
	a.busy = 0
	a.mu.Unlock()
	r.wants("default/a")
}

// What a finished session still heard is not handed on, and a new one hands on
// nothing before it has listed everything.
func TestFinishedSessionHandsOnNothing(t *testing.T) {
	rec := &record{now: map[string]*source.Service{}}
	c := newCluster(New(Options{}), rec)
	steps := make(chan step, 10)
	do := func() {
		for len(steps) > 0 {
			(<-steps)(c)
			c.flush(time.Now())
		}
	}
	list := func(ctx context.Context) {
		for _, err := range []error{
			sliceStore(ctx, steps).Replace([]any{eps("a-1", "a", "10.0.0.1")}, "1"),
			nodeStore(ctx, steps, "here").Replace(nil, "1"),
		} {
			fatal.If(t, err)
		}
	}
	old, end := context.WithCancel(t.Context())
	begin(old, steps, "one")
	first := serviceStore(old, steps)
	fatal.If(t, first.Replace([]any{svc("a", "10.96.0.1")}, "1"))
	list(old)
	do()
	fatal.If(t, first.Add(svc("late", "10.96.0.9")))
	end()
	begin(t.Context(), steps, "one")
	second := serviceStore(t.Context(), steps)
	fatal.If(t, second.Replace([]any{svc("a", "10.96.0.1"), svc("b", "10.96.0.2")}, "1"))
	do()
	if got := rec.look(); got != "default/a 10.0.0.1" {
		t.Errorf("handed on %q before all was listed", got)
	}
	list(t.Context())
	do()
	if got := rec.look(); got != "default/a 10.0.0.1; default/b" {
		t.Errorf("have %q", got)
	}
}
