package traffic

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fakeKernel has one connection, and tells of more as a test says.
type fakeKernel struct {
	mu       sync.Mutex
	readings int           // how often it was listed
	slow     time.Duration // of a listing
	follows  int           // how often events were asked for
	ends     []bool        // of each, whether it was to tell of ends
	packets  bool
	refuses  error // of the next Follow
	broken   chan error
	events   chan Connection
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{broken: make(chan error), events: make(chan Connection)}
}

var vipPair = proxier.Pair{FrontendAddr: at(source.TCP, "10.96.0.10:80"), Target: one}

func (k *fakeKernel) Connections(_ context.Context, _ policy.Family, each func(Connection)) error {
	k.readings++
	time.Sleep(k.slow)
	each(Connection{Pair: vipPair})
	each(Connection{Pair: vipPair, Ended: true})
	return nil
}

func (k *fakeKernel) CountsPackets() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.packets
}

func (k *fakeKernel) Follow(ends bool) (func(context.Context, func(Connection), func()) error, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.follows++
	k.ends = append(k.ends, ends)
	return k.run, k.refuses
}

func (k *fakeKernel) run(ctx context.Context, each func(Connection), lost func()) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-k.broken:
			return err
		case e := <-k.events:
			each(e)
		}
	}
}

// begins has the kernel tell of some connections that begin.
func (r *rig) begins(n int) {
	r.Helper()
	for range n {
		select {
		case r.kernel.events <- Connection{Pair: vipPair, Begun: true}:
		case <-time.After(time.Millisecond):
			r.Error("nobody is told of connections")
		}
	}
	synctest.Wait()
}

// set changes what the kernel does.
func (k *fakeKernel) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

// A rig is a Collector that runs.
type rig struct {
	*testing.T
	*Collector
	kernel *fakeKernel
}

// collect runs test with a Collector, in a bubble.
func collect(t *testing.T, k *fakeKernel, families []report.Family, test func(r *rig)) {
	collectFrom(t, k, func() []report.Family { return families }, test)
}

func collectFrom(t *testing.T, k *fakeKernel, families func() []report.Family, test func(r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		k.broken, k.events = make(chan error), make(chan Connection)
		c := NewCollector(k, families, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); c.Run(ctx) }()
		test(&rig{t, c, k})
		cancel()
		<-done
	})
}

// report asks for what is at most a second old.
func (r *rig) report() Report {
	r.Helper()
	got, err := r.Report(r.Context(), Query{}, time.Second)
	fatal.If(r, err)
	return got
}

// wantFigures checks those of the only service.
func (r *rig) wantFigures(got Report, active, connections uint64, rate float64) {
	r.Helper()
	if len(got.Services) != 1 {
		r.Fatalf("%+v, want one service", got)
	}
	if f := got.Services[0].Figures; f.Active != active || f.Connections != connections || f.ConnectionRate != rate {
		r.Errorf("%+v, want %d active, %d connections, %v a second", f, active, connections, rate)
	}
}

func TestCountedWhileAsked(t *testing.T) {
	collect(t, newFakeKernel(), serving(service("web", "10.96.0.10", one)), func(r *rig) {
		time.Sleep(time.Hour)
		if r.kernel.readings+r.kernel.follows > 0 {
			r.Fatal("the kernel was read although nobody asked")
		}
		r.wantFigures(r.report(), 1, 0, 0)
		r.begins(6)
		time.Sleep(2 * time.Second)
		r.wantFigures(r.report(), 1, 6, 3)
		time.Sleep(lease - time.Second)
		r.wantFigures(r.report(), 1, 6, 0)
		time.Sleep(lease + time.Second)
		if r.wantFigures(r.report(), 1, 0, 0); r.kernel.follows != 2 {
			r.Errorf("followed %d times, want twice", r.kernel.follows)
		}
	})
}

