//go:build !nokubernetes

package kubernetes

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A server that fails is asked again after firstWait, twice as long each time, up
// to mostWait; or when it says itself, up to longestRetryAfter. Up to half of the
// wait is left out at random: other hosts ask too.
const (
	firstWait         = 400 * time.Millisecond
	mostWait          = 6 * time.Second
	mostWaitOptional  = time.Minute // for what a server may not have
	longestRetryAfter = time.Minute

	longestTurn = 10 * time.Second // then another one asks: what hangs may be only one list
)

// A pacer spares an API server that fails: of those who want to read it only one
// asks at a time, until it is answered, or has waited long.
type pacer struct {
	turn chan struct{} // has one element while nobody asks a server that fails
	most time.Duration // to wait

	mu    sync.Mutex
	wait  time.Duration // after the last failure; 0: the server answers
	until time.Time
}

func newPacer(most time.Duration) *pacer {
	p := &pacer{turn: make(chan struct{}, 1), most: most}
	p.turn <- struct{}{}
	return p
}

// ask returns when it is time to ask, or ctx ends. The function that it returns
// must be told of the answer.
func (p *pacer) ask(ctx context.Context) func(error) {
	if _, failing := p.due(); !failing {
		return p.answered
	}
	select {
	case <-p.turn:
	case <-ctx.Done():
		return func(error) {}
	}
	p.sleep(ctx)
	pass := sync.OnceFunc(func() { p.turn <- struct{}{} })
	enough := time.AfterFunc(longestTurn, pass)
	return func(err error) {
		enough.Stop()
		p.answered(err)
		pass()
	}
}

// sleep returns when it is time to ask a server that fails, or ctx ends. One who asked
// before it failed may be answered meanwhile, and told to ask later still.
func (p *pacer) sleep(ctx context.Context) {
	for at, failing := p.due(); failing && time.Now().Before(at); at, failing = p.due() {
		timer := time.NewTimer(time.Until(at))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// due returns when to ask, and whether the server fails.
func (p *pacer) due() (at time.Time, failing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.until, p.wait != 0
}

// answered takes the answer. That something is too old is an answer like any.
func (p *pacer) answered(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if err == nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err) {
		p.wait = 0
		return
	}
	if p.wait == 0 || !now.Before(p.until) { // else another one has failed at the same time
		p.wait = min(max(firstWait, 2*p.wait), p.most)
		p.until = now.Add(p.wait - rand.N(p.wait/2))
	}
	if secs, asked := apierrors.SuggestsClientDelay(err); asked {
		p.until = later(p.until, now.Add(min(time.Duration(secs)*time.Second, longestRetryAfter)))
	}
}
