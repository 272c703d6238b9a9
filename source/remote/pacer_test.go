package remote

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A busyError asks to be left alone for so long.
type busyError time.Duration

func (busyError) Error() string { return "busy" }

var errTooOld = errors.New("too old")

func reading(err error) (answer bool, leave time.Duration) {
	var busy busyError
	errors.As(err, &busy)
	return errors.Is(err, errTooOld), time.Duration(busy)
}

// Of three that ask a server that fails only one asks at a time, ever more seldom,
// and all go on when it answers.
func TestPacerSparesAServerThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(MostWait, reading)
		var mu sync.Mutex
		var asked []time.Duration // since begin
		begin, fails := time.Now(), true
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					answered := p.Ask(t.Context())
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
			if gap := asked[i] - asked[i-1]; gap < FirstWait/2 || gap > MostWait {
				t.Errorf("asked again after %v", gap)
			}
		}
		fails = false
		mu.Unlock()
		if least, most := int(10*time.Minute/MostWait), int(3*10*time.Minute/MostWait); n < least || n > most {
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
			{busyError(20 * time.Second), 20 * time.Second, 20 * time.Second},
			{busyError(86400 * time.Second), longestRetryAfter, longestRetryAfter},
			{errors.New("no"), FirstWait / 2, FirstWait},
			{errTooOld, 0, 0},
		} {
			p := NewPacer(MostWait, reading)
			p.Ask(t.Context())(tt.err)
			begin := time.Now()
			p.Ask(t.Context())(nil)
			if d := time.Since(begin); d < tt.least || d > tt.most {
				t.Errorf("%v: asked again after %v, want %v to %v", tt.err, d, tt.least, tt.most)
			}
		}
	})
}

// Who waits is bound by what another one is told meanwhile.
func TestRetryAfterBindsWaitingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(MostWait, reading)
		one, other := p.Ask(t.Context()), p.Ask(t.Context())
		begin := time.Now()
		one(errors.New("no"))
		var wg sync.WaitGroup
		wg.Go(func() { p.Ask(t.Context())(nil) })
		synctest.Wait()
		other(busyError(20 * time.Second))
		wg.Wait()
		if d := time.Since(begin); d != 20*time.Second {
			t.Errorf("asked again after %v, and told 20 s", d)
		}
	})
}

// A list that hangs holds up the others no longer than a turn.
func TestHangingListHoldsUpOneTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(MostWait, reading)
		p.Ask(t.Context())(errors.New("no"))
		hangs := p.Ask(t.Context())
		begin := time.Now()
		for range 2 { // the first is answered with an error, so that the server still fails
			p.Ask(t.Context())(errors.New("no"))
		}
		if d := time.Since(begin); d < longestTurn || d > longestTurn+2*MostWait {
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
		p := NewPacer(MostWait, reading)
		p.Ask(t.Context())(busyError(60 * time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		begin := time.Now()
		for range 3 {
			wg.Go(func() { p.Ask(ctx)(ctx.Err()) })
		}
		wg.Wait()
		if d := time.Since(begin); d != time.Second {
			t.Errorf("ended after %v, want 1 s", d)
		}
	})
}
