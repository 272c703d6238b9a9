package loop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A kernel is a backend that keeps what it is told, by deltas where it gets them.
type kernel struct {
	mu       sync.Mutex
	services map[source.Key]*policy.Resolved
	vips     map[netip.Addr]bool
	hairpins map[policy.Hairpin]bool
	bound    map[netip.Addr]bool
	shared   map[string]*policy.Pool // see sharedOf
	apart    bool                    // frontends of a pool have something in common only where they are split
	syncs    []string                // "full" or what the delta held
	fail     error
	unserved error // is returned where all else is done
	took     time.Duration
	err      string // the first delta that did not fit
	damaged  bool   // others changed what is ours
	looks    int
	doubts   int
}

func (k *kernel) Recheck() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.doubts++
}

// Look takes no time, and finds what the test broke.
func (k *kernel) Look(context.Context) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looks++
	return k.damaged, nil
}

func (k *kernel) Sync(ctx context.Context, st *policy.State, d *policy.Delta) error {
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
		k.services, k.vips, k.hairpins, k.bound = maps.Clone(st.Services), members(st.RefusedAddrs), members(st.Hairpins), members(st.BoundAddrs)
		k.shared = make(map[string]*policy.Pool)
		for _, r := range st.Services {
			maps.Copy(k.shared, k.sharedOf(r))
		}
		k.check(st)
		return k.unserved
	}
	k.delta(d)
	k.check(st)
	k.damaged = false
	return k.unserved
}

func (k *kernel) delta(d *policy.Delta) {
	var what []string
	for _, ch := range d.Services {
		what = append(what, k.service(&ch))
	}
	for _, ch := range d.Services {
		for name := range k.sharedOf(ch.Old) {
			delete(k.shared, name)
		}
	}
	for _, ch := range d.Services {
		maps.Copy(k.shared, k.sharedOf(ch.New))
	}
	applySet(k, k.vips, d.RefusedAddrs)
	applySet(k, k.hairpins, d.Hairpins)
	applySet(k, k.bound, d.BoundAddrs)
	k.syncs = append(k.syncs, strings.Join(what, " "))
}

// service changes a service, and returns its name; of a part also how many frontends it removes and adds.
func (k *kernel) service(ch *policy.ServiceChange) string {
	key, name := ch.Key(), ch.Key().Name
	if !ch.Part {
		if have, old := k.services[key].AllFrontends(), ch.Old.AllFrontends(); !reflect.DeepEqual(have, old) && len(have)+len(old) > 0 {
			k.complain("service %s was not as the delta says", key)
		}
		if delete(k.services, key); ch.New != nil {
			k.services[key] = ch.New
		}
		return name
	}
	all, same := policy.FrontendIndex{}, 0
	all.Add(k.services[key].AllFrontends())
	for _, f := range ch.Old.Frontends {
		if !reflect.DeepEqual(all.Find(f), f) {
			k.complain("service %s: %v was not as the delta says", key, f.Key)
		}
		if delete(all, f.Key.WithoutKind()); hasFrontend(ch.New, f) {
			same++
		}
	}
	for _, f := range ch.New.Frontends {
		if all.Find(f) != nil {
			k.complain("service %s: %v gained twice", key, f.Key)
		}
	}
	all.Add(ch.New.Frontends)
	list := slices.SortedFunc(maps.Values(all), func(a, b *policy.Frontend) int { return a.Key.Compare(b.Key) })
	if k.services[key] = (&policy.Resolved{Key: key, Frontends: list}); len(all) == 0 {
		delete(k.services, key)
	}
	return fmt.Sprintf("%s-%d+%d", name, len(ch.Old.Frontends)-same, len(ch.New.Frontends)-same)
}