func TestCountingAlwaysNeedsNoAsker(t *testing.T) {
	collect(t, newFakeKernel(), serving(service("web", "10.96.0.10", one)), func(r *rig) {
		r.Want(Wanted{Always: true, Services: 10})
		synctest.Wait()
		r.begins(6)
		time.Sleep(time.Hour)
		r.wantFigures(r.report(), 1, 6, 6./3600)
		if r.kernel.follows != 1 {
			r.Errorf("followed %d times, want once", r.kernel.follows)
		}
		r.Want(Wanted{})
		time.Sleep(lease + time.Second)
		r.wantFigures(r.report(), 1, 0, 0)
	})
}

// What is told between two readings does not grow with what is no service's, and none of
// a service's is lost.
func TestForeignPairsAreDropped(t *testing.T) {
	var families []report.Family
	var mu sync.Mutex
	get := func() []report.Family { mu.Lock(); defer mu.Unlock(); return families }
	s := &session{Collector: NewCollector(newFakeKernel(), get, slog.New(slog.DiscardHandler))}
	s.read(t.Context())
	mu.Lock()
	families = serving(service("web", "10.96.0.10", one)) // new since the reading
	mu.Unlock()
	s.tally.add(Connection{Pair: vipPair, Begun: true})
	for round := range 3 {
		for i := range maxPairs - 1 {
			foreign := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, byte(18 + round), byte(i >> 8), byte(i)}), 443)
			s.tally.add(Connection{Pair: proxier.Pair{FrontendAddr: proxier.FrontendAddr{Protocol: source.TCP, AddrPort: foreign}, Target: foreign}, Begun: true})
		}
		if s.relieve(); len(s.tally.pairs) > manyPairs || len(s.book.addrs) > 10 {
			t.Fatalf("%d pairs, %d addresses", len(s.tally.pairs), len(s.book.addrs))
		}
	}
	s.read(t.Context())
	r := Report{Lost: s.tally.losses()}
	s.book.report(&Query{}, &r)
	if len(r.Services) != 1 || r.Services[0].Connections != 1 || r.Lost > 0 {
		t.Errorf("%+v, %d lost; want one connection, none lost", r.Services, r.Lost)
	}
}

// A session looks at what it was told without being asked.
func TestSessionReadsWithoutBeingAsked(t *testing.T) {
	s := service("web", "10.96.0.10", one)
	collect(t, newFakeKernel(), serving(s), func(r *rig) {
		r.Want(Wanted{Always: true})
		synctest.Wait()
		for i := range 3 * maxPairs {
			if i%manyPairs == 0 {
				time.Sleep(2 * followCheck)
			}
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, byte(i >> 16), byte(i >> 8), byte(i)}), 443)
			r.kernel.events <- Connection{Pair: proxier.Pair{FrontendAddr: proxier.FrontendAddr{Protocol: source.TCP, AddrPort: to}, Target: to}}
		}
		if got := r.report(); got.Lost > 0 {
			r.Errorf("%d lost", got.Lost)
		}
	})
}

// When a daemon starts, there is no family at first.
func TestCountedFromTheStart(t *testing.T) {
	var families []report.Family
	var mu sync.Mutex
	get := func() []report.Family { mu.Lock(); defer mu.Unlock(); return families }
	set := func(f []report.Family) { mu.Lock(); defer mu.Unlock(); families = f }
	collectFrom(t, newFakeKernel(), get, func(r *rig) {
		r.Want(Wanted{Always: true})
		synctest.Wait()
		r.begins(6)
		set(serving(service("web", "10.96.0.10", one)))
		time.Sleep(2 * time.Second)
		if got := r.report(); len(got.Services) != 1 || got.Services[0].Connections != 6 {
			r.Errorf("%+v, want 6 connections", got.Services)
		}
		counting := serving(service("web", "10.96.0.10", one))
		counting[0].Backend = countingBackend{}
		set(counting)
		time.Sleep(2 * time.Second)
		r.report()
		select {
		case r.kernel.events <- Connection{}:
			r.Error("events are asked for although the backend counts")
		case <-time.After(time.Millisecond):
		}
	})
}

