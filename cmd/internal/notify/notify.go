// Package notify calls a program, or posts to a URL, for each change of a state on this host, as [notify] says.
//
// What a change is, package changes decides. It remembers the last change of each object, so nothing is queued here: a
// Notifier knows up to which number it has called, and which objects a call has failed for. However slow or broken what is
// called is, an object has one call outstanding, for its last state.
//
//	notify.go  when what is called
//	failed.go  calls that are made again
//	call.go    how a program and a URL are called
package notify

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source/disk"
)

// Bounds of calls. They are made one at a time.
const (
	perSecond = 10 // calls: a program takes some 15 ms of a processor to begin
	burst     = 50 // calls in a row
	perPost   = 100

	// maxFailed is how many objects may wait for another call. Beyond that no others are called for, so that the last state
	// of none is lost.
	maxFailed = 10_000
)

// Config is what a Notifier needs.
type Config struct {
	Log      *slog.Logger
	Changes  *changes.Tracker
	Node     string // the name of this host
	Settings string // the path of svcproxy.toml: only root may be able to change one that names a program
	Version  string // of svcproxy

	Called func(ok bool) // counts a call
}

// A Notifier calls.
type Notifier struct {
	Config
	asker *disk.Asker
	limit *rate.Limiter
	lost  rate.Sometimes // when the log says that changes are left out

	changed chan struct{} // holds something when there are other settings

	mu      sync.Mutex
	wanted  configs.Notify
	problem string // why calls fail, and for how many objects; empty: they do not

	open func(configs.Notify) target // targetOf, except in tests

	// What follows is Run's.
	target  target // nil: nothing is called
	inUse   configs.Notify
	seen    changes.Cursor // the last change that was called for
	unknown map[report.Object]bool
	failed  failed
	retried bool // the last call was made again
}

// New returns a Notifier that calls what settings say.
func New(c Config, s configs.Notify) *Notifier {
	n := &Notifier{
		Config: c, asker: disk.NewAsker(filepath.Dir(c.Settings)), wanted: s, changed: make(chan struct{}, 1),
		limit: rate.NewLimiter(perSecond, burst), lost: rate.Sometimes{Interval: time.Minute},
	}
	n.open = n.targetOf
	return n
}

// Use takes over other settings.
func (n *Notifier) Use(s configs.Notify) {
	n.mu.Lock()
	n.wanted = s
	n.mu.Unlock()
	wake.Once(n.changed)
}

// Warnings says why calls fail.
func (n *Notifier) Warnings() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.problem == "" {
		return nil
	}
	return []string{n.problem}
}

// Run calls until ctx ends. The states when ready is closed, or when settings first name something to call, are no
// changes.
func (n *Notifier) Run(ctx context.Context, ready <-chan struct{}) {
	select {
	case <-ctx.Done():
		return
	case <-ready:
	}
	defer n.stop()
	again := time.NewTicker(changes.Moment)
	defer again.Stop()
	for {
		n.useWanted()
		wait := again.C
		if n.target == nil {
			wait = nil
		} else if n.step(ctx) {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-n.changed:
		case <-wait:
		}
	}
}

// useWanted takes over the settings that are wanted. What waits for another call gets it at once.
func (n *Notifier) useWanted() {
	n.mu.Lock()
	want := n.wanted
	n.mu.Unlock()
	if reflect.DeepEqual(want, n.inUse) {
		return
	}
	before := n.target
	n.inUse, n.target = want, n.open(want)
	if before != nil {
		before.close()
	}
	switch {
	case before == nil && n.target != nil:
		n.begin()
	case before != nil && n.target == nil:
		n.end()
	}
	n.failed.retryNow()
}

// begin takes the present states for known.
func (n *Notifier) begin() {
	n.Changes.Join()
	n.Changes.Update()
	last, _, _ := n.Changes.Position()
	n.seen = changes.Cursor{Number: last}
	n.unknown = make(map[report.Object]bool)
	for _, o := range n.Changes.In(report.EndpointObject, policy.Checking.String()) {
		n.unknown[o] = true
	}
}

