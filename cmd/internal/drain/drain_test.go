package drain

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A drainStore is a Keeper that keeps nothing.
type drainStore struct {
	drains conditions.Drains
	onNode func(drained bool)
	err    error
}

func (s *drainStore) Drains() *conditions.Drains { return &s.drains }
func (s *drainStore) Undrain(t conditions.DrainTarget) (bool, error) {
	removed := s.drains.Remove(t)
	s.tell(t)
	return removed, s.err
}

func (s *drainStore) Drain(t conditions.DrainTarget, why policy.Drain) error {
	if err := s.drains.Set(t, why); err != nil {
		return err
	}
	s.tell(t)
	return s.err
}

func (s *drainStore) tell(t conditions.DrainTarget) {
	if t.Node {
		s.onNode(s.drains.Node() != nil)
	}
}

// A heldLoop has a service of each family, and takes its time.
type heldLoop struct {
	services []*source.Service
	ready    chan struct{}
	took     time.Duration
	held     []policy.Family // that were waited for
	host     []bool          // whether this host is drained, each time it was told
	slow     time.Duration   // how long routers take to be told
}

// told takes its time, and counts what the loop was told of this host before.
func (l *heldLoop) told(ctx context.Context) (int, error) {
	select {
	case <-time.After(l.slow):
		return len(l.host), nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

func (l *heldLoop) DrainHost(drained bool) { l.host = append(l.host, drained) }

func (l *heldLoop) Ready() <-chan struct{} { return l.ready }

func (l *heldLoop) Syncs() []report.Family { return l.Snapshot().Syncs }

func (l *heldLoop) Snapshot() *report.Snapshot {
	s := new(report.Snapshot)
	for _, svc := range l.services {
		s.Services = append(s.Services, claims.UnitService{Subject: policy.Subject{Service: svc}})
	}
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		f := report.Family{Family: fam}
		for _, svc := range l.services {
			if r := policy.Resolve(svc, nil, &policy.Node{}, fam); r != nil {
				f.Resolved = append(f.Resolved, r)
			}
		}
		s.Syncs = append(s.Syncs, f)
	}
	return s
}

func (l *heldLoop) Held(ctx context.Context, fam policy.Family) error {
	l.held = append(l.held, fam)
	select {
	case <-time.After(l.took):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// newHeldLoop returns a loop with the services web and dns at the endpoints 192.0.2.1 and .2, and fd00::1.
func newHeldLoop() *heldLoop {
	addr := netip.MustParseAddr
	service := func(name string, p source.Protocol, vips ...netip.Addr) *source.Service {
		s := &source.Service{Key: source.Key{Namespace: "default", Name: name}, VIPs: vips, Ports: []source.Port{{Protocol: p, Port: 80, TargetPort: 8080}}}
		for _, a := range []string{"192.0.2.1", "192.0.2.2", "fd00::1"} {
			s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: addr(a), Ready: true, Serving: true, Weight: 1})
		}
		return s
	}
	l := &heldLoop{ready: make(chan struct{}), took: time.Second, services: []*source.Service{
		service("web", source.TCP, addr("10.96.0.1"), addr("fd00:96::1")), service("dns", source.UDP, addr("10.96.0.2")),
	}}
	return l
}

func newTestDraining(l *heldLoop) (*Drainer, *drainStore) {
	s := &drainStore{onNode: l.DrainHost}
	return New(Config{
		Log: slog.New(slog.DiscardHandler), Keeper: s, Loop: l,
		Heard: func() []string { return []string{"127.0.0.1:10349"} }, Told: l.told,
	}), s
}

func drainTarget(t *testing.T, text string) conditions.DrainTarget {
	t.Helper()
	target, err := conditions.ParseDrainTarget(text)
	fatal.If(t, err)
	return target
}

func saysDrain(t *testing.T, what string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func TestDrainTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newHeldLoop()
		d, store := newTestDraining(l)
		drain := func(text, want string) {
			t.Helper()
			_, err := d.drain(t.Context(), control.Peer{}, control.Drain{Target: drainTarget(t, text)})
			saysDrain(t, text, err, want)
		}
		drain("192.0.2.1", "the first sync is not complete")
		drain("node", "")
		close(l.ready)
		drain("192.0.2.1", "")
		drain("fd00::1", "")
		drain("web/192.0.2.2", "")
		drain("192.0.2.9", "no service has an endpoint 192.0.2.9; svcproxy status NAME shows those of a service")
		drain("web/192.0.2.9", "default/web has no endpoint 192.0.2.9; svcproxy status default/web shows those it has")
		drain("prod/web/192.0.2.1", "no service is prod/web")
		if len(l.held) != 3 || l.held[0] != policy.IPv4 || l.held[1] != policy.IPv6 || l.held[2] != policy.IPv4 {
			t.Errorf("it was waited for %v", l.held)
		}
		l.services = nil
		drain("192.0.2.1", "") // it was drained already
		if n := len(store.drains.List()); n != 4 {
			t.Errorf("%d drains", n)
		}
		undrain := func(text, want string) {
			t.Helper()
			_, err := d.undrain(t.Context(), control.Peer{}, control.Drain{Target: drainTarget(t, text)})
			saysDrain(t, "undrain "+text, err, want)
		}
		undrain("192.0.2.2", "192.0.2.2 is not drained; default/web/192.0.2.2 is")
		undrain("prod/db/192.0.2.3", "prod/db/192.0.2.3 is not drained")
		undrain("web/192.0.2.2", "")
		undrain("node", "")
		undrain("node", "this host is not drained")
		if !slices.Equal(l.host, []bool{true, false, false}) {
			t.Errorf("the host was told to be drained %v", l.host)
		}
	})
}

