package proxier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"svcproxy/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A kernel is a backend that keeps what it is told, by deltas where it gets them.
type kernel struct {
	mu       sync.Mutex
	services map[source.Key]*Resolved
	vips     map[netip.Addr]bool
	hairpins map[Hairpin]bool
	syncs    []string // "full" or what the delta held
	fail     error
	unserved error // is returned where all else is done
	took     time.Duration
	err      string // the first delta that did not fit
}

func (k *kernel) Sync(ctx context.Context, st *State, d *Delta) error {
	k.mu.Lock()
	took := k.took
	k.mu.Unlock()
	time.Sleep(took)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail != nil {
		k.syncs = append(k.syncs, "failed")
		return k.fail
	}
	if d == nil {
		k.syncs = append(k.syncs, "full")
		k.services, k.vips, k.hairpins = maps.Clone(st.Services), members(st.RefusedVIPs), members(st.Hairpins)
		return k.unserved
	}
	k.delta(d)
	k.check(st)
	return k.unserved
}

func (k *kernel) delta(d *Delta) {
	var what []string
	for _, ch := range d.Services {
		what = append(what, ch.key().Name)
		if k.services[ch.key()] != ch.Old {
			k.complain("service %s was not as the delta says", ch.key())
		}
		if delete(k.services, ch.key()); ch.New != nil {
			k.services[ch.key()] = ch.New
		}
	}
	applySet(k, k.vips, d.RefusedVIPs)
	applySet(k, k.hairpins, d.Hairpins)
	k.syncs = append(k.syncs, strings.Join(what, " "))
}

func applySet[T comparable](k *kernel, set map[T]bool, d SetDelta[T]) {
	for _, v := range d.Gained {
		if set[v] {
			k.complain("%v gained twice", v)
		}
		set[v] = true
	}
	for _, v := range d.Lost {
		if !set[v] {
			k.complain("%v lost twice", v)
		}
		delete(set, v)
	}
}

func (k *kernel) check(st *State) {
	if diff := cmp.Diff(slices.SortedFunc(maps.Keys(st.Services), source.Key.Compare), slices.SortedFunc(maps.Keys(k.services), source.Key.Compare)); diff != "" {
		k.complain("services after the delta: %s", diff)
	}
	if !maps.Equal(members(st.RefusedVIPs), k.vips) || !maps.Equal(members(st.Hairpins), k.hairpins) {
		k.complain("counted sets differ: %v, have %v; %v, have %v", st.RefusedVIPs, k.vips, st.Hairpins, k.hairpins)
	}
}

func (k *kernel) complain(format string, args ...any) {
	if k.err == "" {
		k.err = fmt.Sprintf(format, args...)
	}
}

func members[T comparable](counts map[T]int) map[T]bool {
	out := make(map[T]bool)
	for v := range counts {
		out[v] = true
	}
	return out
}

func (k *kernel) Plan(context.Context, *State) ([]Change, error) { return nil, nil }
func (k *kernel) Cleanup(context.Context) error                  { return nil }

// start runs a Loop over k inside a synctest bubble, until the test ends.
func start(t *testing.T, k *kernel, edit ...func(*Config)) *Loop {
	cfg := Config{
		Backends: map[Family]Backend{IPv4: k}, Node: testNode(), Sources: []string{"file"},
		ResyncInterval: 30 * time.Second, SyncTimeout: time.Minute, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range edit {
		f(&cfg)
	}
	l := NewLoop(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
		if k.err != "" {
			t.Error(k.err)
		}
	})
	return l
}

// failWith makes every Sync return err.
func (k *kernel) failWith(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

func (k *kernel) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Equal(k.syncs, want) {
		t.Errorf("syncs\n got: %q\nwant: %q", k.syncs, want)
	}
	k.syncs = nil
}

func TestLoopWaitsForAllSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k, func(c *Config) { c.Sources = []string{"file", "kubernetes"} })
		l.Apply(set(file("a", "x 10.96.0.1:80")))
		l.Synced("file")
		time.Sleep(time.Hour)
		k.expect(t)
		l.Synced("kubernetes")
		k.expect(t, "full")
		select {
		case <-l.Ready():
		default:
			t.Error("not ready after the first sync")
		}
	})
}

