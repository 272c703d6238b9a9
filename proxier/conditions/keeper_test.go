package conditions

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/logtest"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A checker answers as a test says.
type checker struct {
	mu      sync.Mutex
	results map[healthcheck.Question]healthcheck.Result
	users   map[healthcheck.Question]int
	report  func(healthcheck.Question, healthcheck.Result)
}

func (c *checker) Watch(q healthcheck.Question, _ *source.HealthCheck, from healthcheck.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[q]++; c.users[q] == 1 {
		c.results[q] = from
	}
}

func (c *checker) Forget(q healthcheck.Question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[q]--; c.users[q] == 0 {
		delete(c.users, q)
		delete(c.results, q)
	}
}

func (c *checker) Result(q healthcheck.Question) healthcheck.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.results[q]
}

// A host is a Keeper that runs, and the Loop that it tells.
type host struct {
	*Keeper
	t    *testing.T
	dir  string
	log  *logtest.Text
	stop func()

	checker *checker
	mu      sync.Mutex
	calls   [][]source.Key // of Reconsider
	node    chan bool      // what OnNode was told
	loop    *loop.Loop     // that is told as well; nil: none
}

// inBubble runs a test with a new host in a synctest bubble.
func inBubble(t *testing.T, test func(t *testing.T, h *host)) {
	synctest.Test(t, func(t *testing.T) { test(t, run(t, t.TempDir())) })
}

// run starts a Keeper in a state directory, in a bubble.
func run(t *testing.T, dir string) *host {
	t.Helper()
	h := &host{t: t, dir: dir, log: new(logtest.Text), node: make(chan bool, 10)}
	h.checker = &checker{results: map[healthcheck.Question]healthcheck.Result{}, users: map[healthcheck.Question]int{}}
	h.Keeper = New(Config{
		StateDir: dir, Log: slog.New(slog.NewTextHandler(h.log, nil)), Checker: h.checker,
		Reconsider: func(keys ...source.Key) {
			h.mu.Lock()
			defer h.mu.Unlock()
			slices.SortFunc(keys, source.Key.Compare)
			if h.calls = append(h.calls, keys); h.loop != nil {
				h.loop.Reconsider(keys...)
			}
		},
		OnNode: func(drained bool) { h.node <- drained },
	})
	h.checker.report = h.Report
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = h.Run(ctx) })
	running.Go(func() { _ = h.Keep(ctx) })
	h.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(h.stop)
	return h
}

// set has checks of services find endpoints in a state: "10.0.0.1".
func (h *host) set(svc *source.Service, state source.CheckResult, addrs ...string) {
	h.t.Helper()
	for _, a := range addrs {
		i := slices.IndexFunc(svc.Endpoints, func(e source.Endpoint) bool { return e.Addr.String() == a })
		q := healthcheck.Ask(svc, &svc.Endpoints[i])
		h.checker.mu.Lock()
		if h.checker.users[q] == 0 {
			h.t.Errorf("%v is not asked", q.At)
		}
		r := healthcheck.Result{State: state, Since: time.Now(), Passed: state == source.CheckPassed || h.checker.results[q].Passed}
		if state == source.CheckFailed {
			r.Error = "refused"
		}
		h.checker.results[q] = r
		h.checker.mu.Unlock()
		h.checker.report(q, r)
	}
}

// told returns the calls of Reconsider since told was last called, once all is done.
func (h *host) told() [][]source.Key {
	time.Sleep(2 * batchTime)
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.calls
	h.calls = nil
	return calls
}

// known returns the conditions of a service: "1 up, 2 down drained, 3 40%, 4 down returning".
func (h *host) known(svc *source.Service) string {
	known := h.Conditions(svc.Key)
	var list []string
	for i := range svc.Endpoints {
		e := &svc.Endpoints[i]
		c := known[svc.EndpointAt(e)]
		words := []string{strings.TrimPrefix(e.Addr.String(), "10.0.0.")}
		words = append(words, [...]string{"", "up", "down"}[c.Check])
		if c.Drained {
			words = append(words, "drained")
		}
		if c.Returning {
			words = append(words, "returning")
		}
		if c.Overdue {
			words = append(words, "overdue")
		}
		if c.Share > 0 {
			words = append(words, fmt.Sprintf("%d0%%", c.Share))
		}
		list = append(list, strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "))
	}
	return strings.Join(list, ", ")
}

func (h *host) want(svc *source.Service, want string) {
	h.t.Helper()
	if got := h.known(svc); got != want {
		h.t.Errorf("%s: %s, want %s", svc.Name, got, want)
	}
}

func probed(s *source.Service) {
	s.HealthCheck = &source.HealthCheck{Type: source.CheckTCP, Interval: time.Second, Rise: 2, Fall: 3}
}
func slowly(s *source.Service) { s.SlowStart = 100 * time.Second }

// build makes a service with endpoints: "10.0.0.1", also "10.0.0.1 disabled", "notready", "weight=0".
func build(name string, endpoints []string, edits ...func(*source.Service)) *source.Service {
	s := &source.Service{Key: source.Key{Namespace: "default", Name: name}, VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 8080}}}
	for _, text := range endpoints {
		words := strings.Fields(text)
		e := source.Endpoint{Addr: netip.MustParseAddr(words[0]), Weight: 1, Ready: true, Serving: true}
		for _, w := range words[1:] {
			switch w {
			case "disabled":
				e.Disabled = true
			case "notready":
				e.Ready = false
			case "weight=0":
				e.Weight = 0
			}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

const one, two, three = "10.0.0.1", "10.0.0.2", "10.0.0.3"

// Endpoints that fail together are one change, and what changes nothing is none.
func TestFailuresTogetherAreOneChange(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		var addrs []string
		for i := range 1000 {
			addrs = append(addrs, fmt.Sprintf("10.1.%d.%d", i/250, i%250))
		}
		a, b, c := build("a", addrs[:500], probed), build("b", addrs[500:], probed), build("c", addrs[:1])
		for _, s := range []*source.Service{a, b, c} {
			h.Use(s.Key, s)
		}
		h.set(a, source.CheckFailed, addrs[:500]...)
		h.set(b, source.CheckFailed, addrs[500:]...)
		if got := fmt.Sprint(h.told()); got != "[[default/a default/b]]" {
			t.Errorf("reconsidered %s", got)
		}
		h.set(a, source.CheckFailed, addrs[:500]...)
		if got := h.told(); len(got) != 0 {
			t.Errorf("reconsidered %v for what was known", got)
		}
		if n := strings.Count(h.log.String(), "endpoint down"); n != maxTold {
			t.Errorf("%d lines for endpoints, want %d", n, maxTold)
		}
		time.Sleep(tellTime)
		synctest.Wait()
		h.stop()
		if !strings.Contains(h.log.String(), "down=990 up=0") {
			t.Errorf("the others are not counted:\n%s", h.log)
		}
	})
}

