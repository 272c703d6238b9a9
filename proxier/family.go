package proxier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"svcproxy/source"
)

// After an error the next try comes after retryMin, then after twice as long
// each time, up to retryMax.
const (
	retryMin = 500 * time.Millisecond
	retryMax = 30 * time.Second
)

// secondLook is how long after a change flows are looked for once more, see
// staleFlows: longer than most answers are under way, and short enough for a flow
// to move within a second. After maxLooks those that always come back are left
// to the next resync.
const (
	secondLook = 300 * time.Millisecond
	maxLooks   = 10
)

// A family is one address family of a Loop: what it should hold and how its syncs go.
type family struct {
	fam     Family
	backend Backend
	state   *State
	changes *changes // since the last Sync that succeeded

	full   bool      // the next Sync looks at the kernel
	dirty  bool      // there is something to sync before the next resync
	queued time.Time // when the oldest change not yet synced arrived

	endpoints int // of all services of the State

	lastStart    time.Time // of the last Sync
	lastFull     time.Time // end of the last full Sync that succeeded
	lastGood     time.Time // end of the last Sync that succeeded
	took         time.Duration
	err          error       // of the last Sync
	unserved     *Unserved   // by the last Sync that succeeded
	again        *staleFlows // to be looked for once more
	lookAt       time.Time   // when; zero: nothing to look for
	looks        int         // how often at most
	failingSince time.Time
	retry        time.Duration // wait after the last error
}

func newFamily(fam Family, backend Backend, node *Node) *family {
	return &family{
		fam: fam, backend: backend, state: newState(fam, node), changes: newChanges(),
		full: true, dirty: true,
	}
}

// set resolves one service anew; svc is nil when it is gone.
func (f *family) set(key source.Key, svc *source.Service, node *Node, queued time.Time) {
	var r *Resolved
	if svc != nil {
		r = Resolve(svc, node, f.fam)
	}
	old, changed := f.changes.put(f.state, key, r)
	if !changed {
		return
	}
	f.endpoints += endpoints(r) - endpoints(old)
	f.dirty = true
	f.retry = 0 // what failed may work now
	if f.queued.IsZero() {
		f.queued = queued
	}
}

// rebase starts a new State for a changed node. The caller sets all services again.
func (f *family) rebase(node *Node) {
	gone := f.changes
	f.state, f.changes, f.endpoints = newState(f.fam, node), newChanges(), 0
	f.changes.services = gone.services // the flows of services that went are still to be removed
	f.full, f.dirty = true, true
}

// due returns when the next Sync should start.
func (f *family) due(minimum, resync time.Duration) time.Time {
	switch {
	case f.err != nil:
		return f.lastStart.Add(f.took).Add(f.retry)
	case f.dirty:
		return f.lastStart.Add(minimum)
	}
	return f.lastFull.Add(resync)
}

// sync makes the kernel hold the State.
func (f *family) sync(ctx context.Context, resync time.Duration) SyncResult {
	start := time.Now()
	full := f.full || f.err != nil || start.Sub(f.lastFull) >= resync
	var delta *Delta
	if !full {
		delta = f.changes.delta()
	}
	err := f.backend.Sync(ctx, f.state, delta)
	var unserved *Unserved
	if errors.As(err, &unserved) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("syncing %s (%d services): %w", f.fam, len(f.state.Services), err)
	}
	return SyncResult{
		Family: f.fam, Full: full, Queued: f.queued, Start: start, Duration: time.Since(start),
		Err: err, Unserved: unserved, Services: len(f.state.Services), Endpoints: f.endpoints,
	}
}

// done takes the result of a sync.
func (f *family) done(r SyncResult) {
	end := r.Start.Add(r.Duration)
	f.lastStart, f.took, f.err = r.Start, r.Duration, r.Err
	if r.Err != nil {
		f.retry = min(max(2*f.retry, retryMin), retryMax)
		if f.failingSince.IsZero() {
			f.failingSince = end
		}
		return
	}
	f.retry, f.failingSince, f.queued = 0, time.Time{}, time.Time{}
	f.lastGood, f.unserved = end, r.Unserved
	f.full, f.dirty = false, false
	f.changes = newChanges()
	if r.Full {
		f.lastFull = end
	}
}

// staleFlows returns which UDP flows a Sync that just succeeded made stale.
func (f *family) staleFlows(full bool, node *Node) *staleFlows {
	s := staleFlows{node: node}
	for _, ch := range f.changes.services {
		s.removedBy(ch, &f.state.Host)
	}
	if full {
		s.all(f.state)
		return &s
	}
	for _, ch := range f.changes.services {
		s.changedBy(ch, &f.state.Host)
	}
	return &s
}

// lookAgain has the flows of s looked for once more, after secondLook.
func (f *family) lookAgain(s *staleFlows, now time.Time) {
	if f.again == nil {
		f.again = s
	} else {
		f.again.merge(s)
	}
	f.lookAt, f.looks = now.Add(secondLook), maxLooks
}

// endpoints counts the targets of a service, each port once.
func endpoints(r *Resolved) int {
	if r == nil {
		return 0
	}
	n := 0
	for _, p := range r.Pools {
		if p.Scope == ClusterScope {
			n += len(p.Targets)
		}
	}
	return n
}