func TestLoopSendsDeltas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k)
		l.Apply(set(file("a", "x 10.96.0.1:80"), file("b", "y 10.96.0.2:80")))
		l.Synced("file")
		k.expect(t, "full")
		l.Apply(set(file("a", "x 10.96.0.3:80")))
		k.expect(t, "x")
		l.Apply(set(file("a", "x 10.96.0.3:80"))) // says the same
		k.expect(t)
		l.Apply(gone("b"))
		k.expect(t, "y")
		l.Resync()
		k.expect(t, "full")
		l.SetNode(testNode()) // is the same
		k.expect(t)
		l.SetNode(testNode(func(n *Node) { n.Zone = "b" }))
		k.expect(t, "full")
		time.Sleep(31 * time.Second)
		k.expect(t, "full")
	})
}

func TestLoopMergesWhatComesDuringASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k)
		l.Synced("file")
		k.expect(t, "full")
		k.mu.Lock()
		k.took = time.Second
		k.mu.Unlock()
		l.Apply(set(file("a", "x 10.96.0.1:80")))
		synctest.Wait()
		for port := range 5 {
			l.Apply(set(file("b", fmt.Sprintf("y 10.96.0.2:%d", port+1))))
		}
		l.Apply(set(file("c", "z 10.96.0.3:80")))
		time.Sleep(3 * time.Second)
		k.expect(t, "x", "y z")
	})
}

func TestLoopMinInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k, func(c *Config) { c.MinInterval = 10 * time.Second })
		l.Synced("file")
		k.expect(t, "full")
		time.Sleep(time.Second)
		l.Apply(set(file("a", "x 10.96.0.1:80")))
		time.Sleep(8 * time.Second)
		k.expect(t)
		time.Sleep(2 * time.Second)
		k.expect(t, "x")
	})
}

func TestLoopRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		var results []SyncResult
		l := start(t, k, func(c *Config) { c.OnSync = func(r SyncResult) { results = append(results, r) } })
		l.Synced("file")
		k.expect(t, "full")
		k.failWith(errors.New("no"))
		l.Apply(set(file("a", "x 10.96.0.1:80")))
		k.expect(t, "failed")
		if st := l.Status().Families[0]; st.Error == "" || st.FailingSince.IsZero() {
			t.Errorf("status %+v, want an error", st)
		}
		time.Sleep(4 * time.Second) // tries after 0.5 s, 1 s more, 2 s more
		k.expect(t, "failed", "failed", "failed")
		k.failWith(nil)
		time.Sleep(5 * time.Second)
		k.expect(t, "full")
		last := results[len(results)-1]
		if last.Queued.IsZero() || last.Start.Sub(last.Queued) < 4*time.Second || l.Status().Families[0].Error != "" {
			t.Errorf("last result %+v, want it to tell how long the change waited", last)
		}
		k.failWith(errors.New("no"))
		l.Apply(gone("a"))
		k.expect(t, "failed")
		k.failWith(nil)
		l.Apply(set(file("b", "y 10.96.0.1:80"))) // a change is a reason to try at once
		k.expect(t, "full")
	})
}

// What one service cannot have delays no other.
func TestLoopGoesOnPastUnserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{unserved: fmt.Errorf("in a test: %w", &Unserved{N: 2, Err: errors.New("no such scheduler")})}
		var last atomic.Pointer[SyncResult]
		var log strings.Builder
		l := start(t, k, func(c *Config) {
			c.OnSync = func(r SyncResult) { last.Store(&r) }
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
		})
		l.Apply(set(file("a", "x 10.96.0.1:80")))
		l.Synced("file")
		k.expect(t, "full")
		select {
		case <-l.Ready():
		default:
			t.Fatal("not ready after a sync that did all it could")
		}
		l.Apply(set(file("b", "y 10.96.0.2:80")))
		k.expect(t, "y")
		st, r := l.Status().Families[0], last.Load()
		if st.Unserved != "no such scheduler" || st.Error != "" || r.Err != nil || r.Unserved.N != 2 {
			t.Errorf("status %+v, last result %+v", st, r)
		}
		time.Sleep(31 * time.Second)
		k.expect(t, "full")
		k.mu.Lock()
		k.unserved = nil
		k.mu.Unlock()
		time.Sleep(31 * time.Second)
		k.expect(t, "full")
		if st := l.Status().Families[0]; st.Unserved != "" {
			t.Errorf("status %+v", st)
		}
		if text := log.String(); strings.Count(text, "not served") != 1 || strings.Count(text, "all is served again") != 1 {
			t.Errorf("log:\n%s", text)
		}
	})
}

func TestLoopAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: 5 * time.Minute}
		l := start(t, k)
		time.Sleep(time.Hour)
		if !l.Alive().Equal(time.Now()) {
			t.Error("not alive while it waits")
		}
		l.Synced("file")
		time.Sleep(2 * time.Minute) // a sync may take one
		if stuck := time.Since(l.Alive()); stuck != time.Minute {
			t.Errorf("stuck for %v, want 1m", stuck)
		}
		time.Sleep(4 * time.Minute)
	})
}

// A refusal is logged once, however often it is looked at again.
func TestLoopLogsRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := start(t, &kernel{}, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		l.Apply(set(file("a", "x 10.96.0.1:80"), file("b", "y 10.96.0.1:80")))
		l.Synced("file")
		synctest.Wait()
		l.Apply(set(file("c", "z 10.96.0.3:80")))
		synctest.Wait()
		if n := strings.Count(log.String(), "unit=b"); n != 1 || strings.Contains(log.String(), "unit=a") {
			t.Errorf("the log names b %d times, want once, and no other:\n%s", n, &log)
		}
	})
}

func TestLoopReplacesBackends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, other, v6 := &kernel{}, &kernel{}, &kernel{}
		l := start(t, old)
		l.Apply(set(file("a", "x 10.96.0.1:80")))
		l.Synced("file")
		old.expect(t, "full")
		done := false
		other.failWith(errors.New("no"))
		l.SetBackends(map[Family]Backend{IPv4: other, IPv6: v6}, func() { done = true })
		other.expect(t, "failed")
		if done {
			t.Error("done before the new backend holds everything")
		}
		other.failWith(nil)
		time.Sleep(time.Second)
		other.expect(t, "full")
		v6.expect(t, "full")
		old.expect(t)
		if !done || len(other.services) != 1 {
			t.Errorf("done %v, %d services in the new backend, want 1", done, len(other.services))
		}
	})
}

func TestLoopHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told [][]HealthCheck
		l := start(t, &kernel{}, func(c *Config) { c.OnHealth = func(h []HealthCheck) { told = append(told, h) } })
		u := file("a", "x 10.96.0.1:80")
		u.Services[0] = testService(externalLocal, testEndpoints("192.0.2.1", "10.0.0.2 @here", "10.0.0.3", "10.0.0.4 @here weight=0", "10.0.0.5 @here notready"))
		u.Services[0].HealthCheckNodePort = 32000
		l.Apply(set(u))
		l.Synced("file")
		synctest.Wait()
		l.Resync() // tells nothing new
		synctest.Wait()
		l.Apply(gone("a"))
		synctest.Wait()
		want := [][]HealthCheck{{{Key: source.Key{Namespace: "default", Name: "web"}, Port: 32000, LocalEndpoints: 2}}, nil}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("health checks told (-want +got):\n%s", diff)
		}
	})
}

// Random changes, applied as deltas, leave what a resolution of the end state gives.
func TestLoopDeltasAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tr, k := NewTracker(nil), &kernel{}
		f := newFamily(IPv4, k, testNode())
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			for _, x := range tr.Apply(randomStep(rt)) {
				f.set(x.key(), x.New, testNode(), time.Now())
			}
			k.fail = nil
			if rapid.IntRange(0, 5).Draw(rt, "fail") == 0 {
				k.fail = errors.New("no")
			}
			f.done(f.sync(t.Context(), time.Hour))
			if k.err != "" {
				rt.Fatal(k.err)
			}
		}
		want := newFamily(IPv4, k, testNode())
		tr.services(func(s *source.Service, _ source.UnitID) { want.set(s.Key, s, testNode(), time.Now()) })
		if diff := cmp.Diff(want.state, f.state, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			rt.Fatalf("state after deltas (-want +got):\n%s", diff)
		}
	})
}
