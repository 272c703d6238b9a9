package conditions

import (
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
	reports reports
	news    chan struct{} // holds something when Run has work
	unsaved chan struct{} // holds something when Keep has work

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
		dirty: make(map[source.Key]bool), timed: make(map[source.Key]*service), former: newFormer(),
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

// reports are questions whose results have changed. They have a lock of their own: a Checker
// may hold its own lock while it reports, which Watch takes while the Keeper's is held.
type reports struct {
	mu   sync.Mutex
	news map[healthcheck.Question]bool
}

// Report is told of a result whose state has changed. It does not block.
func (k *Keeper) Report(q healthcheck.Question, _ healthcheck.Result) {
	k.reports.mu.Lock()
	defer k.reports.mu.Unlock()
	if k.reports.news == nil {
		k.reports.news = make(map[healthcheck.Question]bool)
	}
	k.reports.news[q] = true
	wake.Once(k.news)
}

// take returns what came since it was last called.
func (r *reports) take() map[healthcheck.Question]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.news
	r.news = nil
	return news
}
