package remote

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
)

// A server that fails is asked again after FirstWait, twice as long each time, up
// to MostWait; or when it says itself, up to longestRetryAfter. Up to half of the
// wait is left out at random: other hosts ask too.
const (
	FirstWait         = 400 * time.Millisecond
	MostWait          = 6 * time.Second
	MostWaitOptional  = time.Minute // for what a server may not have
	longestRetryAfter = time.Minute

	longestTurn = 10 * time.Second // then another one asks: what hangs may be only one list
)

// A Pacer spares a server that fails: of those who want to read it only one
// asks at a time, until it is answered, or has waited long.
type Pacer struct {
	turn chan struct{} // has one element while nobody asks a server that fails
	most time.Duration // to wait
	read Reading

	mu    sync.Mutex
	wait  time.Duration // after the last failure; 0: the server answers
	until time.Time
}

// A Reading says of an error whether it is an answer like any, and else for how long the
// server asks to be left alone; 0: it does not.
type Reading func(error) (answer bool, leave time.Duration)

// NewPacer has a server that fails asked again after most at the latest.
func NewPacer(most time.Duration, read Reading) *Pacer {
	p := &Pacer{turn: make(chan struct{}, 1), most: most, read: read}
	p.turn <- struct{}{}
	return p
}

// Ask returns when it is time to ask, or ctx ends. The function that it returns
// must be told of the answer.
func (p *Pacer) Ask(ctx context.Context) func(error) {
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
func (p *Pacer) sleep(ctx context.Context) {
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
func (p *Pacer) due() (at time.Time, failing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.until, p.wait != 0
}

// answered takes the answer.
func (p *Pacer) answered(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	answer, leave := err == nil, time.Duration(0)
	if !answer {
		answer, leave = p.read(err)
	}
	if answer {
		p.wait = 0
		return
	}
	if p.wait == 0 || !now.Before(p.until) { // else another one has failed at the same time
		p.wait = min(max(FirstWait, 2*p.wait), p.most)
		p.until = now.Add(p.wait - rand.N(p.wait/2))
	}
	if leave > 0 {
		p.until = times.Later(p.until, now.Add(min(leave, longestRetryAfter)))
	}
}
