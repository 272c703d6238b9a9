//go:build netns

package lab

import (
	"context"
	"sync"
	"testing"
	"time"
)

// knocks are new connections that are made all the time, at a steady rate as far as the
// machine can, and closed at once.
type knocks struct {
	outside bool // none may be answered; false: each must be
	cancel  context.CancelFunc
	work    sync.WaitGroup
	begun   time.Time

	mu      sync.Mutex
	made    int
	failed  []knock
	windows []window
}

// A knock is one that failed.
type knock struct {
	Question
	Answer
	at time.Time // it began
}

// A window is a time in which knocks may fail.
type window struct{ from, to time.Time }

// knockers is how many connections are made at a time. One that gets no answer takes streamPatience.
const knockers = 64

// outsidePatience is how long a knock waits that nobody may answer: some hundred times what an answer takes.
var outsidePatience = Slow(100 * time.Millisecond)

// knockOften makes connections until stop is called.
func (e *env) knockOften(t *testing.T, c check) *knocks {
	return (&knocks{}).start(t, c.questions())
}

// knockOutside makes connections that no endpoint may answer, until stop is called.
func (e *env) knockOutside(t *testing.T, checks ...check) *knocks {
	var questions []Question
	for _, c := range checks {
		questions = append(questions, c.questions()...)
	}
	return (&knocks{outside: true}).start(t, questions)
}

func (k *knocks) start(t *testing.T, questions []Question) *knocks {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	k.cancel, k.begun = cancel, time.Now()
	ticks := make(chan Question)
	for range knockers {
		k.work.Go(func() {
			for q := range ticks {
				k.knock(q)
			}
		})
	}
	k.work.Go(func() {
		defer close(ticks)
		for n := 0; ctx.Err() == nil; n++ {
			time.Sleep(time.Until(k.begun.Add(time.Duration(n) * time.Second / time.Duration(soak(newRate, 500)))))
			ticks <- questions[n%len(questions)]
		}
	})
	return k
}

// knock connects from a port that no knock of late has had: conntrack still sends a SYN from one
// that was not answered where the former one went, for two minutes.
func (k *knocks) knock(q Question) {
	at := time.Now()
	q.Port, q.Patience = freshPort(), streamPatience
	if k.outside {
		q.Patience = outsidePatience
	}
	got := Ask(q)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made++
	if (got.Outcome == Answered) == k.outside {
		k.failed = append(k.failed, knock{q, got, at})
	}
}

// mayFail says that knocks may fail that began in this time.
func (k *knocks) mayFail(from, to time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.windows = append(k.windows, window{from, to})
}

// stop ends them, and reports those that failed outside of the windows. One that was
// under way when a window began may fail as well.
func (k *knocks) stop(t *testing.T) {
	t.Helper()
	k.cancel()
	k.work.Wait()
	wrong := 0
	for _, f := range k.failed {
		if k.excused(f.at) {
			continue
		}
		if wrong++; wrong <= 5 {
			t.Errorf("%s, begun %v after the start, %v after the last window: %s", f.Question, f.at.Sub(k.begun), k.sinceWindow(f.at), f.Answer)
		}
	}
	var open time.Duration
	for _, w := range k.windows {
		open += w.to.Sub(w.from)
	}
	t.Logf("%d connections, %.0f a second; %d failed in %d windows of together %v, %d outside of them",
		k.made, float64(k.made)/time.Since(k.begun).Seconds(), len(k.failed)-wrong, len(k.windows), open, wrong)
}

// sinceWindow returns how long before at the last window ended that ended before it.
func (k *knocks) sinceWindow(at time.Time) time.Duration {
	since := at.Sub(k.begun)
	for _, w := range k.windows {
		if d := at.Sub(w.to); d > 0 && d < since {
			since = d
		}
	}
	return since
}

func (k *knocks) excused(at time.Time) bool {
	for _, w := range k.windows {
		if at.Add(streamPatience).After(w.from) && at.Before(w.to) {
			return true
		}
	}
	return false
}
