// Package flowstest has a connection tracking for tests, which runs in a synctest bubble.
package flowstest

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier/flows"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Tracking is connection tracking: it answers what it is asked about what it holds.
type Tracking struct {
	mu      sync.Mutex
	Flows   []Flow
	Queries []flows.Query
	Took    time.Duration // by each look, before it sees any flow
	Fail    error
	Stuck   chan struct{} // looks go on when it is closed; nil: at once
	Back    []Flow        // come back after each look

	Challenged int   // clients
	Unheard    error // when they are

	Unreplied bool // no flow has been answered yet
	Opening   bool // all are half-open connections
	Ended     bool // all are over
	Fixed     bool // none can move, as in ipvs mode

	Reopened []Flow // those of which that was said
}

// Prune shows all flows that q is about.
func (c *Tracking) Prune(ctx context.Context, _ policy.Family, q flows.Query, judge func(flows.Flow) flows.Verdict) (n int, err error) {
	c.mu.Lock()
	c.Queries = append(c.Queries, q)
	took, stuck := c.Took, c.Stuck
	c.mu.Unlock()
	time.Sleep(took)
	if stuck != nil {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-stuck:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Fail != nil {
		return 0, c.Fail
	}
	all := len(q.From)+len(q.To) == 0
	c.Flows = slices.DeleteFunc(c.Flows, func(f Flow) bool {
		fl := f.Flow()
		fl.Unreplied, fl.Opening, fl.Ended, fl.Movable = c.Unreplied, c.Opening, c.Ended, !c.Fixed
		if !all && !slices.Contains(q.To, fl.Dst) && !slices.Contains(q.From, fl.Src) {
			return false
		}
		switch judge(fl) {
		case flows.Remove, flows.Move:
			n++
			return true
		case flows.Reopen:
			c.Reopened = append(c.Reopened, f)
		}
		return false
	})
	c.Flows = append(c.Flows, c.Back...)
	return n, nil
}

// Challenge notes whose clients are asked where they stand.
func (c *Tracking) Challenge(_ policy.Family, removed []flows.Flow) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Challenged += len(removed)
	return c.Unheard
}

// Set changes what c does.
func (c *Tracking) Set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// Looks returns how often c was asked since it was last called.
func (c *Tracking) Looks() int {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.Queries)
	c.Queries = nil
	return n
}

// Expect compares what c holds.
func (c *Tracking) Expect(t *testing.T, want ...Flow) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.Flows, want) {
		t.Errorf("flows\n got: %v\nwant: %v", c.Flows, want)
	}
}

// A Flow has the source, the destination and the source of replies of a flow. The client is 10.9.9.9:999 where the
// source is empty.
type Flow [3]string

// Flow parses it.
func (f Flow) Flow() flows.Flow {
	if f[0] == "" {
		f[0] = "10.9.9.9:999"
	}
	return flows.Flow{Src: netip.MustParseAddrPort(f[0]), Dst: netip.MustParseAddrPort(f[1]), Reply: netip.MustParseAddrPort(f[2])}
}