func TestDetailsOfEndpoints(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		svc := build("a", []string{one, two, three}, probed, slowly)
		h.Use(svc.Key, svc)
		h.set(svc, source.CheckFailed, one)
		h.set(svc, source.CheckPassed, two)
		failed := time.Now()
		h.told()
		fatal.If(t, h.Drain(DrainTarget{Addr: netip.MustParseAddr(three)}, policy.Drain{By: "root"}))
		d := h.Details(svc.Key)
		at := func(i int) policy.Detail { return d[svc.EndpointAt(&svc.Endpoints[i])] }
		if at(0).Error != "refused" || !at(0).Since.Equal(failed) {
			t.Errorf("of the one that is down: %+v", at(0))
		}
		if at(1).Error != "" || at(1).Drain != nil {
			t.Errorf("of the one that is up: %+v", at(1))
		}
		if at(2).Drain == nil || at(2).Drain.By != "root" {
			t.Errorf("of the one that is drained: %+v", at(2))
		}
		time.Sleep(time.Minute)
		h.set(svc, source.CheckPassed, one)
		h.told()
		if d = h.Details(svc.Key); at(0).Since.Sub(failed) < time.Minute || at(0).Error != "" {
			t.Errorf("of the one that is back: %+v", at(0))
		}
		time.Sleep(time.Second)
		undrained := time.Now()
		h.set(svc, source.CheckPassed, three)
		h.told()
		if _, err := h.Undrain(DrainTarget{Addr: netip.MustParseAddr(three)}); err != nil {
			t.Fatal(err)
		}
		if d = h.Details(svc.Key); !at(2).Since.After(undrained) {
			t.Errorf("of the one that is in a slow start: %+v", at(2))
		}
	})
}

// One line for each change, and one for the service.
func TestChangesAreLoggedOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		svc := build("a", []string{one, two}, probed)
		h.Use(svc.Key, svc)
		h.set(svc, source.CheckPassed, one, two)
		h.told()
		h.set(svc, source.CheckFailed, one)
		h.told()
		h.set(svc, source.CheckFailed, two)
		h.told()
		time.Sleep(time.Minute)
		h.set(svc, source.CheckPassed, one)
		h.told()
		h.stop()
		var got []string
		for l := range strings.Lines(h.log.String()) {
			_, l, _ = strings.Cut(l, " level=")
			got = append(got, strings.TrimSpace(l))
		}
		want := []string{
			`INFO msg="endpoint up" service=default/a endpoint=10.0.0.1:8080`,
			`INFO msg="endpoint up" service=default/a endpoint=10.0.0.2:8080`,
			`WARN msg="endpoint down" service=default/a endpoint=10.0.0.1:8080 err=refused`,
			`WARN msg="endpoint down" service=default/a endpoint=10.0.0.2:8080 err=refused`,
			`ERROR msg="no endpoint of the service, or of a family of it, passes its check: all are used" service=default/a`,
			`INFO msg="endpoint up" service=default/a endpoint=10.0.0.1:8080 after=1m0.2s`,
			`INFO msg="endpoints of the service pass their check again" service=default/a`,
		}
		if len(got) > 1 {
			slices.Sort(got[:2]) // they are of one batch
		}
		if !slices.Equal(got, want) {
			t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// Two that tell the Loop of changes do so one after the other: when Drain returns, a change
// that Run has composed is no longer on its way.
func TestReportsAreSerial(t *testing.T) {
	var k *Keeper
	calls := 0
	k = New(Config{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Reconsider: func(...source.Key) {
		if calls++; k.flushing.TryLock() {
			k.flushing.Unlock()
			t.Error("another could compose before the Loop is told")
		}
	}})
	svc := build("a", []string{one})
	k.Use(svc.Key, svc)
	if err := k.Drain(DrainTarget{Addr: netip.MustParseAddr(one)}, policy.Drain{}); err != nil || calls != 1 {
		t.Errorf("Drain: %v, and the Loop was told %d times", err, calls)
	}
}
