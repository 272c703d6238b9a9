package proxier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// A tracking is connection tracking: it answers what it is asked about what it holds.
type tracking struct {
	mu      sync.Mutex
	flows   []testFlow
	queries []FlowQuery
	took    time.Duration // by each look, before it sees any flow
	fail    error
	stuck   chan struct{} // looks go on when it is closed; nil: at once
	back    []testFlow    // come back after each look

	challenged int   // clients
	unheard    error // when they are

	unreplied bool // no flow has been answered yet
	opening   bool // all are half-open connections
	ended     bool // all are over
	fixed     bool // none can move, as in ipvs mode

	reopened []testFlow // those of which that was said
}

func (c *tracking) Prune(ctx context.Context, _ policy.Family, q FlowQuery, judge func(Flow) Verdict) (n int, err error) {
	c.mu.Lock()
	c.queries = append(c.queries, q)
	took, stuck := c.took, c.stuck
	c.mu.Unlock()
	time.Sleep(took)
	if stuck != nil {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-stuck:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return 0, c.fail
	}
	all := len(q.From)+len(q.To) == 0
	c.flows = slices.DeleteFunc(c.flows, func(f testFlow) bool {
		fl := f.flow()
		fl.Unreplied, fl.Opening, fl.Ended, fl.Movable = c.unreplied, c.opening, c.ended, !c.fixed
		if !all && !slices.Contains(q.To, fl.Dst) && !slices.Contains(q.From, fl.Src) {
			return false
		}
		switch judge(fl) {
		case RemoveFlow, MoveFlow:
			n++
			return true
		case ReopenFlow:
			c.reopened = append(c.reopened, f)
		}
		return false
	})
	c.flows = append(c.flows, c.back...)
	return n, nil
}

// Challenge notes whose clients are asked where they stand.
func (c *tracking) Challenge(_ policy.Family, removed []Flow) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.challenged += len(removed)
	return c.unheard
}

// set changes what c does.
func (c *tracking) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// looks returns how often c was asked since it was last called.
func (c *tracking) looks() int {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.queries)
	c.queries = nil
	return n
}

func (c *tracking) expect(t *testing.T, want ...testFlow) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.flows, want) {
		t.Errorf("flows\n got: %v\nwant: %v", c.flows, want)
	}
}

// A worker is a flowWorker in a synctest bubble.
type worker struct {
	*flowWorker
	track   *tracking
	log     strings.Builder
	deleted int
}

func startWorker(t *testing.T) *worker {
	w := &worker{track: &tracking{}}
	cfg := &Config{Flows: w.track, Log: slog.New(slog.NewTextHandler(&w.log, nil))}
	w.flowWorker = newFlowWorker(policy.IPv4, source.UDP, cfg, func(_ policy.Family, n int, _ time.Duration) { w.deleted += n })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return w
}

// since is that of the table.
func (w *flowWorker) since(changes map[source.Key]policy.ServiceChange) map[source.Key]policy.ServiceChange {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.table.since(changes)
}

// dns tells the worker that a service was synced.
func (w *worker) dns(n int, endpoints ...string) {
	s := dns(policytest.Endpoints(endpoints...))
	s.VIPs, s.Ports[0].NodePort = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(n)})}, 0
	s.Name = fmt.Sprint("dns-", n)
	ch := policy.ServiceChange{New: policy.Resolve(s, nil, policytest.Node(), policy.IPv4)}
	w.synced(&synced{changes: w.since(map[source.Key]policy.ServiceChange{s.Key: ch}), host: policytest.Node().Host(policy.IPv4), node: policytest.Node()})
}

// gone tells the worker that a service of dns is gone.
func (w *worker) gone(n int) {
	key := dns(policytest.Endpoints()).Key
	key.Name = fmt.Sprint("dns-", n)
	w.synced(&synced{changes: w.since(map[source.Key]policy.ServiceChange{key: {}}), host: policytest.Node().Host(policy.IPv4), node: policytest.Node()})
}

func toDNS(n int, endpoint string) testFlow {
	return testFlow{"", fmt.Sprintf("10.96.0.%d:53", n), endpoint + ":5353"}
}

// A flow that cannot move is left alone for a second, as an answer may be under way; one that no
// endpoint answers, as it was not translated, goes at once.
func TestFlowWorkerSparesAnswersUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t)
		w.dns(1, "10.0.0.1")
		time.Sleep(time.Minute)
		untouched := testFlow{"", "10.96.0.1:53", "10.96.0.1:53"}
		w.track.set(func() { w.track.fixed, w.track.flows = true, []testFlow{toDNS(1, "10.0.0.1"), untouched} })
		w.dns(1, "10.0.0.2")
		time.Sleep(3 * secondLook)
		w.track.expect(t, toDNS(1, "10.0.0.1"))
		time.Sleep(2 * secondLook)
		w.track.expect(t)
	})
}