// sharedOf returns what a kernel has of a service beside its frontends, as chains of pools and of split frontends.
func (k *kernel) sharedOf(r *policy.Resolved) map[string]*policy.Pool {
	shared := make(map[string]*policy.Pool)
	for _, f := range r.AllFrontends() {
		if f.Split() {
			o, l := f.Outside, f.FromLocal
			shared[fmt.Sprint("split ", f.ServicePort, f.Key.Protocol, o.Action, o.Masquerade, o.Pool.Scope, l.Action, l.Masquerade, l.Pool.Scope)] = nil
		}
		for _, p := range []*policy.Pool{f.Outside.Pool, f.FromLocal.Pool} {
			if !k.apart || f.Split() {
				shared[fmt.Sprint("pool ", p.ServicePort, p.Protocol, p.Scope)] = p
			}
		}
	}
	return shared
}

func applySet[T comparable](k *kernel, set map[T]bool, d policy.SetDelta[T]) {
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

func (k *kernel) check(st *policy.State) {
	want := make(map[string]*policy.Pool)
	places := make(map[policy.FrontendKey]source.Key)
	fresh := policy.EmptyState(st.Family, policytest.Node())
	for key, r := range st.Services {
		policy.NewChanges().Put(fresh, key, r)
		if have := k.services[key]; !reflect.DeepEqual(have.AllFrontends(), r.Frontends) && len(r.Frontends) > 0 {
			k.complain("service %s: %d frontends after the delta, %d in the State, or others", key, len(have.AllFrontends()), len(r.Frontends))
		}
		for _, f := range r.Frontends {
			if o, taken := places[f.Key.WithoutKind()]; taken {
				k.complain("%v is of %s and of %s", f.Key, o, key)
			}
			places[f.Key.WithoutKind()] = key
			if !k.apart && (!slices.Contains(r.Pools, f.Outside.Pool) || !slices.Contains(r.Pools, f.FromLocal.Pool)) {
				k.complain("%v: Pools lack one of its pools", f.Key)
			}
		}
		for _, f := range r.Frontends {
			for name, p := range k.sharedOf(&policy.Resolved{Frontends: []*policy.Frontend{f}}) {
				if q, more := want[name]; more && q != p {
					k.complain("two pools have one name: %s", name)
				}
				want[name] = p
			}
		}
	}
	for key := range k.services {
		if st.Services[key] == nil {
			k.complain("service %s after the delta", key)
		}
	}
	if !reflect.DeepEqual(want, k.shared) {
		k.complain("shared objects differ: %v, have %v", slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(k.shared)))
	}
	if !maps.Equal(members(st.RefusedAddrs), k.vips) || !maps.Equal(members(st.Hairpins), k.hairpins) || !maps.Equal(members(st.BoundAddrs), k.bound) {
		k.complain("counted sets differ: %v, have %v; %v, have %v", st.RefusedAddrs, k.vips, st.Hairpins, k.hairpins)
	}
	if !maps.Equal(st.RefusedAddrs, fresh.RefusedAddrs) || !maps.Equal(st.Hairpins, fresh.Hairpins) || !maps.Equal(st.BoundAddrs, fresh.BoundAddrs) {
		k.complain("counts differ: %v, of services %v; %v, %v; %v, %v", st.RefusedAddrs, fresh.RefusedAddrs, st.Hairpins, fresh.Hairpins, st.BoundAddrs, fresh.BoundAddrs)
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

func (k *kernel) Plan(context.Context, *policy.State) ([]proxier.Change, error) { return nil, nil }
func (k *kernel) Cleanup(context.Context) error                                 { return nil }

// An observer calls what is not nil.
type observer struct {
	Unobserved
	queued         func(policy.Family, time.Time)
	synced         func(SyncResult)
	holds, dropped func(policy.Family)
	nodeHealth     func([]NodeHealth)
}

// observe returns that of a Config.
func observe(c *Config) *observer {
	if c.Observer == nil {
		c.Observer = new(observer)
	}
	return c.Observer.(*observer)
}

func (o *observer) Queued(fam policy.Family, at time.Time) {
	if o.queued != nil {
		o.queued(fam, at)
	}
}

func (o *observer) Synced(r SyncResult) {
	if o.synced != nil {
		o.synced(r)
	}
}

func (o *observer) Holds(fam policy.Family) {
	if o.holds != nil {
		o.holds(fam)
	}
}

func (o *observer) Dropped(fam policy.Family) {
	if o.dropped != nil {
		o.dropped(fam)
	}
}

func (o *observer) NodeHealth(list []NodeHealth) {
	if o.nodeHealth != nil {
		o.nodeHealth(list)
	}
}

// start runs a Loop over k inside a synctest bubble, until the test ends.
func start(t *testing.T, k *kernel, edit ...func(*Config)) *Loop {
	cfg := Config{
		Backends: map[policy.Family]proxier.Backend{policy.IPv4: k}, Node: policytest.Node(), Sources: []string{"file"},
		LookInterval: 30 * time.Second, SyncTimeout: time.Minute, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range edit {
		f(&cfg)
	}
	l := New(cfg)
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

// testFamily returns a family that does not run.
func testFamily(b proxier.Backend) *family {
	return newFamily(policy.IPv4, b, policytest.Node(), &Config{SyncTimeout: time.Minute, Log: slog.New(slog.DiscardHandler), Observer: Unobserved{}}, new(inbox), new(atomic.Uint64))
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
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
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
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80"), policytest.File("b", "y 10.96.0.2:80")))
		l.Synced("file")
		k.expect(t, "full")
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.3:80")))
		k.expect(t, "x")
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.3:80"))) // says the same
		k.expect(t)
		l.Apply(policytest.Gone("b"))
		k.expect(t, "y")
		l.FullSync()
		k.expect(t, "full")
		l.SetNode(policytest.Node()) // is the same
		k.expect(t)
		l.SetNode(policytest.Node(func(n *policy.Node) { n.Zone = "b" })) // no service cares
		k.expect(t)
		l.SetNode(policytest.Node(func(n *policy.Node) { n.MarkBit = 3 }))
		k.expect(t, "full")
		if k.doubts != 1 {
			t.Errorf("what was heard of the kernel was doubted %d times, want once, as one comparison was asked for", k.doubts)
		}
	})
}

// The kernel is looked at beside the syncs, and what differs is repaired.
func TestLoopRepairsWhatDiffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k)
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		l.Synced("file")
		k.expect(t, "full")
		time.Sleep(95 * time.Second)
		k.expect(t) // as it should be: nothing is sent
		k.mu.Lock()
		looks := k.looks
		k.damaged = true
		k.mu.Unlock()
		if looks != 3 {
			t.Errorf("%d looks in 95 s, want one in 30 s", looks)
		}
		time.Sleep(30 * time.Second)
		k.expect(t, "")
		l.Repair(policy.IPv4)
		k.expect(t, "")
		l.Repair(policy.IPv6) // there is none
		k.expect(t)
		k.mu.Lock()
		k.damaged = true
		k.mu.Unlock()
		l.Look(policy.IPv4)
		k.expect(t, "")
	})
}

