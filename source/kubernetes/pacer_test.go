//go:build !nokubernetes

package kubernetes

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"svcproxy/source"
)

// Of three that ask a server that fails only one asks at a time, ever more seldom,
// and all go on when it answers.
func TestPacerSparesAServerThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPacer(mostWait)
		var mu sync.Mutex
		var asked []time.Duration // since begin
		begin, fails := time.Now(), true
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					answered := p.ask(t.Context())
					mu.Lock()
					asked = append(asked, time.Since(begin))
					ok := !fails
					mu.Unlock()
					if ok {
						answered(nil)
						return
					}
					answered(errors.New("no"))
				}
			})
		}
		time.Sleep(10 * time.Minute)
		mu.Lock()
		n := len(asked)
		for i := 4; i < n; i++ {
			if gap := asked[i] - asked[i-1]; gap < firstWait/2 || gap > mostWait {
				t.Errorf("asked again after %v", gap)
			}
		}
		fails = false
		mu.Unlock()
		if least, most := int(10*time.Minute/mostWait), int(3*10*time.Minute/mostWait); n < least || n > most {
			t.Errorf("asked %d times in 10 min, want %d to %d", n, least, most)
		}
		wg.Wait()
		if last := asked[len(asked)-1] - asked[n]; len(asked) != n+3 || last != 0 {
			t.Errorf("%d asked once it answered, the last %v after the first", len(asked)-n, last)
		}
	})
}

// What the server says itself counts, within reason; and "too old" is an answer.
func TestPacerRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			err         error
			least, most time.Duration
		}{
			{apierrors.NewTooManyRequests("busy", 20), 20 * time.Second, 20 * time.Second},
			{apierrors.NewTooManyRequests("busy", 86400), longestRetryAfter, longestRetryAfter},
			{errors.New("no"), firstWait / 2, firstWait},
			{apierrors.NewResourceExpired("too old"), 0, 0},
		} {
			p := newPacer(mostWait)
			p.ask(t.Context())(tt.err)
			begin := time.Now()
			p.ask(t.Context())(nil)
			if d := time.Since(begin); d < tt.least || d > tt.most {
				t.Errorf("%v: asked again after %v, want %v to %v", tt.err, d, tt.least, tt.most)
			}
		}
	})
}

// Who waits is bound by what another one is told meanwhile.
func TestPacerIsToldLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPacer(mostWait)
		one, other := p.ask(t.Context()), p.ask(t.Context())
		begin := time.Now()
		one(errors.New("no"))
		var wg sync.WaitGroup
		wg.Go(func() { p.ask(t.Context())(nil) })
		synctest.Wait()
		other(apierrors.NewTooManyRequests("busy", 20))
		wg.Wait()
		if d := time.Since(begin); d != 20*time.Second {
			t.Errorf("asked again after %v, and told 20 s", d)
		}
	})
}

// A list that hangs holds up the others no longer than a turn.
func TestPacerPassesWhoHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPacer(mostWait)
		p.ask(t.Context())(errors.New("no"))
		hangs := p.ask(t.Context())
		begin := time.Now()
		for range 2 { // the first is answered with an error, so that the server still fails
			p.ask(t.Context())(errors.New("no"))
		}
		if d := time.Since(begin); d < longestTurn || d > longestTurn+2*mostWait {
			t.Errorf("others asked after %v, want %v", d, longestTurn)
		}
		hangs(errors.New("no")) // gives back no second turn
		if n := len(p.turn); n != 1 {
			t.Errorf("%d turns, want one", n)
		}
	})
}

func TestPacerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPacer(mostWait)
		p.ask(t.Context())(apierrors.NewTooManyRequests("busy", 60))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		begin := time.Now()
		for range 3 {
			wg.Go(func() { p.ask(ctx)(ctx.Err()) })
		}
		wg.Wait()
		if d := time.Since(begin); d != time.Second {
			t.Errorf("ended after %v, want 1 s", d)
		}
	})
}

// A server that says when to ask again is asked then.
func TestRetryAfter(t *testing.T) {
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
func TestFinishedSession(t *testing.T) {
	c := newCluster(New(Options{}), &record{now: map[string]*source.Service{}})
	rec := c.sink.(*record)
	steps := make(chan step, 10)
	do := func() {
		for len(steps) > 0 {
			(<-steps)(c)
			c.flush(time.Now())
		}
	}
	list := func(ctx context.Context) {
		for _, err := range []error{
			sliceFeed(ctx, steps).Replace([]any{eps("a-1", "a", "10.0.0.1")}, "1"),
			nodeFeed(ctx, steps, "here").Replace(nil, "1"),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	old, end := context.WithCancel(t.Context())
	begin(old, steps, "one")
	first := serviceFeed(old, steps)
	if err := first.Replace([]any{svc("a", "10.96.0.1")}, "1"); err != nil {
		t.Fatal(err)
	}
	list(old)
	do()
	if err := first.Add(svc("late", "10.96.0.9")); err != nil {
		t.Fatal(err)
	}
	end()
	begin(t.Context(), steps, "one")
	second := serviceFeed(t.Context(), steps)
	if err := second.Replace([]any{svc("a", "10.96.0.1"), svc("b", "10.96.0.2")}, "1"); err != nil {
		t.Fatal(err)
	}
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
