//go:build netns

package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// drainTimeout is longer than all endpoints take to be replaced.
const drainTimeout = 30 * time.Second

var rollingGroups = []group{{
	name:     "rolling replacement",
	settings: fmt.Sprintf("[sync]\nresync_interval = \"1s\"\n[ipvs]\ndrain_timeout = %q\n", drainTimeout),
	cases:    []testCase{{name: "of all endpoints", run: testRolling}},
}}

// What happens to a service while its endpoints are replaced.
const (
	newRate   = 200 // connections a second that are made and closed again, as far as the machine can
	keptConns = 50  // that are kept, in each family
)

// rolls is how often all endpoints are replaced by others, which leave in the next
// roll: an odd number, so that those of the kept connections have left in the end.
const rolls = 3

// testRolling: while all endpoints of a service are replaced, one after the other, no
// new connection fails. Established ones go on; in ipvs mode until drain_timeout.
func testRolling(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local...)...))
	var kept []*Conn
	for range keptConns {
		kept = append(kept, e.connections(t, e.Client, e.vip(1), 80)...)
	}
	stop := e.connectOften(t, check{from: e.Client, to: e.vip(1), protocols: []source.Protocol{source.TCP}})
	old, fresh := e.Local, e.Remote
	for range rolls {
		for i := range old {
			hosts := slices.Concat(old[i+1:], fresh[:i+1])
			if err := errors.Join(e.daemon.Apply(e.name(), e.everywhere(at(hosts...)...)), echo(kept)); err != nil {
				t.Errorf("with endpoint %d replaced: %v", i+1, err)
			}
		}
		old, fresh = fresh, old
	}
	left := time.Now()
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote...)})
	stop()
	if e.mode.name != "ipvs" {
		e.goOn(t, "after the replacement", kept)
		return
	}
	err := pace.Poll(drainTimeout+expectPatience, func() error {
		for i, c := range kept {
			if c.Echo(expectPatience) == nil {
				return fmt.Errorf("connection %d still goes on", i)
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("%v after the endpoints left: %v", time.Since(left), err)
	}
}

// connectOften makes connections and closes them at once, until the function it
// returns is called. None may fail.
func (e *env) connectOften(t *testing.T, c check) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	questions := c.questions()
	work := make(chan Question)
	var wg sync.WaitGroup
	var made atomic.Int64
	for range 8 {
		wg.Go(func() {
			for q := range work {
				q.Patience = streamPatience
				if got := Ask(q); got.Outcome != Answered {
					t.Errorf("new connection %s: %s", q, got)
				}
				made.Add(1)
			}
		})
	}
	start := time.Now()
	wg.Go(func() {
		defer close(work)
		for n := 0; ctx.Err() == nil; n++ {
			time.Sleep(time.Until(start.Add(time.Duration(n) * time.Second / newRate)))
			work <- questions[n%len(questions)]
		}
	})
	return func() {
		cancel()
		wg.Wait()
		t.Logf("%.0f new connections a second, %d in all", float64(made.Load())/time.Since(start).Seconds(), made.Load())
	}
}
