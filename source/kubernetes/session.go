//go:build !nokubernetes

package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/remote"
)

// identityPoll is how often kubeconfig and certificates are read again.
const identityPoll = 5 * time.Second

// backoff returns how long a reflector waits after each failure: 0.4 to 0.8 s. The
// pacer waits longer where that is needed; client-go would wait up to a minute.
func backoff() *wait.Backoff {
	return &wait.Backoff{Duration: remote.FirstWait, Factor: 1, Jitter: 1, Steps: 1}
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

// sessions reads the API server until ctx ends, again with each identity. What is
// known of the cluster stays between them.
func (s *Source) sessions(ctx context.Context, steps chan<- step) {
	var old *identity
	stop := func() {}
	defer func() { stop() }()
	tick := time.NewTicker(identityPoll)
	defer tick.Stop()
	held := time.NewTicker(cmp.Or(s.askHeld, heldPoll))
	defer held.Stop()
	for again := false; ; {
		now, err := s.identify()
		switch {
		case err != nil && old == nil:
			s.Fail(remote.AllParts, err)
		case err != nil: // it is being written, perhaps: the one in use may go on
			s.Log.Debug("identity for the API server cannot be read", "err", err)
		case old == nil || now.version != old.version || again:
			stop()
			if old != nil && !again {
				s.Log.Info("kubeconfig or certificates changed; reconnecting")
			}
			stop, old = s.session(ctx, now, steps), now
		}
		again = false
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-held.C:
			again = s.Held() > 0
		case <-s.again:
			again = true
		}
	}
}

// session starts to read the API server, until stop is called or ctx ends. It
// does not wait then: a reflector may sleep for seconds before it looks at ctx.
func (s *Source) session(ctx context.Context, id *identity, steps chan<- step) (stop func()) {
	s.Use(id.config.Host)
	c, err := newClient(id.config)
	if err != nil {
		s.Fail(remote.AllParts, err)
		return func() {}
	}
	ctx, stop = context.WithCancel(klog.NewContext(ctx, logr.Discard()))
	begin(ctx, steps, id.config.Host)
	pace, seldom := remote.NewPacer(remote.MostWait, answered), remote.NewPacer(remote.MostWaitOptional, answered)
	var wg sync.WaitGroup
	run := func(k kind, from cache.Getter, modify func(*meta.ListOptions), expected runtime.Object, into cache.ReflectorStore) {
		r := cache.NewReflectorWithOptions(s.reader(ctx, pace, k, from, modify), expected, into, cache.ReflectorOptions{Name: k.String(), Backoff: backoff()})
		wg.Go(func() { r.RunWithContext(ctx) })
	}
	run(services, c.core, withLabel(s.ProxyName, true), &core.Service{}, serviceStore(ctx, steps))
	run(endpointSlices, c.discovery, withLabel(s.ProxyName, false), &discovery.EndpointSlice{}, sliceStore(ctx, steps))
	run(nodes, c.core, named(s.NodeName), &core.Node{}, nodeStore(ctx, steps, s.NodeName))
	if s.ProxyName == "" { // else ClusterIPs that we do not know may be another proxy's
		pace = seldom
		run(serviceCIDRs, c.networking, func(*meta.ListOptions) {}, &networking.ServiceCIDR{}, cidrStore(ctx, steps))
	}
	wg.Go(func() { s.sendEvents(ctx, c) })
	go func() {
		wg.Wait()
		c.http.CloseIdleConnections()
	}()
	return stop
}

// begin tells the goroutine of Run of a new session.
func begin(ctx context.Context, steps chan<- step, server string) {
	select {
	case steps <- func(c *cluster) { c.begin(server) }:
	case <-ctx.Done():
	}
}

// labelProxyName is the label by which a service chooses who proxies it.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// withLabel selects the services that are for a proxy of this name, and the slices of
// all but headless services, as kube-proxy does: slices have the labels of their service
// only where the controller of Kubernetes made them, and some time after it.
func withLabel(proxy string, ofServices bool) func(*meta.ListOptions) {
	selector := "!" + core.IsHeadlessService
	switch {
	case ofServices && proxy == "":
		selector = "!" + labelProxyName
	case ofServices:
		selector = labelProxyName + "=" + proxy
	}
	return func(o *meta.ListOptions) { o.LabelSelector = selector }
}

// named selects the object of this name.
func named(name string) func(*meta.ListOptions) {
	selector := fields.OneTermEqualSelector(meta.ObjectNameField, name).String()
	return func(o *meta.ListOptions) { o.FieldSelector = selector }
}

// reader lists and watches one kind of objects, and tells status how that goes.
func (s *Source) reader(ctx context.Context, pace *remote.Pacer, k kind, from cache.Getter, modify func(*meta.ListOptions)) *cache.ListWatch {
	lw := cache.NewFilteredListWatchFromClient(once{from}, k.String(), meta.NamespaceAll, modify)
	list, watcher := lw.ListWithContextFunc, lw.WatchFuncWithContext
	lw.ListWithContextFunc = func(call context.Context, o meta.ListOptions) (runtime.Object, error) {
		done := pace.Ask(ctx)
		out, err := list(call, o)
		done(err)
		s.failed(ctx, k, err)
		return out, err
	}
	lw.WatchFuncWithContext = func(call context.Context, o meta.ListOptions) (watch.Interface, error) {
		done := pace.Ask(ctx)
		w, err := watcher(call, o)
		if _, live := w.(*watch.StreamWatcher); err == nil && !live {
			err = errNoAnswer
			s.failed(ctx, k, err)
		}
		done(err)
		switch first := o.SendInitialEvents != nil; {
		case err == nil && int(k) < kinds:
			s.Watching(int(k))
		case err == nil:
		case first:
			// An API server without streaming lists refuses this, and is asked for a
			// list next. The reflector must not take it for an error that passes: it
			// would sleep without looking at its context.
			return nil, errors.New(err.Error())
		default:
			s.failed(ctx, k, err)
		}
		return w, err
	}
	return lw
}

// once asks once. client-go would try ten times, for minutes, before it says that
// nobody answers.
type once struct{ cache.Getter }

func (o once) Get() *rest.Request { return o.Getter.Get().MaxRetries(0) }

// answered says of an error whether the API server answers, as that something is too
// old, and else when it wants to be asked again.
func answered(err error) (bool, time.Duration) {
	secs, _ := apierrors.SuggestsClientDelay(err)
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err), time.Duration(secs) * time.Second
}

// errNoAnswer is why there is nothing to watch where client-go gives a watch that
// has ended instead of an error: rest.Request.Watch, of timeouts and of
// connections that end before an answer.
var errNoAnswer = errors.New("no answer: connections time out, or end at once")

// failed tells status of an error, unless it is only that nobody wants to read any more.
func (s *Source) failed(ctx context.Context, k kind, err error) {
	switch {
	case err == nil || ctx.Err() != nil:
	case int(k) < kinds:
		s.Fail(int(k), err)
	default:
		s.Log.Debug("not watched", "objects", k.String(), "err", err)
	}
}

var _ source.Source = (*Source)(nil)