// A slow look holds up no change, and ends with the loop.
type slowLook struct{ *kernel }

func (s slowLook) Look(ctx context.Context) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

func TestLoopSlowLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, other := &kernel{}, &kernel{}
		l := start(t, k, func(c *Config) { c.Backends[policy.IPv4] = slowLook{k} })
		l.Synced("file")
		k.expect(t, "full")
		time.Sleep(31 * time.Second)
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		k.expect(t, "x")
		time.Sleep(time.Minute) // the look is given up: nobody knows what the kernel holds
		k.expect(t, "full")
		time.Sleep(31 * time.Second)
		l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: other}) // during the next look
		other.expect(t, "full")
		k.expect(t)
	})
}

// One family that is slow or fails holds up nothing of the other.
func TestLoopFamiliesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v4, v6 := &kernel{}, &kernel{fail: errors.New("no")}
		var log strings.Builder
		var told atomic.Int32
		l := start(t, v4, func(c *Config) {
			c.Backends[policy.IPv6] = v6
			observe(c).nodeHealth = func([]NodeHealth) { told.Add(1) }
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
		})
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		l.Synced("file")
		v4.expect(t, "full")
		select {
		case <-l.Ready():
			t.Error("ready although the other family was tried only once")
		default:
		}
		time.Sleep(2 * time.Second)
		v6.expect(t, "failed", "failed", "failed")
		select {
		case <-l.Ready():
		default:
			t.Error("not ready, although one family holds everything and the other fails")
		}
		if told.Load() != 1 {
			t.Errorf("health checks told %d times, want once", told.Load())
		}
		l.Apply(policytest.Set(policytest.File("b", "y 10.96.0.2:80")))
		v4.expect(t, "y")
		v6.failWith(nil)
		time.Sleep(30 * time.Second)
		v6.expect(t, "full")
		if text := log.String(); strings.Count(text, "continuing without it") != 1 || strings.Count(text, "services=1") < 1 {
			t.Errorf("log:\n%s", text)
		}
	})
}

