package conditions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// returns has endpoints fail together within 4.1 s of each other, and follow the first within 2.1 s.
func returns(s *source.Service) {
	probed(s)
	s.HealthCheck.IntervalDown, s.HealthCheck.Timeout = time.Second, time.Second
}

// Who follows the first one that passes again, and for how long.
func TestReturningFollowsTheFirstPass(t *testing.T) {
	const up, down = source.CheckPassed, source.CheckFailed
	const four, six = "10.0.0.4", "fd00::1"
	wait := func(d time.Duration) func(*host, *source.Service) *host {
		return func(h *host, _ *source.Service) *host { time.Sleep(d); return h }
	}
	set := func(state source.CheckResult, addrs ...string) func(*host, *source.Service) *host {
		return func(h *host, svc *source.Service) *host { h.set(svc, state, addrs...); h.told(); return h }
	}
	again := func(h *host, svc *source.Service) *host {
		time.Sleep(saveTime) // it is written that often
		h = h.killed()
		h.Use(svc.Key, svc)
		return h
	}
	drain := func(h *host, svc *source.Service) *host {
		h.drain(DrainTarget{Addr: netip.MustParseAddr(two)})
		h.told()
		return h
	}
	undrain := func(h *host, svc *source.Service) *host {
		if had, err := h.Undrain(DrainTarget{Addr: netip.MustParseAddr(two)}); !had || err != nil {
			h.t.Errorf("undrained: %v, %v", had, err)
		}
		return h
	}
	more := func(h *host, svc *source.Service) *host {
		svc.Endpoints = append(svc.Endpoints, source.Endpoint{Addr: netip.MustParseAddr(four), Weight: 1, Ready: true, Serving: true})
		h.Use(svc.Key, svc)
		return h
	}
	all := []string{one, two, three}
	type steps = []func(*host, *source.Service) *host
	tests := []struct {
		name      string
		endpoints []string
		edit      func(*source.Service)
		steps     steps
		want      string
	}{
		{"the first", all, returns, steps{set(up, all...), set(down, all...), wait(time.Minute), set(up, two)},
			"1 down returning, 2 up returning, 3 down returning"},
		{"and others", all, returns, steps{set(up, all...), set(down, all...), wait(time.Minute), set(up, two), wait(1700 * time.Millisecond), set(up, one)},
			"1 up returning, 2 up returning, 3 down returning"},
		{"all", all, returns, steps{set(up, all...), set(down, all...), set(up, two), wait(time.Second), set(up, one, three)}, "1 up, 2 up, 3 up"},
		{"one fails again after all have passed", all, returns, steps{set(up, all...), set(down, all...), set(up, all...), set(down, one)}, "1 down, 2 up, 3 up"},
		{"one fails again before all have passed", all, returns, steps{set(up, all...), set(down, all...), set(up, two), set(up, one), set(down, two)},
			"1 up returning, 2 down returning, 3 down returning"},
		{"for long", all, returns, steps{set(up, all...), set(down, all...), wait(time.Minute), set(up, two), wait(2100 * time.Millisecond)}, "1 down, 2 up, 3 down"},
		{"again after that", all, returns, steps{set(up, all...), set(down, all...), set(up, two), wait(time.Minute), set(down, two), set(up, two)}, "1 down, 2 up, 3 down"},
		{"one failed before", all, returns, steps{set(up, all...), set(down, one), wait(5 * time.Second), set(down, two, three), set(up, two)},
			"1 down, 2 up returning, 3 down returning"},
		{"they failed one by one", all, returns, steps{set(up, all...), set(down, one), wait(2 * time.Second), set(down, two), wait(1800 * time.Millisecond), set(down, three), set(up, two)},
			"1 down returning, 2 up returning, 3 down returning"},
		{"the one that failed before is the first", all, returns, steps{set(up, all...), set(down, one), wait(time.Minute), set(down, two, three), set(up, one)},
			"1 up returning, 2 down returning, 3 down returning"},
		{"not all fail", all, returns, steps{set(up, all...), set(down, one, two), set(up, two)}, "1 down, 2 up, 3 up"},
		{"one was never asked, and another never passed", all, returns, steps{set(down, one), set(up, two)}, "1 down, 2 up, 3"},
		{"one was never asked", all, returns, steps{set(up, one, two), set(down, one, two), set(up, two)}, "1 down returning, 2 up returning, 3"},
		{"nobody ever passed", all, returns, steps{set(down, all...), set(up, two)}, "1 down returning, 2 up returning, 3 down returning"},
		{"a family", []string{one, two, six}, returns, steps{set(up, one, two, six), set(down, one, two), set(up, two)}, "1 down returning, 2 up returning, fd00::1 up"},
		{"the other family", []string{one, two, six}, returns, steps{set(up, one, two, six), set(down, one, two, six), set(up, six)}, "1 down, 2 down, fd00::1 up"},
		{"a port", all, func(s *source.Service) {
			returns(s)
			s.Ports = append(s.Ports, source.Port{Name: "b", Protocol: source.TCP, Port: 81, TargetPort: 8081})
			s.Endpoints[2].Ports = map[string]uint16{"b": 0}
		}, steps{set(up, all...), wait(time.Minute), set(down, one, two), set(up, two)}, "1 down returning, 2 up returning, 3 up"},
		{"the check is gone", all, returns, steps{set(up, all...), set(down, all...), set(up, two), func(h *host, svc *source.Service) *host {
			bare := *svc
			bare.HealthCheck = nil
			h.Use(bare.Key, &bare)
			h.Use(svc.Key, svc)
			return h
		}}, "1 down, 2 up, 3 down"},
		{"another is drained", all, returns, steps{set(up, all...), drain, set(down, all...), set(up, one), undrain}, "1 up returning, 2 down, 3 down returning"},
		{"one that passes was drained", all, returns, steps{set(up, all...), drain, wait(time.Minute), set(down, one, three), undrain}, "1 down, 2 up, 3 down"},
		{"one is new", all, returns, steps{set(up, all...), set(down, all...), more, set(up, one)}, "1 up returning, 2 down returning, 3 down returning, 4"},
		{"the new one is the first", all, returns, steps{set(up, all...), set(down, all...), more, set(up, four)}, "1 down returning, 2 down returning, 3 down returning, 4 up returning"},
		{"one is new, and fails much later", all, returns, steps{set(up, all...), set(down, all...), more, wait(time.Minute), set(down, four), set(up, one)},
			"1 up returning, 2 down returning, 3 down returning, 4 down returning"},
		{"for long, and killed", all, returns, steps{set(up, all...), set(down, all...), set(up, two), wait(3 * time.Second), again}, "1 down, 2 up, 3 down"},
		{"killed before", all, returns, steps{set(up, all...), set(down, one), wait(3 * time.Second), set(down, two, three), again, set(up, two)},
			"1 down returning, 2 up returning, 3 down returning"},
		{"killed meanwhile", all, returns, steps{set(up, all...), set(down, one), wait(time.Minute), set(down, two, three), set(up, two), again},
			"1 down, 2 up returning, 3 down returning"},
		{"killed, with the time over meanwhile", all, returns, steps{set(up, all...), set(down, all...), set(up, two), wait(saveTime), again, wait(time.Second)},
			"1 down returning, 2 up returning, 3 down returning"},
		{"killed, and for long", all, returns, steps{set(up, all...), set(down, all...), set(up, two), again, wait(2200 * time.Millisecond)}, "1 down, 2 up, 3 down"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *host) {
				svc := build("a", tt.endpoints, tt.edit)
				h.Use(svc.Key, svc)
				for _, step := range tt.steps {
					h = step(h, svc)
				}
				h.want(svc, tt.want)
			})
		})
	}
}

