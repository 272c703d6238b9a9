package conditions

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Config configures a Keeper.
type Config struct {
	StateDir   string // of the file that a restart reads
	Log        *slog.Logger
	Checker    Checker                  // calls Keeper.Report on each change of a state
	Reconsider func(keys ...source.Key) // loop.Loop.Reconsider
	OnNode     func(drained bool)       // loop.Loop.DrainHost
}

// A Keeper knows the Conditions of all services. It implements loop.Conditioner. Run and
// Keep have to run for it to be of use.
type Keeper struct {
	cfg     Config
	drains  Drains
	news    chan struct{} // holds something when Run has work
	unsaved chan struct{} // holds something when Keep has work

	// Questions whose results have changed. They have a lock of their own: a Checker
	// may hold its own lock while it reports, which Watch takes while the Keeper's is held.
	reports struct {
		sync.Mutex
		of map[healthcheck.Question]bool
	}

	flushing sync.Mutex // held while changes are composed and the Loop is told; before mu

	mu   sync.Mutex // not held while the disk, the log or Reconsider is waited for
	book book

	file   *stateFile
	unkept atomic.Bool // the disk may not have the drains as they are
}

// New returns a Keeper that knows what an earlier one has left in the state directory.
func New(cfg Config) *Keeper {
	k := &Keeper{
		cfg: cfg, news: make(chan struct{}, 1), unsaved: make(chan struct{}, 1), file: newStateFile(cfg.StateDir),
	}
	k.book = book{
		checker: cfg.Checker, drains: &k.drains, started: time.Now(), unsaved: k.unsaved,
		services: make(map[source.Key]*service), askers: make(map[healthcheck.Question][]endpointKey),
		dirty: make(map[source.Key]bool), timed: make(map[source.Key]*service), former: formerEndpoints{all: make(map[endpointKey]*endpoint), before: make(map[source.Key]bool)},
	}
	k.restore(time.Now())
	return k
}

// Use implements loop.Conditioner.
func (k *Keeper) Use(key source.Key, svc *source.Service) policy.Conditions {
	k.mu.Lock()
	defer k.mu.Unlock()
	if svc != nil {
		defer wake.Once(k.news) // a slow start may have begun, and lines wait for the log
	}
	return k.book.use(key, svc, time.Now())
}

// Conditions implements loop.Conditioner.
func (k *Keeper) Conditions(key source.Key) policy.Conditions {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.book.services[key]; s != nil {
		return s.known
	}
	return nil
}

// Details returns what else is known of the endpoints of a service in use, for report.Surroundings.
func (k *Keeper) Details(key source.Key) map[netip.AddrPort]policy.Detail {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.book.services[key]
	if s == nil || s.endpoints == nil && len(s.known) == 0 {
		return nil
	}
	details := make(map[netip.AddrPort]policy.Detail, len(s.Endpoints))
	for i := range s.Endpoints {
		at := s.EndpointAt(&s.Endpoints[i])
		if d := k.book.detail(s, at); d != (policy.Detail{}) {
			details[at] = d
		}
	}
	return details
}

// Report is told of a result whose state has changed. It does not block.
func (k *Keeper) Report(q healthcheck.Question, _ healthcheck.Result) {
	k.reports.Lock()
	defer k.reports.Unlock()
	if k.reports.of == nil {
		k.reports.of = make(map[healthcheck.Question]bool)
	}
	k.reports.of[q] = true
	wake.Once(k.news)
}

// batchTime is how long more changes are waited for after one: endpoints that fail together
// are one change of their services.
const batchTime = 50 * time.Millisecond

// Run hands on what the Checker reports and how slow starts go on, until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		k.mu.Lock()
		next := k.book.next()
		k.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-k.news:
		case <-time.After(time.Until(next)):
		}
		if !pause(ctx, batchTime) {
			return nil
		}
		k.flush()
	}
}

// pause waits, and reports whether ctx has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return ctx.Err() == nil
	}
}

// flush has all services resolved again whose Conditions have changed, and logs why. When it returns, the Loop
// has all changes from before, also those that another goroutine has composed.
func (k *Keeper) flush() {
	k.flushing.Lock()
	k.reports.Lock()
	reported := k.reports.of
	k.reports.of = nil
	k.reports.Unlock()
	k.mu.Lock()
	changed, lines := k.book.recompose(reported, time.Now())
	k.mu.Unlock()
	if len(changed) > 0 {
		k.cfg.Reconsider(changed...)
	}
	k.flushing.Unlock()
	for _, log := range lines {
		log(k.cfg.Log)
	}
}

// Drains returns who drains what. They are changed by Drain and Undrain alone.
func (k *Keeper) Drains() *Drains { return &k.drains }

// Drain drains a target, or changes why it is drained. The Loop has been told when it
// returns; and without error the disk has it, so that no crash ends it. Except after
// ErrTooManyDrains it is drained also after an error, until a restart.
func (k *Keeper) Drain(t DrainTarget, why policy.Drain) error {
	if err := k.drains.Set(t, why); err != nil {
		return err
	}
	return k.redrain(t)
}

// Undrain ends a drain, and reports whether there was one. The error is as that of Drain. Where the disk may still have one
// that was ended before, it is written again.
func (k *Keeper) Undrain(t DrainTarget) (bool, error) {
	switch {
	case k.drains.Remove(t):
	case k.unkept.Load():
		return false, k.saveDrains()
	default:
		return false, nil
	}
	return true, k.redrain(t)
}

// redrain has a change of drains take effect, and then keeps it: a disk that is slow, or gone, may be why a host is drained.
func (k *Keeper) redrain(t DrainTarget) error {
	k.mu.Lock()
	for key, s := range k.book.services {
		for i := range s.Endpoints {
			if !t.Node && t.Covers(key, s.Endpoints[i].Addr) {
				k.book.dirty[key] = true
				break
			}
		}
	}
	k.mu.Unlock()
	k.flush()
	wake.Once(k.news) // a drain may have a deadline, of which Run does not know yet
	if t.Node {
		k.flushing.Lock() // so that the Loop hears the last
		k.cfg.OnNode(k.drains.Node() != nil)
		k.flushing.Unlock()
	}
	return k.saveDrains()
}

// saveDrains writes the drains to disk. Where that fails, Keep tries again.
func (k *Keeper) saveDrains() error {
	if err := k.save(true); err != nil {
		k.unkept.Store(true)
		wake.Once(k.unsaved) // Keep tries again
		return fmt.Errorf("keeping drains, which a restart would not know: %w", err)
	}
	return nil
}