// A service that goes shortly after its endpoint leaves no flow of that endpoint behind.
func TestFlowWorkerEndpointThenService(t *testing.T) {
	for _, took := range []time.Duration{0, 400 * time.Millisecond} {
		for _, left := range [][]string{nil, {"10.0.0.2"}} {
			synctest.Test(t, func(t *testing.T) {
				w := startWorker(t)
				w.dns(1, "10.0.0.1")
				time.Sleep(time.Minute)
				w.track.set(func() {
					w.track.fixed, w.track.took = took == 0, took
					w.track.flows = []testFlow{toDNS(1, "10.0.0.1")}
				})
				w.dns(1, left...)
				time.Sleep(secondLook / 3)
				w.gone(1)
				time.Sleep(10 * time.Minute)
				w.track.expect(t)
			})
		}
	}
}

// Whatever connection tracking does, a change is handed over at once, and many are one look.
func TestFlowWorkerIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t)
		w.track.took = time.Minute
		const services = 100
		for n := range services {
			w.track.flows = append(w.track.flows, toDNS(n, "10.0.0.1"), toDNS(n, "10.0.0.2"))
		}
		start := time.Now()
		for _, endpoint := range []string{"10.0.0.1", "10.0.0.3", "10.0.0.2"} {
			for n := range services {
				w.dns(n, endpoint)
				synctest.Wait()
			}
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("handing over took %v", took)
		}
		time.Sleep(4*time.Minute + time.Second) // the look at the start, that at all that changed meanwhile, and theirs once more
		if n := w.track.looks(); n != 4 {
			t.Errorf("%d looks, want 4", n)
		}
		if w.track.challenged != 0 {
			t.Errorf("%d clients of UDP flows were told", w.track.challenged)
		}
		if len(w.track.flows) != services || w.deleted != services {
			t.Errorf("%d flows left, %d removed; want %d each", len(w.track.flows), w.deleted, services)
		}
	})
}

// A state between two looks counts too: the kernel held it.
func TestFlowWorkerForgetsNoState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t)
		w.dns(1, "10.0.0.1")
		time.Sleep(time.Minute)
		w.track.set(func() { w.track.took = 10 * time.Second })
		w.dns(2, "10.0.0.1")
		time.Sleep(time.Second)
		w.dns(1, "10.0.0.1", "10.0.0.2")
		w.track.set(func() { w.track.flows = []testFlow{toDNS(1, "10.0.0.1"), toDNS(1, "10.0.0.2")} })
		w.dns(1, "10.0.0.1")
		time.Sleep(time.Minute)
		w.track.expect(t, toDNS(1, "10.0.0.1"))
	})
}

// Changes that come during a look are one look, which is about all of them.
func TestFlowWorkerMergesLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t)
		for n := range 3 {
			w.dns(n, "10.0.0.1")
		}
		time.Sleep(time.Minute)
		w.track.set(func() {
			w.track.took, w.track.flows = time.Second, []testFlow{toDNS(1, "10.0.0.1"), toDNS(2, "10.0.0.1")}
		})
		for n := range 3 {
			w.dns(n, "10.0.0.2")
			synctest.Wait() // the first is being looked for
		}
		time.Sleep(time.Minute)
		w.track.expect(t)
	})
}

// One look in place of two is about all that either was, whichever came first.
func TestLooksMerge(t *testing.T) {
	at := func(appeared bool, former ...string) map[netip.AddrPort]frontendChange {
		p := frontendChange{appeared: appeared, whole: appeared}
		for _, a := range former {
			p.former = append(p.former, netip.MustParseAddrPort(a))
		}
		p.closed, p.dead = p.former, p.former
		return map[netip.AddrPort]frontendChange{netip.MustParseAddrPort("10.96.0.1:53"): p}
	}
	const a, b = "10.0.0.1:53", "10.0.0.2:53"
	for _, tt := range []struct {
		name           string
		one, two, want look
	}{
		{"all", look{all: true}, look{}, look{all: true}},
		{"addresses", look{changed: at(true, a)}, look{}, look{changed: at(true, a)}},
		{"appeared", look{changed: at(true)}, look{changed: at(false)}, look{changed: at(true)}},
		{"former endpoints", look{changed: at(false, a)}, look{changed: at(false, b)}, look{changed: at(false, a, b)}},
		{"the same endpoint", look{changed: at(false, a)}, look{changed: at(false, a)}, look{changed: at(false, a)}},
		{"times done", look{done: 2}, look{done: 1}, look{done: 1}},
	} {
		for _, order := range [][2]look{{tt.one, tt.two}, {tt.two, tt.one}} {
			got := look{all: order[0].all, done: order[0].done, changed: maps.Clone(order[0].changed)}
			got.merge(&order[1])
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(look{}, frontendChange{}), cmpopts.EquateEmpty(),
				cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.SortSlices(netip.AddrPort.Compare)); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
			}
		}
	}
}