// A batch of many services is a bounded number of log lines.
func TestLoopLogsBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		l := start(t, &kernel{}, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		l.Synced("file")
		synctest.Wait()
		u := policytest.File("a", "x0 10.96.0.1:80")
		for i := range 999 {
			u.Services = append(u.Services, policytest.File("a", fmt.Sprintf("x%d 10.96.%d.%d:80", i+1, 1+i/250, i%250)).Services...)
		}
		l.Apply(policytest.Set(u))
		synctest.Wait()
		text := log.String()
		if n := strings.Count(text, "\n"); n > maxEdits+2 || !strings.Contains(text, "services=990") {
			t.Errorf("%d lines for 1,000 services:\n%s", n, text)
		}
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
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		synctest.Wait()
		for port := range 5 {
			l.Apply(policytest.Set(policytest.File("b", fmt.Sprintf("y 10.96.0.2:%d", port+1))))
		}
		l.Apply(policytest.Set(policytest.File("c", "z 10.96.0.3:80")))
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
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		time.Sleep(8 * time.Second)
		k.expect(t)
		time.Sleep(2 * time.Second)
		k.expect(t, "x")
		l.Apply(policytest.Set(policytest.File("b", "y 10.96.0.2:80")))
		synctest.Wait()
		l.Apply(policytest.Gone("b")) // before any sync
		time.Sleep(time.Minute)
		k.expect(t, "")
	})
}

func TestLoopRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		var results []SyncResult
		l := start(t, k, func(c *Config) { observe(c).synced = func(r SyncResult) { results = append(results, r) } })
		l.Synced("file")
		k.expect(t, "full")
		k.failWith(errors.New("no"))
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
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
		l.Apply(policytest.Gone("a"))
		k.expect(t, "failed")
		time.Sleep(4 * time.Second)
		k.expect(t, "failed", "failed", "failed")
		k.failWith(nil)
		l.Apply(policytest.Set(policytest.File("b", "y 10.96.0.1:80"))) // a change is a reason to try sooner
		time.Sleep(retryMin)
		k.expect(t, "full")
	})
}

// While syncs fail, a constant stream of changes does not make a stream of full comparisons.
// What only a new process can put right ends Run.
func TestLoopEndsForARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := fmt.Errorf("the module: %w", proxier.ErrRestart)
		k := &kernel{fail: want}
		l := New(Config{
			Backends: map[policy.Family]proxier.Backend{policy.IPv4: k, policy.IPv6: k}, Node: policytest.Node(), Sources: []string{"file"},
			LookInterval: 30 * time.Second, SyncTimeout: time.Minute, Log: slog.New(slog.DiscardHandler),
		})
		l.Synced("file")
		if err := l.Run(t.Context()); !errors.Is(err, want) {
			t.Errorf("Run ended with %v, want %v", err, want)
		}
	})
}

func TestLoopBacksOffUnderChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: time.Second, fail: errors.New("no")}
		l := start(t, k)
		l.Synced("file")
		for i := range 100 {
			l.Apply(policytest.Set(policytest.File("a", fmt.Sprintf("x 10.96.0.1:%d", i+1))))
			time.Sleep(time.Second)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if n := len(k.syncs); n > 20 {
			t.Errorf("%d full comparisons of 1 s in 100 s, want about ten", n)
		}
	})
}

// progressing takes long, but shows that it goes on.
type progressing struct{ *kernel }

func (p progressing) Sync(ctx context.Context, st *policy.State, d *policy.Delta) error {
	for range 10 {
		time.Sleep(30 * time.Second)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		proxier.Progressed(ctx)
	}
	return p.kernel.Sync(ctx, st, d)
}

func TestLoopLimitsPartsOfASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k, func(c *Config) { c.Backends[policy.IPv4] = progressing{k} })
		l.Synced("file")
		for range 29 {
			time.Sleep(10 * time.Second)
			if !l.Alive().Equal(time.Now()) {
				t.Fatal("not alive while a sync makes progress")
			}
		}
		time.Sleep(time.Minute)
		k.expect(t, "full")
	})
}

// What hangs in the Loop itself shows too.
func TestLoopItselfStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, &kernel{}, func(c *Config) { observe(c).nodeHealth = func([]NodeHealth) { time.Sleep(time.Hour) } })
		l.Synced("file")
		time.Sleep(2 * time.Minute)
		if stuck := time.Since(l.Alive()); stuck != time.Minute || !l.RunAlive().Equal(l.Alive()) {
			t.Errorf("stuck for %v, want 1m", stuck)
		}
		time.Sleep(time.Hour)
		if !l.Alive().Equal(time.Now()) {
			t.Error("not alive after it went on")
		}
	})
}

// While nothing can be synced, what waits to be told of is bounded.
func TestLoopKeepsFewBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{fail: errors.New("no")}
		var log strings.Builder
		l := start(t, k, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		l.Synced("file")
		synctest.Wait()
		for i := range 10 * manyBatches {
			l.Apply(policytest.Set(policytest.File("a", fmt.Sprintf("x 10.96.0.1:%d", i+1))))
			synctest.Wait()
		}
		if n := len(l.backlog.batches); n > manyBatches {
			t.Errorf("%d batches wait", n)
		}
		k.failWith(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(l.backlog.batches); n != 0 {
			t.Errorf("%d batches wait after a sync", n)
		}
	})
}

// stuck waits for the end of its context.
type stuck struct{ *kernel }

func (s stuck) Sync(ctx context.Context, _ *policy.State, _ *policy.Delta) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestLoopGivesUpWhatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, &kernel{}, func(c *Config) { c.Backends[policy.IPv4] = stuck{} })
		l.Synced("file")
		time.Sleep(61 * time.Second)
		if st := l.Status().Families[0]; !strings.Contains(st.Error, errStuck.Error()) {
			t.Errorf("status %+v, want that there is no progress", st)
		}
	})
}

// What one service cannot have delays no other.
func TestLoopGoesOnPastUnserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{unserved: fmt.Errorf("in a test: %w", &proxier.PartialError{N: 2, Err: errors.New("no such scheduler")})}
		var last atomic.Pointer[SyncResult]
		var log strings.Builder
		l := start(t, k, func(c *Config) {
			observe(c).synced = func(r SyncResult) { last.Store(&r) }
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
		})
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		l.Synced("file")
		k.expect(t, "full")
		select {
		case <-l.Ready():
		default:
			t.Fatal("not ready after a sync that did all it could")
		}
		l.Apply(policytest.Set(policytest.File("b", "y 10.96.0.2:80")))
		k.expect(t, "y")
		st, r := l.Status().Families[0], last.Load()
		if st.Unserved != "no such scheduler" || st.Error != "" || r.Err != nil || r.Unserved.N != 2 {
			t.Errorf("status %+v, last result %+v", st, r)
		}
		l.FullSync()
		k.expect(t, "full")
		k.mu.Lock()
		k.unserved = nil
		k.mu.Unlock()
		l.FullSync()
		k.expect(t, "full")
		if st := l.Status().Families[0]; st.Unserved != "" {
			t.Errorf("status %+v", st)
		}
		if text := log.String(); strings.Count(text, "not served") != 1 || strings.Count(text, "all services are programmed again") != 1 {
			t.Errorf("log:\n%s", text)
		}
	})
}