// end forgets all.
func (n *Notifier) end() {
	n.Changes.Leave()
	n.failed, n.unknown = failed{}, nil
	n.tellProblem()
}

func (n *Notifier) stop() {
	if n.target != nil {
		n.target.close()
		n.Changes.Leave()
	}
}

// step makes a call, if one is due, and waits until the next one may be made. It reports whether it made one.
func (n *Notifier) step(ctx context.Context) bool {
	n.Changes.Update()
	n.tellProblem()
	batch := n.next(time.Now())
	if len(batch) == 0 {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, n.inUse.Timeout)
	defer cancel()
	err := n.target.call(limited, batch)
	if ctx.Err() != nil {
		return false
	}
	n.record(batch, err)
	if n.limit.Wait(ctx) != nil {
		return false
	}
	return err == nil || n.failed.inRow < patientRow
}

// next returns the changes that the next call is for: in turn those that a call has failed for, and others.
func (n *Notifier) next(now time.Time) []changes.Change {
	most := n.target.most()
	if n.failed.inRow > 0 {
		if now.Before(n.failed.pausedUntil) {
			return nil
		}
		most = 1 // it may be one of several that fails
	}
	n.noteLost()
	first, second := n.again, n.fresh
	if n.retried {
		first, second = second, first
	}
	batch := first(now, most)
	if len(batch) == 0 {
		batch = second(now, most)
	}
	return batch
}

// fresh returns changes that nothing was called for yet.
func (n *Notifier) fresh(_ time.Time, most int) (batch []changes.Change) {
	for len(batch) == 0 && len(n.failed.of)+most <= maxFailed {
		list := n.Changes.Since(&n.seen, most)
		if len(list) == 0 {
			break
		}
		for _, ch := range list {
			if !n.isNothing(ch) {
				batch = append(batch, ch)
			}
		}
	}
	n.retried = false
	return batch
}

// isNothing reports whether nothing is called for a change: its object came and went, or is an endpoint of which nothing
// was known at the beginning and which passes its first check.
func (n *Notifier) isNothing(ch changes.Change) bool {
	first := n.unknown[ch.Object]
	delete(n.unknown, ch.Object)
	good := ch.State == policy.Up.String() || ch.State == policy.Backup.String() || ch.State == policy.SlowStart.String()
	return ch.Nothing() || first && good && ch.Was == policy.Checking.String()
}

// again returns changes that a call has failed for and is due again, in their last state.
func (n *Notifier) again(now time.Time, most int) (batch []changes.Change) {
	for _, o := range n.failed.due(now, most) {
		ch, known := n.Changes.Get(o)
		if !known || ch.Nothing() {
			n.failed.remove(o)
			continue
		}
		batch = append(batch, ch)
	}
	n.retried = len(batch) > 0
	return batch
}

// noteLost has the log say when objects that are gone were forgotten before anything was called for them.
func (n *Notifier) noteLost() {
	if _, from, _ := n.Changes.Position(); from > n.seen.Number {
		n.lost.Do(func() {
			n.Log.Warn("more objects are gone than notifications could be sent for; some are left out")
		})
	}
}

// record notes what came of a call.
func (n *Notifier) record(batch []changes.Change, err error) {
	n.Called(err == nil)
	if err == nil {
		if n.failed.succeeded(batch) {
			n.Log.Info("notifications succeed again")
		}
	} else {
		if n.failed.fail(batch, err, time.Now()) {
			ch := &batch[0]
			n.Log.Warn("a notification failed; retrying", "err", err, "kind", ch.Kind, "service", ch.Service, "name", ch.Name, "state", ch.State)
		}
	}
	n.tellProblem()
}

// tellProblem sets what Warnings says.
func (n *Notifier) tellProblem() {
	_, _, tooMany := n.Changes.Position()
	text := ""
	switch {
	case len(n.failed.of) > 0:
		text = fmt.Sprintf("[notify] fails for %d changes, which it is called for again: %s", len(n.failed.of), n.failed.why)
	case tooMany && n.target != nil:
		text = fmt.Sprintf("[notify] is called for %d endpoints, addresses and files, and there are more", changes.MaxObjects)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.problem = text
}