// A recorder is a Backend that counts what it is told.
type recorder struct {
	mu      sync.Mutex
	syncs   int
	added   map[netip.AddrPort]int
	removed map[netip.AddrPort]int
	targets map[netip.AddrPort]bool
}

func (r *recorder) Sync(_ context.Context, st *policy.State, _ *policy.Delta) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.syncs++
	now := make(map[netip.AddrPort]bool)
	for _, s := range st.Services {
		for _, t := range s.Pools[0].Targets {
			if now[t.AddrPort()] = true; !r.targets[t.AddrPort()] {
				r.added[t.AddrPort()]++
			}
		}
	}
	for a := range r.targets {
		if !now[a] {
			r.removed[a]++
		}
	}
	r.targets = now
	return nil
}

// forget begins to count again.
func (r *recorder) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.syncs, r.added, r.removed = 0, make(map[netip.AddrPort]int), make(map[netip.AddrPort]int)
}

// most returns how often an endpoint was added at most, and removed.
func (r *recorder) most() (added, removed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.added {
		added = max(added, n)
	}
	for _, n := range r.removed {
		removed = max(removed, n)
	}
	return added, removed
}

// counts returns the number of syncs, of endpoints that were added and removed, and of those in use.
func (r *recorder) counts() (syncs, added, removed, used int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.syncs, len(r.added), len(r.removed), len(r.targets)
}