func TestLoopAliveWhileItProgresses(t *testing.T) {
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
		if !l.RunAlive().Equal(time.Now()) {
			t.Error("Run is not alive while a sync hangs: systemd would restart it, to wait for the same")
		}
		l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: k, policy.IPv6: &kernel{}})
		synctest.Wait()
		if stuck := time.Since(l.Alive()); stuck != time.Minute {
			t.Errorf("beside a family that works: stuck for %v, want 1m", stuck)
		}
		time.Sleep(4 * time.Minute)
	})
}

// A refusal is logged once, however often it is looked at again.
func TestLoopLogsRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := start(t, &kernel{}, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80"), policytest.File("b", "y 10.96.0.1:80")))
		l.Synced("file")
		synctest.Wait()
		l.Apply(policytest.Set(policytest.File("c", "z 10.96.0.3:80")))
		synctest.Wait()
		if n := strings.Count(log.String(), "unit=b"); n != 1 || strings.Contains(log.String(), "unit=a") {
			t.Errorf("the log names b %d times, want once, and no other:\n%s", n, &log)
		}
	})
}

// A family holds everything in another backend as soon as that does, whatever the
// other family does, and not before.
func TestLoopReplacesBackends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, other, v6, third := &kernel{}, &kernel{}, &kernel{}, &kernel{}
		var told []policy.Family // from the goroutine of the Loop
		l := start(t, old, func(c *Config) { observe(c).holds = func(fam policy.Family) { told = append(told, fam) } })
		expect := func(when string, v4, v6holds bool, want ...policy.Family) {
			t.Helper()
			synctest.Wait()
			if l.Holds(policy.IPv4, other) != v4 || l.Holds(policy.IPv6, v6) != v6holds || !slices.Equal(told, want) {
				t.Errorf("%s: the new backends hold everything: %v, %v; told of %v, want %v, %v, %v",
					when, l.Holds(policy.IPv4, other), l.Holds(policy.IPv6, v6), told, v4, v6holds, want)
			}
		}
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		expect("before any sync", false, false)
		l.Synced("file")
		old.expect(t, "full")
		expect("after the first sync", false, false, policy.IPv4)
		if !l.Holds(policy.IPv4, old) {
			t.Error("the first backend does not hold everything")
		}
		other.failWith(errors.New("no"))
		v6.failWith(errors.New("no"))
		l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: other, policy.IPv6: v6})
		other.expect(t, "failed")
		expect("while both fail", false, false, policy.IPv4)
		other.failWith(nil)
		time.Sleep(time.Second)
		other.expect(t, "full")
		old.expect(t)
		expect("while the other family fails", true, false, policy.IPv4, policy.IPv4)
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.2:80")))
		other.expect(t, "x")
		v6.failWith(nil)
		time.Sleep(time.Minute)
		expect("at the end", true, true, policy.IPv4, policy.IPv4, policy.IPv6)
		l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: other, policy.IPv6: third})
		expect("after one was replaced", true, false, policy.IPv4, policy.IPv4, policy.IPv6, policy.IPv6)
		if len(other.services) != 1 || !l.Holds(policy.IPv6, third) {
			t.Errorf("%d services in the new backend, want 1", len(other.services))
		}
	})
}

