package flows_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier/flows"
	"svcproxy.dev/svcproxy/proxier/flows/flowstest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// The numbers of workers.
const (
	overUDP  = 0
	overSCTP = 2
)

// A worker is a Worker in a synctest bubble.
type worker struct {
	*flows.Worker
	track   *flowstest.Tracking
	held    map[source.Key]*policy.Resolved
	log     strings.Builder
	deleted int
}

func startWorker(t *testing.T, number int) *worker {
	w, stop := startWorkerIn(t, "", &flowstest.Tracking{}, number)
	t.Cleanup(stop)
	return w
}

// startWorkerIn starts a worker whose record is in dir.
func startWorkerIn(t *testing.T, dir string, track *flowstest.Tracking, number int) (w *worker, stop func()) {
	w = &worker{track: track, held: make(map[source.Key]*policy.Resolved)}
	w.Worker = flows.NewWorkers(policy.IPv4, flows.Config{
		Tracking: track, RunDir: dir, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		Looked: func(_ policy.Family, n int, _ time.Duration) { w.deleted += n },
	})[number]
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(ctx) })
	return w, func() { cancel(); wg.Wait() }
}

// dns tells the worker that a service was synced.
func (w *worker) dns(n int, endpoints ...string) {
	key, r := resolveDNS(n, endpoints...)
	w.set(key, r)
}

func resolveDNS(n int, endpoints ...string) (source.Key, *policy.Resolved) {
	s := policytest.DNS(policytest.Endpoints(endpoints...))
	s.VIPs, s.Ports[0].NodePort = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(n)})}, 0
	s.Name = fmt.Sprint("dns-", n)
	return s.Key, policy.Resolve(s, nil, policytest.Node(), policy.IPv4)
}

// expect tells the worker that a service of dns is about to be synced.
func (w *worker) expect(n int, endpoints ...string) {
	_, r := resolveDNS(n, endpoints...)
	w.Expect([]policy.ServiceChange{{New: r}})
}

// gone tells the worker that a service of dns is gone.
func (w *worker) gone(n int) {
	w.set(source.Key{Namespace: "default", Name: fmt.Sprint("dns-", n)}, nil)
}

func (w *worker) set(key source.Key, now *policy.Resolved) {
	ch := policy.ServiceChange{Old: w.held[key], New: now}
	w.held[key] = now
	changes := []policy.ServiceChange{ch}
	w.Expect(changes)
	w.Synced(&flows.Sync{Changes: changes, Host: policytest.Node().Host(policy.IPv4), Node: policytest.Node()})
}

func toDNS(n int, endpoint string) flowstest.Flow {
	return flowstest.Flow{"", fmt.Sprintf("10.96.0.%d:53", n), endpoint + ":5353"}
}

// A Flow that cannot move is left alone for a second, as an answer may be under way; one that no
// endpoint answers, as it was not translated, goes at once.
func TestWorkerSparesAnswersUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t, overUDP)
		w.dns(1, "10.0.0.1")
		time.Sleep(time.Minute)
		untouched := flowstest.Flow{"", "10.96.0.1:53", "10.96.0.1:53"}
		w.track.Set(func() { w.track.Fixed, w.track.Flows = true, []flowstest.Flow{toDNS(1, "10.0.0.1"), untouched} })
		w.dns(1, "10.0.0.2")
		time.Sleep(3 * flows.SecondLook)
		w.track.Expect(t, toDNS(1, "10.0.0.1"))
		time.Sleep(2 * flows.SecondLook)
		w.track.Expect(t)
	})
}

// A service that goes shortly after its endpoint leaves no flow of that endpoint behind.
func TestWorkerEndpointThenService(t *testing.T) {
	for _, took := range []time.Duration{0, 400 * time.Millisecond} {
		for _, left := range [][]string{nil, {"10.0.0.2"}} {
			synctest.Test(t, func(t *testing.T) {
				w := startWorker(t, overUDP)
				w.dns(1, "10.0.0.1")
				time.Sleep(time.Minute)
				w.track.Set(func() {
					w.track.Fixed, w.track.Took = took == 0, took
					w.track.Flows = []flowstest.Flow{toDNS(1, "10.0.0.1")}
				})
				w.dns(1, left...)
				time.Sleep(flows.SecondLook / 3)
				w.gone(1)
				time.Sleep(10 * time.Minute)
				w.track.Expect(t)
			})
		}
	}
}