// What is drained already keeps what is not given again.
func TestDrainAgainKeepsWhatIsNotGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newHeldLoop()
		close(l.ready)
		d, _ := newTestDraining(l)
		drain := func(uid uint32, q control.Drain) policy.Drain {
			t.Helper()
			q.Target = drainTarget(t, "192.0.2.1")
			got, err := d.drain(t.Context(), control.Peer{UID: uid}, q)
			fatal.If(t, err)
			time.Sleep(time.Minute)
			return got.Drain
		}
		const someone = 4_000_000_000 // that no host has
		begin := time.Now().Round(0)
		want := policy.Drain{Reason: "disk", By: "root", At: begin}
		for _, step := range []struct {
			uid    uint32
			ask    control.Drain
			change func()
		}{
			{0, control.Drain{Reason: "disk"}, func() {}},
			{someone, control.Drain{}, func() {}},
			{someone, control.Drain{Timeout: time.Hour}, func() {
				want.By, want.Until = "4000000000", begin.Add(2*(time.Minute+time.Second)+time.Hour)
			}},
			{0, control.Drain{Reason: "power"}, func() { want.By, want.Reason = "root", "power" }},
			{someone, control.Drain{NoLimit: true}, func() { want.By, want.Until = "4000000000", time.Time{} }},
		} {
			got := drain(step.uid, step.ask)
			step.change()
			if got.Reason != want.Reason || got.By != want.By || !got.At.Equal(want.At) || !got.Until.Equal(want.Until) {
				t.Errorf("%+v: got %+v, want %+v", step.ask, got, want)
			}
		}
		if _, err := d.drain(t.Context(), control.Peer{}, control.Drain{Reason: strings.Repeat("\n", 101)}); err == nil || err.Error() != "the reason has 202 bytes; want 200 at most" {
			t.Errorf("a long reason: %v", err)
		}
		var text strings.Builder
		d.Log = slog.New(slog.NewTextHandler(&text, nil))
		drain(0, control.Drain{Reason: "\u202ex"})
		if !strings.Contains(text.String(), `reason=\u202ex `) {
			t.Errorf("logged: %s", text.String())
		}
		for _, bad := range []time.Duration{time.Millisecond, -time.Hour, 1000 * time.Hour} {
			if _, err := d.drain(t.Context(), control.Peer{}, control.Drain{Timeout: bad}); err == nil || !strings.HasPrefix(err.Error(), "timeout ") {
				t.Errorf("%v: %v", bad, err)
			}
		}
	})
}

