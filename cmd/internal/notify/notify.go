// Package notify calls a program, or posts to a URL, for each change of a state on this host, as [notify] says.
//
// Package changes decides what a change is, and remembers the last change of each object. So there is no queue: a Notifier
// only stores the number of the last change it has called for, and the objects that a call has failed for. However slow or
// broken the program or URL is, at most one call per object is outstanding, for its last state.
//
//	notify.go  decides when to call, and for which changes
//	failed.go  schedules retries
//	call.go    calls a program or a URL
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
	perSecond = 10 // calls; starting a program takes about 15 ms of processor time
	burst     = 50 // calls in a row
	perPost   = 100

	// maxFailed is how many objects may wait for a retry. Beyond that, no new changes are read, so that no last state is lost.
	maxFailed = 10_000
)

// Config is what a Notifier needs.
type Config struct {
	Log      *slog.Logger
	Changes  *changes.Tracker
	Node     string // the name of this host
	Settings string // the path of svcproxy.toml; if it names a program, only root may be able to change it
	Version  string // of svcproxy

	Called func(ok bool) // is called after each call, for metrics
}

// A Notifier calls the program or URL of [notify] for each change.
type Notifier struct {
	Config
	asker *disk.Asker
	limit *rate.Limiter
	lost  rate.Sometimes // limits the log line about lost changes

	changed chan struct{} // has an element when the settings have changed

	mu      sync.Mutex
	wanted  configs.Notify
	problem string // why calls fail, and for how many objects; empty: they succeed

	open func(configs.Notify) target // targetOf, except in tests

	// The following fields belong to Run.
	target  target // nil: nothing is called
	inUse   configs.Notify
	seen    changes.Cursor         // the last change that was called for
	unknown map[report.Object]bool // endpoints that had no result of a check when notifications began
	failed  failed
	retried bool // the last call was a retry
}

// New returns a Notifier with these settings. It does nothing until Run is called.
func New(c Config, s configs.Notify) *Notifier {
	n := &Notifier{
		Config: c, asker: disk.NewAsker(filepath.Dir(c.Settings)), wanted: s, changed: make(chan struct{}, 1),
		limit: rate.NewLimiter(perSecond, burst), lost: rate.Sometimes{Interval: time.Minute},
	}
	n.open = n.targetOf
	return n
}

// Use changes the settings.
func (n *Notifier) Use(s configs.Notify) {
	n.mu.Lock()
	n.wanted = s
	n.mu.Unlock()
	wake.Once(n.changed)
}

// Warnings returns why calls fail, if they do.
func (n *Notifier) Warnings() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.problem == "" {
		return nil
	}
	return []string{n.problem}
}

// Run makes calls until ctx ends. The states at the time when ready is closed, or when the settings first name a program or
// URL, are not treated as changes.
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

// useWanted applies changed settings. Objects that wait for a retry are retried at once.
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

// begin starts watching changes. The present states are treated as known.
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

// end stops watching changes, and forgets everything.
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

// next returns the changes for the next call. It alternates between retries and new changes.
func (n *Notifier) next(now time.Time) []changes.Change {
	most := n.target.most()
	if n.failed.inRow > 0 {
		if now.Before(n.failed.pausedUntil) {
			return nil
		}
		most = 1 // perhaps only one of several changes fails
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

// fresh returns new changes.
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

// isNothing reports whether a change needs no call: its object appeared and disappeared again, or it is an endpoint that was
// not checked yet at the beginning and has passed its first check.
func (n *Notifier) isNothing(ch changes.Change) bool {
	first := n.unknown[ch.Object]
	delete(n.unknown, ch.Object)
	good := ch.State == policy.Up.String() || ch.State == policy.Backup.String() || ch.State == policy.SlowStart.String()
	return ch.Nothing() || first && good && ch.Was == policy.Checking.String()
}

// again returns the last changes of objects whose retry is due.
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

// noteLost logs a warning if objects that are gone were forgotten before a call was made for them.
func (n *Notifier) noteLost() {
	if _, from, _ := n.Changes.Position(); from > n.seen.Number {
		n.lost.Do(func() {
			n.Log.Warn("more objects are gone than notifications could be sent for; some are left out")
		})
	}
}

// record records the result of a call.
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

// tellProblem updates what Warnings returns.
func (n *Notifier) tellProblem() {
	_, _, tooMany := n.Changes.Position()
	text := ""
	switch {
	case len(n.failed.of) > 0:
		text = fmt.Sprintf("[notify] failed for %d changes; retrying: %s", len(n.failed.of), n.failed.why)
	case tooMany && n.target != nil:
		text = fmt.Sprintf("[notify] covers only %d endpoints, addresses and files; the rest are left out", changes.MaxObjects)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.problem = text
}
