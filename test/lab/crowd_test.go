//go:build netns

package lab

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A crowd makes new connections at a rate, to whatever it visits at the time.
// An endpoint must answer each at once.
type crowd struct {
	env    *env
	t      *testing.T
	cancel context.CancelFunc
	wg     sync.WaitGroup
	begun  time.Time
	asked  atomic.Int64
	clock  stalls

	mu     sync.Mutex
	visits []check
}

const (
	crowdRate = 1000 // new connections a second, where the machine can do that
	crowdSize = 16   // that wait for an answer at a time
)

// crowd starts one that visits the service that is never written.
func (e *env) crowd(t *testing.T) *crowd {
	ctx, cancel := context.WithCancel(t.Context())
	c := &crowd{env: e, t: t, cancel: cancel, begun: time.Now(), visits: []check{{to: e.vip(steadyVIP)}}}
	c.wg.Go(func() { c.clock.run(ctx) })
	for range crowdSize {
		c.wg.Go(func() { c.walk(ctx) })
	}
	return c
}

// walk makes one connection after the other.
func (c *crowd) walk(ctx context.Context) {
	tick := time.NewTicker(crowdSize * time.Second / crowdRate)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.env.askAtOnce(c.t, c.next(), &c.clock)
		}
	}
}

// next returns each address in turn.
func (c *crowd) next() Question {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := int(c.asked.Add(1))
	to := c.visits[n/2%len(c.visits)]
	to.from, to.protocols = c.env.Client, []source.Protocol{source.TCP}
	return to.questions()[n%2]
}

// visit has it visit more, until leave is called.
func (c *crowd) visit(more ...check) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.visits = append(c.visits, more...)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.visits = slices.DeleteFunc(c.visits, func(v check) bool {
			return slices.ContainsFunc(more, func(m check) bool { return m.to == v.to && m.port == v.port })
		})
	}
}

// stop ends it.
func (c *crowd) stop() {
	c.cancel()
	c.wg.Wait()
	took := time.Since(c.begun)
	c.t.Logf("%d new connections, %.0f a second", c.asked.Load(), float64(c.asked.Load())/took.Seconds())
	if c.asked.Load() < crowdSize { // how many more there are is up to the machine
		c.t.Error("hardly any new connection was made")
	}
}

// stalls tell how long this process stood still, on a machine that has others to run:
// packets wait then, too.
type stalls struct{ sum atomic.Int64 }

const stallTick = 10 * time.Millisecond

// run adds up by how much sleeping took too long.
func (s *stalls) run(ctx context.Context) {
	for ctx.Err() == nil {
		start := time.Now()
		time.Sleep(stallTick)
		s.sum.Add(int64(time.Since(start) - stallTick))
	}
}

// total returns for how long it stood still altogether; nil: never.
func (s *stalls) total() time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(s.sum.Load())
}