// A look that takes long judges by what is synced when it comes to a flow.
func TestFlowWorkerGoesByTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t)
		w.track.took = 10 * time.Second
		w.dns(1, "10.0.0.1")
		time.Sleep(time.Second)
		w.dns(1, "10.0.0.1", "10.0.0.2")
		w.track.set(func() { w.track.flows = []testFlow{toDNS(1, "10.0.0.2"), toDNS(1, "10.0.0.3")} })
		time.Sleep(time.Minute)
		w.track.expect(t, toDNS(1, "10.0.0.2"))
		if w.deleted != 1 {
			t.Errorf("%d counted as removed, want 1", w.deleted)
		}
	})
}

// What comes back after a look goes in a second one; as long as there is
// something, looks go on, ever more slowly, and end when nothing comes back.
func TestFlowWorkerLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t)
		w.dns(1, "10.0.0.1")
		answer := testFlow{"10.96.0.1:53", "10.9.9.9:999", "10.9.9.9:999"}
		time.Sleep(100 * time.Millisecond)
		w.track.set(func() { w.track.flows = []testFlow{answer} })
		time.Sleep(time.Second)
		w.track.expect(t)
		if n := w.track.looks(); n != 3 {
			t.Errorf("%d looks, want 3: one that found something is followed by another", n)
		}
		time.Sleep(time.Hour)
		if n := w.track.looks(); n != 0 {
			t.Errorf("%d looks, want none when nothing is left", n)
		}

		w.track.set(func() { w.track.back = []testFlow{answer} })
		w.dns(1, "10.0.0.2")
		time.Sleep(secondLook * quickLooks * 3 / 2)
		if n := w.track.looks(); n < quickLooks-2 || n > quickLooks+2 {
			t.Errorf("%d looks at first, want about %d", n, quickLooks)
		}
		time.Sleep(10 * time.Minute)
		w.track.looks()
		time.Sleep(10 * time.Minute)
		if n := w.track.looks(); n < 10 || n > 20 {
			t.Errorf("%d looks in ten minutes, want one every %v", n, retryMax)
		}
		w.track.set(func() { w.track.back = nil })
		time.Sleep(10 * time.Minute)
		w.track.looks()
		time.Sleep(time.Hour)
		w.track.expect(t)
		if n := w.track.looks(); n != 0 {
			t.Errorf("%d looks, want none when nothing comes back", n)
		}
	})
}

// What failed is tried again, less and less often, with all that came in meanwhile.
func TestFlowWorkerRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t)
		w.track.flows = []testFlow{toDNS(1, "10.0.0.9"), toDNS(2, "10.0.0.9")}
		w.track.fail = errors.New("no buffer space available")
		w.dns(1, "10.0.0.1")
		time.Sleep(4 * time.Second) // after 0.5 s, 1 s more, 2 s more
		w.dns(2, "10.0.0.1")
		if n := w.track.looks(); n != 4 {
			t.Errorf("%d looks, want 4", n)
		}
		w.track.set(func() { w.track.fail = nil })
		time.Sleep(4 * time.Second)
		w.track.expect(t)
		if n := strings.Count(w.log.String(), "no buffer space available"); n != 4 {
			t.Errorf("logged %d times, want 4:\n%s", n, &w.log)
		}
		w.track.looks()
		w.dns(1, "10.0.0.2")
		if n := w.track.looks(); n != 1 {
			t.Errorf("%d looks at once after a change, want 1: nothing fails any more", n)
		}
	})
}

// The worker rests between looks, so that changes without end leave half of a processor.
func TestFlowWorkerRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t)
		w.track.took = maxRest
		for i := range 1000 {
			w.dns(1, fmt.Sprintf("10.0.%d.%d", i/250, i%250))
			time.Sleep(10 * time.Millisecond)
		}
		if n := w.track.looks(); n < 22 || n > 25 {
			t.Errorf("%d looks of %v in 10 s, want 24: 8 without a rest, and then half of the time", n, maxRest)
		}
	})
}

