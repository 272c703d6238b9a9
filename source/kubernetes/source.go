//go:build !nokubernetes

package kubernetes

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	events "k8s.io/api/events/v1"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/remote"
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
	AllowEmpty bool         // see SetAllowEmpty
	Log        *slog.Logger // nil: none

	// OnNode is told what the Node object says, for the first time before Synced,
	// from the goroutine of Run. Nil: this host is not, or no more, a node of the cluster.
	OnNode func(*source.ClusterNode)

	// OnServiceCIDRs is told the ranges that ClusterIPs come from, after Synced and from
	// the goroutine of Run, where the API server says so.
	OnServiceCIDRs func([]netip.Prefix)

	askHeld time.Duration // 0: heldPoll
}

// A Source is the API server of a cluster. It implements source.Source.
type Source struct {
	Options
	*remote.State
	events   chan *events.Event // to send
	commands chan step          // what others have the goroutine of Run do
	again    chan struct{}      // has an element when the API server is to be listed again
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
	s := &Source{
		Options: o, State: remote.NewState(Name, o.Log, kinds), events: make(chan *events.Event, maxEvents),
		commands: make(chan step), again: make(chan struct{}, 1),
	}
	s.SetAllowEmpty(o.AllowEmpty)
	return s
}

// patience is how long the first lists may take before what was last known is
// served; failedPatience, from the first failure of one of them: that is a second
// try, so that what passes at once does not bring back what is old.
const (
	patience       = 5 * time.Second
	failedPatience = time.Second
)

// Run implements source.Source. That the API server cannot be reached is no
// error: what it said last stays, and status tells since when.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	steps := make(chan step)
	var wg sync.WaitGroup
	wg.Go(func() { s.sessions(ctx, steps) })
	defer wg.Wait()
	c := newCluster(s, sink)
	defer func() { c.keeper.End(c.keeps()) }()
	timer, patient, failed := time.NewTimer(0), remote.NewDeadline(patience), s.Failed()
	defer timer.Stop()
	defer patient.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case st := <-steps:
			st(c)
			if len(c.held) > 0 {
				patient.Within(0) // what was last known is served meanwhile
			}
		case do := <-s.commands:
			do(c)
		case <-timer.C:
		case <-patient.C:
			failed = nil
			c.fallBack()
		case <-failed:
			failed = nil
			patient.Within(failedPatience)
		}
		now := time.Now()
		c.flush(now)
		if c.keeps() {
			c.keeper.Save(now)
		}
		if due, some := c.nextDue(); some {
			timer.Reset(time.Until(due))
		}
	}
}