func (*recorder) Look(context.Context) (bool, error)                            { return false, nil }
func (*recorder) Plan(context.Context, *policy.State) ([]proxier.Change, error) { return nil, nil }
func (*recorder) Cleanup(context.Context) error                                 { return nil }

// With the uplink all endpoints are lost, one by one. The kernel is told of each once that it is
// gone and once that it is used all the same, and nothing when the link is back: also not when
// svcproxy is killed on the way. What stays away is out once, when the others had their time.
func TestUplinkIsLost(t *testing.T) {
	for _, tt := range []struct {
		name   string
		count  int
		killed bool
		stay   int // of those do not come back
	}{{"all come back", 1000, false, 0}, {"killed", 200, true, 0}, {"some do not", 200, false, 20}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { loseUplink(t, tt.count, tt.killed, tt.stay) })
		})
	}
}

func loseUplink(t *testing.T, count int, killed bool, stay int) {
	var addrs []string
	for i := range count {
		addrs = append(addrs, fmt.Sprintf("10.1.%d.%d", i/250, i%250))
	}
	svc := build("a", addrs, returns, slowly)
	check := svc.HealthCheck
	check.IntervalDown = 10 * time.Second
	back := healthcheck.ReturnTime(check)
	dir, kernel := t.TempDir(), &recorder{targets: make(map[netip.AddrPort]bool)}
	kernel.forget()
	h, stop := runLoop(t, dir, kernel, svc)
	h.set(svc, source.CheckPassed, addrs...)
	time.Sleep(time.Minute)
	kernel.forget()

	h.oneByOne(svc, source.CheckFailed, addrs, check.Interval+check.Timeout)
	added, removed := kernel.most()
	if _, _, gone, used := kernel.counts(); added != 1 || removed != 1 || gone < count*9/10 || used != count {
		t.Errorf("lost: %d of %d are used; one was added %d times, another removed %d times", used, count, added, removed)
	}
	time.Sleep(10 * time.Second)
	kernel.forget()
	half := count / 2
	h.oneByOne(svc, source.CheckPassed, addrs[:half], back*2/5)
	compared := 0
	if killed {
		time.Sleep(saveTime)
		stop()
		h, stop = runLoop(t, h.killed().dir, kernel, svc)
		compared = 1 // the first one compares
	}
	h.oneByOne(svc, source.CheckPassed, addrs[half:count-stay], back*9/20)
	if syncs, came, gone, used := kernel.counts(); syncs != compared || came+gone != 0 || used != count {
		t.Errorf("back: %d syncs, %d endpoints added, %d removed, %d are used", syncs, came, gone, used)
	}
	time.Sleep(time.Minute)
	added, removed = kernel.most()
	if syncs, _, gone, _ := kernel.counts(); added != 0 || removed > 1 || gone != stay || syncs != compared+min(stay, 1) {
		t.Errorf("at last: %d syncs, %d endpoints added, %d removed", syncs, added, gone)
	}
	stop()
}

// runLoop starts a Keeper and a Loop that have one service.
func runLoop(t *testing.T, dir string, kernel *recorder, svc *source.Service) (h *host, stop func()) {
	h = run(t, dir)
	l := loop.New(loop.Config{
		Backends: map[policy.Family]proxier.Backend{policy.IPv4: kernel}, Node: &policy.Node{Name: "here"}, Sources: []string{"file"},
		LookInterval: time.Hour, SyncTimeout: time.Minute, Log: slog.New(slog.DiscardHandler), Conditions: h,
	})
	h.mu.Lock()
	h.loop = l
	h.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{svc}}}})
	l.Synced("file")
	synctest.Wait()
	return h, func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
		h.stop()
	}
}

// oneByOne has endpoints change their state at times of their own, the first and the last so far
// apart, and returns when all of that is done.
func (h *host) oneByOne(svc *source.Service, state source.CheckResult, addrs []string, apart time.Duration) {
	at := make([]time.Duration, len(addrs))
	for i := range at {
		at[i] = time.Duration(float64(apart) * float64(i) / float64(len(at)-1))
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	start := time.Now()
	for i, a := range addrs {
		time.Sleep(at[i] - time.Since(start))
		h.set(svc, state, a)
	}
	h.told()
}