// Of SCTP the kernel has no flag by which a client that connects again is balanced again: an association of an endpoint
// that left is looked at until it has ended, and then removed.
func TestFlowWorkerAwaitsAssociations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		track := &tracking{}
		w := newFlowWorker(policy.IPv4, source.SCTP, &Config{Flows: track, Log: slog.New(slog.DiscardHandler)}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.Run(ctx) })
		t.Cleanup(func() { cancel(); wg.Wait() })
		sync := func(endpoint string) {
			s := policytest.Service(policytest.Endpoints(endpoint), func(s *source.Service) { s.Ports[0].Protocol = source.SCTP })
			ch := policy.ServiceChange{New: policy.Resolve(s, nil, policytest.Node(), policy.IPv4)}
			w.synced(&synced{changes: w.since(map[source.Key]policy.ServiceChange{s.Key: ch}), host: policytest.Node().Host(policy.IPv4), node: policytest.Node()})
		}
		sync("10.0.0.1")
		time.Sleep(time.Minute)
		association := testFlow{"", "10.96.0.10:80", "10.0.0.1:8080"}
		track.set(func() { track.flows = []testFlow{association} })
		sync("10.0.0.2")
		time.Sleep(time.Minute)
		track.expect(t, association)
		track.set(func() { track.ended = true })
		time.Sleep(2 * awaitLook)
		track.expect(t)
		time.Sleep(time.Minute)
		track.looks()
		if time.Sleep(time.Hour); track.looks() > 0 {
			t.Error("it looks on, and nothing is there")
		}
	})
}

// A half-open connection to an endpoint that left has a moment to be established, and then goes.
func TestFlowWorkerAwaitsHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		track := &tracking{opening: true}
		l := start(t, &kernel{}, func(c *Config) { c.Flows = track })
		apply := func(endpoint string) {
			u := policytest.File("web", "web 10.96.0.10:80")
			u.Services[0] = policytest.Service(policytest.Endpoints(endpoint))
			l.Apply(policytest.Set(u))
		}
		apply("10.0.0.1")
		l.Synced("file")
		time.Sleep(time.Minute)
		half := testFlow{"", "10.96.0.10:80", "10.0.0.1:8080"}
		track.set(func() { track.flows = []testFlow{half} })
		apply("10.0.0.2")
		time.Sleep(2 * secondLook)
		track.expect(t, half)
		time.Sleep(6 * secondLook)
		track.expect(t)
	})
}

// startLoop runs a Loop of one UDP service, whose first looks are over.
func startLoop(t *testing.T, k *kernel) (*Loop, *tracking) {
	track := &tracking{}
	l := start(t, k, func(c *Config) { c.Flows = track })
	l.Apply(policytest.Set(dnsFile("10.0.0.1")))
	l.Synced("file")
	time.Sleep(time.Second)
	if n := track.looks(); n != 2 {
		t.Errorf("%d looks at the start, want 2", n)
	}
	return l, track
}

func dnsFile(endpoints ...string) source.Unit {
	u := policytest.File("dns", "x 10.96.0.10:53")
	u.Services[0] = dns(policytest.Endpoints(endpoints...))
	return u
}

// A second look follows each change, of its protocol.
func TestLoopLooksForFlowsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		track := &tracking{}
		l := start(t, &kernel{}, func(c *Config) { c.Flows = track })
		l.Synced("file")
		synctest.Wait()
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		time.Sleep(time.Second)
		if n := track.looks(); n != 2 {
			t.Errorf("%d looks for a TCP service, want 2", n)
		}
		l.Apply(policytest.Set(dnsFile("10.0.0.1")))
		if n := track.looks(); n != 1 {
			t.Errorf("%d looks after a change, want 1", n)
		}
		time.Sleep(time.Second)
		if n := track.looks(); n != 1 {
			t.Errorf("%d looks in the second after that, want 1", n)
		}
	})
}

// A stuck look delays no change.
func TestLoopGoesOnWhileFlowsAreStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l, track := startLoop(t, k)
		k.expect(t, "full")
		track.set(func() { track.stuck = make(chan struct{}) })
		l.Apply(policytest.Set(dnsFile("10.0.0.2")))
		k.expect(t, "web")
		l.Apply(policytest.Set(dnsFile("10.0.0.3"), policytest.File("a", "x 10.96.0.1:80")))
		k.expect(t, "web x")
		if n := track.looks(); n != 2 {
			t.Errorf("%d looks, want those of UDP and TCP that are stuck", n)
		}
		close(track.stuck)
		if n := track.looks(); n != 1 {
			t.Errorf("%d looks, want one at what changed meanwhile", n)
		}
	})
}