// A new backend does not wait because the one before it failed.
func TestLoopTriesNewBackendsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, other := &kernel{fail: errors.New("no"), took: 10 * time.Second}, &kernel{}
		l := start(t, old, func(c *Config) { c.MinInterval = time.Minute })
		l.Synced("file")
		time.Sleep(10 * time.Second)
		old.expect(t, "failed")
		l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: other})
		other.expect(t, "full")
	})
}

func TestLoopReportsHealthCheckNodePorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told [][]NodeHealth
		l := start(t, &kernel{}, func(c *Config) { observe(c).nodeHealth = func(h []NodeHealth) { told = append(told, h) } })
		u := policytest.File("a", "x 10.96.0.1:80")
		u.Services[0] = policytest.Service(policytest.ExternalLocal, policytest.Endpoints("192.0.2.1", "10.0.0.2 @here", "10.0.0.3", "10.0.0.4 @here weight=0", "10.0.0.5 @here notready"))
		u.Services[0].HealthCheckNodePort = 32000
		l.Apply(policytest.Set(u))
		l.Synced("file")
		synctest.Wait()
		l.FullSync() // tells nothing new
		synctest.Wait()
		l.Apply(policytest.Gone("a"))
		synctest.Wait()
		want := [][]NodeHealth{{{Key: source.Key{Namespace: "default", Name: "web"}, Port: 32000, LocalEndpoints: policy.PerFamily{IPv4: 2, IPv6: 2}}}, nil}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("health checks told (-want +got):\n%s", diff)
		}
	})
}

// Random changes, applied as deltas, leave what a resolution of the end state gives.
func TestLoopDeltasAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tr, k := claims.NewTracker(nil), &kernel{}
		f := testFamily(k)
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			for _, x := range tr.Apply(policytest.RandomStep(rt)) {
				f.resolve(x.Key(), policy.Subject{Service: x.New}, time.Now())
			}
			k.fail = nil
			if rapid.IntRange(0, 5).Draw(rt, "fail") == 0 {
				k.fail = errors.New("no")
			}
			r, _ := f.sync(t.Context())
			f.done(&r)
			if k.err != "" {
				rt.Fatal(k.err)
			}
		}
		want := testFamily(k)
		tr.Services(func(s *source.Service, _ source.UnitID) { want.resolve(s.Key, policy.Subject{Service: s}, time.Now()) })
		if diff := cmp.Diff(want.desired.next, f.desired.next, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, policy.Target{})); diff != "" {
			rt.Fatalf("state after deltas (-want +got):\n%s", diff)
		}
	})
}

// A port that this program does not listen on any more is free for who waits for it.
func TestLoopFreesReservedPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k, func(c *Config) { c.Reserved = []netip.AddrPort{netip.MustParseAddrPort("[::]:179")} })
		l.Apply(policytest.Set(policytest.File("a", "x 179")))
		l.Synced("file")
		k.expect(t, "full")
		l.SetReserved(nil)
		k.expect(t, "x")
	})
}

// A Sync that the end of the Loop has interrupted is the last one: another would get a delta after an error.
func TestLoopEndsWithSync(t *testing.T) {
	for range 20 { // the end and an order come at once
		synctest.Test(t, func(t *testing.T) {
			k := &interrupted{}
			l := New(Config{Backends: map[policy.Family]proxier.Backend{policy.IPv4: k}, Node: policytest.Node(), SyncTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- l.Run(ctx) }()
			synctest.Wait()
			l.FullSync()
			synctest.Wait()
			cancel()
			<-ended
			if k.syncs != 1 {
				t.Errorf("%d Syncs, want 1", k.syncs)
			}
		})
	}
}

// interrupted is a kernel whose Syncs last until they are interrupted.
type interrupted struct {
	kernel
	syncs int
}

func (k *interrupted) Sync(ctx context.Context, _ *policy.State, _ *policy.Delta) error {
	k.syncs++
	<-ctx.Done()
	return ctx.Err()
}