// A drain of this host is over with, for who asks, when routers are told of it.
func TestDrainWaitsForRouters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newHeldLoop()
		l.slow = time.Second
		d, _ := newTestDraining(l)
		began, node := time.Now(), drainTarget(t, "node")
		got, err := d.drain(t.Context(), control.Peer{}, control.Drain{Target: node})
		if took := time.Since(began); err != nil || got.Marked != 1 || took != l.slow {
			t.Errorf("%+v, %v after %v", got, err, took)
		}
		l.slow = time.Hour
		_, err = d.drain(t.Context(), control.Peer{}, control.Drain{Target: node})
		saysDrain(t, "slow routers", err, "this host stays drained, and routers may not know of it yet: not within 5s")
		_, err = d.undrain(t.Context(), control.Peer{}, control.Drain{Target: node})
		saysDrain(t, "slow routers", err, "this host is not drained any more, and routers may not know it yet: not within 5s")
	})
}

// Who drains hears that the disk, or the kernel, does not have it.
func TestDrainReportsDiskAndKernelErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newHeldLoop()
		close(l.ready)
		d, store := newTestDraining(l)
		q, end := control.Drain{Target: drainTarget(t, "192.0.2.1")}, control.Drain{Target: drainTarget(t, "192.0.2.1")}
		l.took = time.Hour
		_, err := d.drain(t.Context(), control.Peer{}, q)
		saysDrain(t, "a slow kernel", err, "192.0.2.1 stays drained, and the kernel may still send new connections there: not within 20s")
		_, err = d.undrain(t.Context(), control.Peer{}, end)
		saysDrain(t, "a slow kernel", err, "192.0.2.1 is not drained any more, and the kernel may not know it yet: not within 20s")
		store.err, l.took = errors.New("the disk is full"), 0
		_, err = d.drain(t.Context(), control.Peer{}, q)
		saysDrain(t, "a full disk", err, "192.0.2.1 is drained, until svcproxy restarts: the disk is full")
		_, err = d.drain(t.Context(), control.Peer{}, q)
		saysDrain(t, "a disk that is still full", err, "192.0.2.1 is drained, until svcproxy restarts: the disk is full")
		_, err = d.undrain(t.Context(), control.Peer{}, end)
		saysDrain(t, "a full disk", err, "192.0.2.1 is not drained any more, until svcproxy restarts: the disk is full")
		store.err = conditions.ErrTooManyDrains
		_, err = d.drain(t.Context(), control.Peer{}, q)
		if !errors.Is(err, conditions.ErrTooManyDrains) || strings.Contains(err.Error(), "is drained") {
			t.Errorf("too many: %v", err)
		}
	})
}

// Who ends a drain hears which others are still there for the same endpoint.
func TestUndrainSaysWhatIsStillDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newHeldLoop()
		close(l.ready)
		d, store := newTestDraining(l)
		for _, text := range []string{"node", "192.0.2.1", "web/192.0.2.1", "dns/192.0.2.1", "a/192.0.2.1", "b/192.0.2.1", "web/192.0.2.2"} {
			_ = store.Drain(drainTarget(t, text), policy.Drain{By: "alice", Reason: text[:1]})
		}
		for _, tt := range []struct{ text, want string }{
			{"web/192.0.2.1", "the drain of default/web/192.0.2.1 is over\nstill drained: 192.0.2.1 by alice: 1"},
			{"192.0.2.1", "the drain of 192.0.2.1 is over\nstill drained: default/a/192.0.2.1 by alice: a\n" +
				"still drained: default/b/192.0.2.1 by alice: b\nstill drained: default/dns/192.0.2.1 by alice: d"},
			{"dns/192.0.2.1", "default/dns/192.0.2.1 is not drained any more"},
			{"node", "this host is not drained any more"},
		} {
			over, err := d.undrain(t.Context(), control.Peer{}, control.Drain{Target: drainTarget(t, tt.text)})
			if err != nil || over.String() != tt.want {
				t.Errorf("%s: %v\n%s\nwant\n%s", tt.text, err, over.String(), tt.want)
			}
		}
	})
}

// The time of a drain passes also while the clock of the host is set: NTP may do that to a host without one of its own.
func TestDrainOutlastsClock(t *testing.T) {
	var d conditions.Drains
	target := drainTarget(t, "192.0.2.1")
	fatal.If(t, d.Set(target, drainOf(nil, control.Peer{}, control.Drain{Timeout: time.Hour}, time.Now())))
	if until := d.Get(target).Until; until == until.Round(0) {
		t.Errorf("it ends when the clock shows %v", until)
	}
}