// Whatever connection tracking does, a change is handed over at once, and many are one look.
func TestWorkerIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t, overUDP)
		w.track.Took = time.Minute
		const services = 100
		for n := range services {
			w.track.Flows = append(w.track.Flows, toDNS(n, "10.0.0.1"), toDNS(n, "10.0.0.2"))
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
		if n := w.track.Looks(); n != 4 {
			t.Errorf("%d looks, want 4", n)
		}
		if w.track.Challenged != 0 {
			t.Errorf("%d clients of UDP flows were told", w.track.Challenged)
		}
		if len(w.track.Flows) != services || w.deleted != services {
			t.Errorf("%d flows left, %d removed; want %d each", len(w.track.Flows), w.deleted, services)
		}
	})
}

// A state between two looks counts too: the kernel held it.
func TestWorkerForgetsNoState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t, overUDP)
		w.dns(1, "10.0.0.1")
		time.Sleep(time.Minute)
		w.track.Set(func() { w.track.Took = 10 * time.Second })
		w.dns(2, "10.0.0.1")
		time.Sleep(time.Second)
		w.dns(1, "10.0.0.1", "10.0.0.2")
		w.track.Set(func() { w.track.Flows = []flowstest.Flow{toDNS(1, "10.0.0.1"), toDNS(1, "10.0.0.2")} })
		w.dns(1, "10.0.0.1")
		time.Sleep(time.Minute)
		w.track.Expect(t, toDNS(1, "10.0.0.1"))
	})
}

// Changes that come during a look are one look, which is about all of them.
func TestWorkerMergesLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t, overUDP)
		for n := range 3 {
			w.dns(n, "10.0.0.1")
		}
		time.Sleep(time.Minute)
		w.track.Set(func() {
			w.track.Took, w.track.Flows = time.Second, []flowstest.Flow{toDNS(1, "10.0.0.1"), toDNS(2, "10.0.0.1")}
		})
		for n := range 3 {
			w.dns(n, "10.0.0.2")
			synctest.Wait() // the first is being looked for
		}
		time.Sleep(time.Minute)
		w.track.Expect(t)
	})
}

// A look that takes long judges by what is synced when it comes to a flow.
func TestWorkerGoesByTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t, overUDP)
		w.track.Took = 10 * time.Second
		w.dns(1, "10.0.0.1")
		time.Sleep(time.Second)
		w.dns(1, "10.0.0.1", "10.0.0.2")
		w.track.Set(func() { w.track.Flows = []flowstest.Flow{toDNS(1, "10.0.0.2"), toDNS(1, "10.0.0.3")} })
		time.Sleep(time.Minute)
		w.track.Expect(t, toDNS(1, "10.0.0.2"))
		if w.deleted != 1 {
			t.Errorf("%d counted as removed, want 1", w.deleted)
		}
	})
}