// Events that have failed are asked for again although nobody asks for a Report.
func TestFailedEventsAreRequestedAgain(t *testing.T) {
	collect(t, newFakeKernel(), serving(service("web", "10.96.0.10", one)), func(r *rig) {
		r.Want(Wanted{Always: true})
		synctest.Wait()
		r.kernel.broken <- errors.New("out of order")
		time.Sleep(retryFollowing + 2*followCheck)
		r.begins(1)
	})
}

// Readings cost less than a tenth of a processor, however often they are asked for.
func TestReadingsAreSpaced(t *testing.T) {
	k := newFakeKernel()
	k.slow = 2 * time.Second
	collect(t, k, serving(service("web", "10.96.0.10", one)), func(r *rig) {
		for start := time.Now(); time.Since(start) < 100*time.Second; time.Sleep(time.Second) {
			r.report()
		}
		if k.readings < 4 || k.readings > 5 {
			r.Errorf("%d readings of 2 s in 100 s", k.readings)
		}
	})
}

func TestFailingFollowerIsReported(t *testing.T) {
	k := newFakeKernel()
	k.refuses = errors.New("not allowed")
	collect(t, k, serving(service("web", "10.96.0.10", one)), func(r *rig) {
		got := r.report()
		if r.wantFigures(got, 1, 0, 0); strings.Join(got.Problems, "\n") != "new connections are not counted: not allowed" {
			r.Errorf("problems %q", got.Problems)
		}
		k.set(func() { k.refuses = nil })
		time.Sleep(retryFollowing + time.Second)
		if got = r.report(); got.Problems != nil {
			r.Errorf("problems %q", got.Problems)
		}
		k.broken <- errors.New("out of order")
		synctest.Wait()
		time.Sleep(2 * time.Second)
		if got = r.report(); strings.Join(got.Problems, "\n") != "new connections are not counted: out of order" {
			r.Errorf("problems %q", got.Problems)
		}
	})
}

// Whether packets are counted may change: then connections' ends are asked for.
func TestPacketsAreCountedFromNowOn(t *testing.T) {
	collect(t, newFakeKernel(), serving(service("web", "10.96.0.10", one)), func(r *rig) {
		if r.report().Packets {
			r.Error("packets are counted")
		}
		r.begins(6)
		r.kernel.set(func() { r.kernel.packets = true })
		time.Sleep(2 * time.Second)
		got := r.report()
		if r.wantFigures(got, 1, 6, 3); !got.Packets || len(r.kernel.ends) != 2 || !r.kernel.ends[1] {
			r.Errorf("packets %t, followed with ends %t", got.Packets, r.kernel.ends)
		}
	})
}

// A countingBackend counts by itself.
type countingBackend struct{ proxier.Backend }

func (countingBackend) Count(_ context.Context, addrs []proxier.FrontendAddr, each func(proxier.Pair, proxier.Count)) error {
	for _, p := range addrs {
		each(proxier.Pair{FrontendAddr: p, Target: one}, proxier.Count{Active: 1, Connections: 10})
	}
	return nil
}

func TestBackendThatCounts(t *testing.T) {
	families := serving(service("web", "10.96.0.10", one))
	families[0].Backend = countingBackend{}
	collect(t, newFakeKernel(), families, func(r *rig) {
		r.wantFigures(r.report(), 2, 20, 0) // the VIP and the node port
		if r.kernel.follows+r.kernel.readings > 0 {
			r.Error("connection tracking was asked")
		}
	})
}

func TestAskerGivesUp(t *testing.T) {
	k := newFakeKernel()
	k.slow = time.Minute
	collect(t, k, serving(), func(r *rig) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if _, err := r.Report(ctx, Query{}, 0); !errors.Is(err, context.DeadlineExceeded) {
			r.Errorf("error %v", err)
		}
	})
}

