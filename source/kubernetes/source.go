//go:build !nokubernetes

package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	events "k8s.io/api/events/v1"

	"svcproxy/source"
)

// Name is what the source is called, in settings and in units.
const Name = "kubernetes"

// Options say which cluster a Source reads, and for whom.
type Options struct {
	Kubeconfig string // path; empty: the service account of the pod we run in, then $KUBECONFIG
	APIServer  string // URL; empty: as those say
	ProxyName  string // value of the label service.kubernetes.io/service-proxy-name; empty: services without it
	NodeName   string // of the Node object of this host, if it has one
	UserAgent  string
	StateDir   string       // keeps what the cluster last said; empty: nothing does
	Beside     bool         // other sources are served too: they do not wait for an API server that cannot be reached
	Log        *slog.Logger // nil: none

	// OnNode is told what the Node object says, for the first time before Synced,
	// from the goroutine of Run. Nil: this host is not, or no more, a node of the cluster.
	OnNode func(*source.ClusterNode)

	// OnServiceCIDRs is told the ranges that ClusterIPs come from, after Synced and from
	// the goroutine of Run, where the API server says so.
	OnServiceCIDRs func([]netip.Prefix)
}

// A Source is the API server of a cluster. It implements source.Source.
type Source struct {
	Options
	contact *contact
	events  chan *events.Event // to send

	mu     sync.Mutex // guards what follows, which only Run writes
	synced bool
	stale  string                           // of services that are as last known
	broken map[source.Key]source.FileStatus // objects of which not all is used as it stands
}

// New returns a Source that does nothing before Run.
func New(o Options) *Source {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnNode == nil {
		o.OnNode = func(*source.ClusterNode) {}
	}
	if o.OnServiceCIDRs == nil {
		o.OnServiceCIDRs = func([]netip.Prefix) {}
	}
	silence()
	return &Source{Options: o, contact: newContact(o.Log), events: make(chan *events.Event, maxEvents), broken: map[source.Key]source.FileStatus{}}
}

// patience is how long the first lists may take before what was last known is
// served; failedPatience, from the first failure of one of them: that is a second
// try, so that what passes at once does not bring back what is old.
const (
	patience       = 5 * time.Second
	failedPatience = time.Second
)

// A deadline can be brought forward, and is not put off.
type deadline struct {
	*time.Timer
	at time.Time
}

func newDeadline(wait time.Duration) *deadline {
	return &deadline{time.NewTimer(wait), time.Now().Add(wait)}
}

// within brings d forward, where it is later than that.
func (d *deadline) within(wait time.Duration) {
	if at := time.Now().Add(wait); at.Before(d.at) {
		d.at = at
		d.Reset(wait)
	}
}

// Run implements source.Source. That the API server cannot be reached is no
// error: what it said last stays, and status tells since when.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	steps := make(chan step)
	var wg sync.WaitGroup
	wg.Go(func() { s.sessions(ctx, steps) })
	defer wg.Wait()
	c := newCluster(s, sink)
	defer c.keeper.end(c)
	timer, patient, failed := time.NewTimer(0), newDeadline(patience), s.contact.failed
	defer timer.Stop()
	defer patient.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case st := <-steps:
			st(c)
		case <-timer.C:
		case <-patient.C:
			failed = nil
			c.fallBack()
		case <-failed:
			failed = nil
			patient.within(failedPatience)
		}
		now := time.Now()
		c.flush(now)
		c.keeper.save(c, now)
		if due, some := c.nextDue(); some {
			timer.Reset(time.Until(due))
		}
	}
}

// Status implements source.Source.
func (s *Source) Status() source.Status {
	conn := s.contact.status()
	st := source.Status{Source: Name, Connection: &conn}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Synced = s.synced
	if s.stale != "" {
		st.Warnings = append(st.Warnings, s.stale)
	}
	for _, o := range s.broken {
		st.Objects = append(st.Objects, o)
	}
	slices.SortFunc(st.Objects, func(a, b source.FileStatus) int { return strings.Compare(a.Path, b.Path) })
	return st
}

// note keeps for status what of an object is not used as it stands; nothing: all of it is.
func (s *Source) note(key source.Key, used bool, faults []source.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, had := s.broken[key]
	if len(faults) == 0 {
		delete(s.broken, key)
		return
	}
	now := source.FileStatus{Path: key.String(), State: source.Accepted, Services: 1, Since: time.Now(), Faults: faults}
	switch {
	case faults[0].Warning:
	case used:
		now.State = source.Stale
	default:
		now.State, now.Services = source.Refused, 0
	}
	if had && old.State == now.State {
		now.Since = old.Since
	} else if now.State == source.Accepted {
		s.Log.Warn("part of a service is not used", "service", key.String(), "parts", len(faults), "first", faults[0].String())
	} else {
		s.Log.Warn("service cannot be used as it stands", "service", key.String(), "stays_as_before", used, "first", faults[0].String())
	}
	s.broken[key] = now
}

func (s *Source) noteSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced, s.stale = true, ""
}

// noteStale says in status that services are as last known.
func (s *Source) noteStale(services int, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = fmt.Sprintf("STALE: the API server has not been listed: the %d services of the cluster are as last known at %s", services, since.Format(time.RFC3339))
}