// What comes back after a look goes in a second one; as long as there is
// something, looks go on, ever more slowly, and end when nothing comes back.
func TestWorkerLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t, overUDP)
		w.dns(1, "10.0.0.1")
		answer := flowstest.Flow{"10.96.0.1:53", "10.9.9.9:999", "10.9.9.9:999"}
		time.Sleep(100 * time.Millisecond)
		w.track.Set(func() { w.track.Flows = []flowstest.Flow{answer} })
		time.Sleep(time.Second)
		w.track.Expect(t)
		if n := w.track.Looks(); n != 3 {
			t.Errorf("%d looks, want 3: one that found something is followed by another", n)
		}
		time.Sleep(time.Hour)
		if n := w.track.Looks(); n != 0 {
			t.Errorf("%d looks, want none when nothing is left", n)
		}

		w.track.Set(func() { w.track.Back = []flowstest.Flow{answer} })
		w.dns(1, "10.0.0.2")
		time.Sleep(flows.SecondLook * flows.QuickLooks * 3 / 2)
		if n := w.track.Looks(); n < flows.QuickLooks-2 || n > flows.QuickLooks+2 {
			t.Errorf("%d looks at first, want about %d", n, flows.QuickLooks)
		}
		time.Sleep(10 * time.Minute)
		w.track.Looks()
		time.Sleep(10 * time.Minute)
		if n := w.track.Looks(); n < 10 || n > 20 {
			t.Errorf("%d looks in ten minutes, want one every %v", n, flows.RetryMax)
		}
		w.track.Set(func() { w.track.Back = nil })
		time.Sleep(10 * time.Minute)
		w.track.Looks()
		time.Sleep(time.Hour)
		w.track.Expect(t)
		if n := w.track.Looks(); n != 0 {
			t.Errorf("%d looks, want none when nothing comes back", n)
		}
	})
}

// What failed is tried again, less and less often, with all that came in meanwhile.
func TestWorkerRetriesMoreAndMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t, overUDP)
		w.track.Flows = []flowstest.Flow{toDNS(1, "10.0.0.9"), toDNS(2, "10.0.0.9")}
		w.track.Fail = errors.New("no buffer space available")
		w.dns(1, "10.0.0.1")
		time.Sleep(4 * time.Second) // after 0.5 s, 1 s more, 2 s more
		w.dns(2, "10.0.0.1")
		if n := w.track.Looks(); n != 4 {
			t.Errorf("%d looks, want 4", n)
		}
		w.track.Set(func() { w.track.Fail = nil })
		time.Sleep(4 * time.Second)
		w.track.Expect(t)
		if n := strings.Count(w.log.String(), "no buffer space available"); n != 4 {
			t.Errorf("logged %d times, want 4:\n%s", n, &w.log)
		}
		w.track.Looks()
		w.dns(1, "10.0.0.2")
		if n := w.track.Looks(); n != 1 {
			t.Errorf("%d looks at once after a change, want 1: nothing fails any more", n)
		}
	})
}

// The worker rests between looks, so that changes without end leave half of a processor.
func TestWorkerRestsBetweenLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t, overUDP)
		w.track.Took = flows.MaxRest
		for i := range 1000 {
			w.dns(1, fmt.Sprintf("10.0.%d.%d", i/250, i%250))
			time.Sleep(10 * time.Millisecond)
		}
		if n := w.track.Looks(); n < 22 || n > 25 {
			t.Errorf("%d looks of %v in 10 s, want 24: 8 without a rest, and then half of the time", n, flows.MaxRest)
		}
	})
}

// Of SCTP the kernel has no flag by which a client that connects again is balanced again: an association of an endpoint
// that left is looked at until it has ended, and then removed.
func TestWorkerAwaitsAssociations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWorker(t, overSCTP)
		track := w.track
		sync := func(endpoint string) {
			s := policytest.Service(policytest.Endpoints(endpoint), func(s *source.Service) { s.Ports[0].Protocol = source.SCTP })
			w.set(s.Key, policy.Resolve(s, nil, policytest.Node(), policy.IPv4))
		}
		sync("10.0.0.1")
		time.Sleep(time.Minute)
		association := flowstest.Flow{"", "10.96.0.10:80", "10.0.0.1:8080"}
		track.Set(func() { track.Flows = []flowstest.Flow{association} })
		sync("10.0.0.2")
		time.Sleep(time.Minute)
		track.Expect(t, association)
		track.Set(func() { track.Ended = true })
		time.Sleep(2 * flows.AwaitLook)
		track.Expect(t)
		time.Sleep(time.Minute)
		track.Looks()
		if time.Sleep(time.Hour); track.Looks() > 0 {
			t.Error("it looks on, and nothing is there")
		}
	})
}