// All flows are looked at when the kernel may have held something else, and not
// when a look at it found nothing to do.
func TestLoopLooksAtAllFlows(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(*Loop, *kernel)
		want int
	}{
		{"resync", func(*Loop, *kernel) { time.Sleep(time.Minute) }, 0},
		{"asked for", func(l *Loop, _ *kernel) { l.Resync() }, 2},
		{"another node", func(l *Loop, _ *kernel) {
			l.SetNode(policytest.Node(func(n *policy.Node) { n.LocalInterfaces = []string{"lo"} }))
		}, 2},
		{"the same node", func(l *Loop, _ *kernel) { l.SetNode(policytest.Node()) }, 0},
		{"another backend", func(l *Loop, k *kernel) { l.SetBackends(map[policy.Family]Backend{policy.IPv4: &kernel{}}) }, 2},
		{"the same backend", func(l *Loop, k *kernel) { l.SetBackends(map[policy.Family]Backend{policy.IPv4: k}) }, 0},
		{"after an error", func(l *Loop, k *kernel) {
			k.failWith(errors.New("no"))
			l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
			time.Sleep(time.Second)
			k.failWith(nil)
			time.Sleep(time.Minute)
		}, 4}, // at flows of UDP, and at connections of the new service
		{"others changed the kernel", func(l *Loop, _ *kernel) { l.Repair(policy.IPv4) }, 2},
		{"the kernel differs", func(_ *Loop, k *kernel) {
			k.mu.Lock()
			k.damaged = true
			k.mu.Unlock()
			time.Sleep(30 * time.Second)
		}, 2},
		{"others changed the kernel, and a sync fails", func(l *Loop, k *kernel) {
			k.failWith(errors.New("no"))
			l.Repair(policy.IPv4)
			time.Sleep(time.Second)
			k.failWith(nil)
			time.Sleep(time.Minute)
		}, 2},
		{"an address that the rules need not know", func(l *Loop, _ *kernel) { l.SetNode(policytest.Node(owns("10.9.9.9"))) }, 0},
		{"family dropped", func(l *Loop, _ *kernel) { l.SetBackends(nil) }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &kernel{}
				l, track := startLoop(t, k)
				track.set(func() { track.flows = []testFlow{{"", "10.96.0.10:53", "10.0.0.9:53"}} })
				tt.do(l, k)
				time.Sleep(500 * time.Millisecond)
				synctest.Wait()
				track.set(func() {
					for _, q := range track.queries {
						if len(q.From)+len(q.To) > 0 {
							t.Errorf("asked for %v, want all", q)
						}
					}
				})
				if n := track.looks(); n != tt.want {
					t.Errorf("%d looks, want %d", n, tt.want)
				}
			})
		})
	}
}

// A service that goes while the kernel does not take another node leaves no flows.
func TestLoopRemovesFlowsOfWhatWentMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l, track := startLoop(t, k)
		track.set(func() { track.flows = []testFlow{{"", "10.96.0.10:53", "10.0.0.1:5353"}} })
		k.failWith(errors.New("no"))
		l.SetNode(policytest.Node(func(n *policy.Node) { n.Zone = "b" }))
		synctest.Wait()
		l.Apply(policytest.Gone("dns"))
		synctest.Wait()
		k.failWith(nil)
		time.Sleep(time.Minute)
		track.expect(t)
	})
}

// owns gives a node one more address, which serves no node ports.
func owns(a string) func(*policy.Node) {
	return func(n *policy.Node) {
		n.Addrs = append(n.Addrs, netip.MustParseAddr(a))
		slices.SortFunc(n.Addrs, netip.Addr.Compare)
	}
}

// Where a flow comes from is judged by the addresses that this host has now, also
// if the kernel holds the same with them.
func TestLoopFlowsOfANewAddress(t *testing.T) {
	for _, tt := range []struct {
		name string
		node *policy.Node
		left []testFlow
	}{
		{"client", policytest.Node(), nil},
		{"host process", policytest.Node(owns("10.9.9.9")), []testFlow{{"", "192.0.2.1:30053", "10.0.0.2:5353"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, track := startLoop(t, &kernel{})
				u := dnsFile("10.0.0.1 @here", "10.0.0.2 @there")
				u.Services[0].ExternalTrafficPolicy = source.Local
				l.Apply(policytest.Set(u))
				l.SetNode(tt.node)
				time.Sleep(time.Second)
				track.set(func() { track.flows = []testFlow{{"", "192.0.2.1:30053", "10.0.0.2:5353"}} })
				l.Resync()
				track.expect(t, tt.left...)
			})
		})
	}
}
