package conditions

import (
	"cmp"
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

// A Checker asks endpoints whether they are alive, as healthcheck.Checker does. Result must not
// wait for a call of Report that is under way.
type Checker interface {
	Watch(q healthcheck.Question, check *source.HealthCheck, from healthcheck.Result)
	Forget(q healthcheck.Question)
	Result(q healthcheck.Question) healthcheck.Result
}

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
	started time.Time // by New
	drains  Drains
	reports reports
	news    chan struct{} // holds something when Run has work
	unsaved chan struct{} // holds something when Keep has work

	flushing sync.Mutex // held while changes are composed and the Loop is told; before mu

	mu       sync.Mutex // guards what follows; not held while the disk, the log or Reconsider is waited for
	services map[source.Key]*service
	askers   map[healthcheck.Question][]endpointKey // who asks it
	dirty    map[source.Key]bool                    // services that drains have touched
	timed    map[source.Key]*service                // those whose step is not zero
	former   formerEndpoints
	teller   teller

	file   *stateFile
	unkept atomic.Bool // the disk may not have the drains as they are
}

// An endpointKey says which endpoint: in which service, at which address.
type endpointKey struct {
	source.Key
	at netip.AddrPort
}

// New returns a Keeper that knows what an earlier one has left in the state directory.
func New(cfg Config) *Keeper {
	k := &Keeper{
		cfg: cfg, started: time.Now(), news: make(chan struct{}, 1), unsaved: make(chan struct{}, 1),
		services: make(map[source.Key]*service), askers: make(map[healthcheck.Question][]endpointKey),
		dirty: make(map[source.Key]bool), timed: make(map[source.Key]*service), former: newFormer(), file: newStateFile(cfg.StateDir),
	}
	k.restore(time.Now())
	return k
}

// Use implements loop.Conditioner.
func (k *Keeper) Use(key source.Key, svc *source.Service) policy.Conditions {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.services[key]
	if s == nil {
		s = &service{key: key}
	}
	k.services[key] = s
	k.follow(s, svc, now)
	if svc == nil {
		delete(k.services, key)
		delete(k.timed, key)
		return nil
	}
	k.compose(s, now)
	ring(k.news) // a slow start may have begun, and lines wait for the log
	return s.known
}

// Conditions implements loop.Conditioner.
func (k *Keeper) Conditions(key source.Key) policy.Conditions {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.services[key]; s != nil {
		return s.known
	}
	return nil
}

// Details returns what else is known of the endpoints of a service in use, for report.Surroundings.
func (k *Keeper) Details(key source.Key) map[netip.AddrPort]policy.Detail {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.services[key]
	if s == nil || s.endpoints == nil && len(s.known) == 0 {
		return nil
	}
	details := make(map[netip.AddrPort]policy.Detail, len(s.Endpoints))
	for i := range s.Endpoints {
		at := s.EndpointAt(&s.Endpoints[i])
		if d := k.detail(s, at); d != (policy.Detail{}) {
			details[at] = d
		}
	}
	return details
}

// detail returns what else is known of an endpoint.
func (k *Keeper) detail(s *service, at netip.AddrPort) (d policy.Detail) {
	d.Drain = k.drains.Of(s.key, at.Addr())
	e := s.endpoints[at]
	if e == nil {
		return d
	}
	if e.asked {
		r := k.cfg.Checker.Result(e.question)
		d.Since, d.Asked, d.Took, d.Error = r.Since, r.Asked, r.Took, cmp.Or(r.NotAsked, r.Error)
	}
	if s.known[at].Share > 0 {
		d.Since = e.began
	}
	return d
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
	ring(k.news)
}

// take returns what came since it was last called.
func (r *reports) take() map[healthcheck.Question]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.news
	r.news = nil
	return news
}

// ring has the one who waits for ch look.
func ring(ch chan struct{}) { wake.Once(ch) }