// What is counted always is told without counting for it, in the status of services too.
func TestCountedIsPartOfStatus(t *testing.T) {
	web, dns := service("web", "10.96.0.10", one), service("dns", "10.96.0.53", two)
	collect(t, newFakeKernel(), serving(dns, web), func(r *rig) {
		q := Query{Names: []string{"web"}, Endpoints: true}
		if counted, err := r.Counted(r.Context(), q); !counted.Time.IsZero() || err != nil || r.kernel.readings > 0 {
			r.Errorf("without need: %v, error %v, %d readings", counted, err, r.kernel.readings)
		}
		r.Want(Wanted{Always: true, Services: 5})
		synctest.Wait()
		r.begins(6)
		time.Sleep(metricAge + time.Second)
		counted, err := r.Counted(r.Context(), q)
		fatal.If(r, err)
		status := func(name string, endpoint netip.AddrPort) report.ServiceStatus {
			return report.ServiceStatus{Namespace: "default", Name: name, Endpoints: []report.EndpointStatus{{Address: endpoint.Addr().String()}}}
		}
		want := []report.ServiceStatus{status("dns", two), status("web", one)}
		list := []report.ServiceStatus{status("dns", two), status("web", one)}
		counted.AddTo(list)
		active := uint64(1)
		want[1].Traffic = &report.TrafficStatus{ConnectionRate: 1, Active: 1}
		want[1].Endpoints[0].Active = &active
		if diff := cmp.Diff(want, list); diff != "" {
			r.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestMetrics(t *testing.T) {
	web, dns := service("web", "10.96.0.10", one), service("dns", "10.96.0.53", two)
	collect(t, newFakeKernel(), serving(dns, web), func(r *rig) {
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(r.Collector)
		if n, err := testutil.GatherAndCount(reg); n != 0 || err != nil || r.kernel.readings > 0 {
			r.Errorf("%d metrics, error %v, %d readings; want none", n, err, r.kernel.readings)
		}
		r.Want(Wanted{Always: true, Services: 5})
		synctest.Wait()
		r.begins(6)
		time.Sleep(metricAge + time.Second)
		want := `# HELP svcproxy_endpoint_connections_total Connections that have begun, of an endpoint.
# TYPE svcproxy_endpoint_connections_total counter
svcproxy_endpoint_connections_total{endpoint="192.168.10.11:8080",namespace="default",service="web"} 6
svcproxy_endpoint_connections_total{endpoint="192.168.10.12:8080",namespace="default",service="dns"} 0
# HELP svcproxy_service_connections Connections that go on, of a service.
# TYPE svcproxy_service_connections gauge
svcproxy_service_connections{namespace="default",service="dns"} 0
svcproxy_service_connections{namespace="default",service="web"} 1
# HELP svcproxy_service_connections_total Connections that have begun, of a service.
# TYPE svcproxy_service_connections_total counter
svcproxy_service_connections_total{namespace="default",service="dns"} 0
svcproxy_service_connections_total{namespace="default",service="web"} 6
# HELP svcproxy_traffic_services_left_out Services without metrics of their traffic: there are more than max_services.
# TYPE svcproxy_traffic_services_left_out gauge
svcproxy_traffic_services_left_out 0
`
		compared := []string{"svcproxy_endpoint_connections_total", "svcproxy_service_connections", "svcproxy_service_connections_total",
			"svcproxy_service_bytes_total", "svcproxy_traffic_services_left_out"}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), compared...); err != nil {
			r.Error(err)
		}
		r.Want(Wanted{Always: true, Services: 1})
		synctest.Wait()
		if n, err := testutil.GatherAndCount(reg, "svcproxy_service_connections_total"); n != 1 || err != nil {
			r.Errorf("%d services, error %v; want one", n, err)
		}
	})
}
