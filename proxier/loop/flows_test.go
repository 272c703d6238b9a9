package loop

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/flows/flowstest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// A half-open connection to an endpoint that left has a moment to be established, and then goes.
func TestLoopAwaitsHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		track := &flowstest.Tracking{Opening: true}
		l := start(t, &kernel{}, func(c *Config) { c.Flows.Tracking = track })
		apply := func(endpoint string) {
			u := policytest.File("web", "web 10.96.0.10:80")
			u.Services[0] = policytest.Service(policytest.Endpoints(endpoint))
			l.Apply(policytest.Set(u))
		}
		apply("10.0.0.1")
		l.Synced("file")
		time.Sleep(time.Minute)
		half := flowstest.Flow{"", "10.96.0.10:80", "10.0.0.1:8080"}
		track.Set(func() { track.Flows = []flowstest.Flow{half} })
		apply("10.0.0.2")
		time.Sleep(600 * time.Millisecond)
		track.Expect(t, half)
		time.Sleep(1800 * time.Millisecond)
		track.Expect(t)
	})
}

// startLoop runs a Loop of one UDP service, whose first looks are over.
func startLoop(t *testing.T, k *kernel) (*Loop, *flowstest.Tracking) {
	track := &flowstest.Tracking{}
	l := start(t, k, func(c *Config) { c.Flows.Tracking = track })
	l.Apply(policytest.Set(dnsFile("10.0.0.1")))
	l.Synced("file")
	time.Sleep(time.Second)
	if n := track.Looks(); n != 2 {
		t.Errorf("%d looks at the start, want 2", n)
	}
	return l, track
}

func dnsFile(endpoints ...string) source.Unit {
	u := policytest.File("dns", "x 10.96.0.10:53")
	u.Services[0] = policytest.DNS(policytest.Endpoints(endpoints...))
	return u
}

// A second look follows each change, of its protocol.
func TestLoopLooksForFlowsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		track := &flowstest.Tracking{}
		l := start(t, &kernel{}, func(c *Config) { c.Flows.Tracking = track })
		l.Synced("file")
		synctest.Wait()
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		time.Sleep(time.Second)
		if n := track.Looks(); n != 2 {
			t.Errorf("%d looks for a TCP service, want 2", n)
		}
		l.Apply(policytest.Set(dnsFile("10.0.0.1")))
		if n := track.Looks(); n != 1 {
			t.Errorf("%d looks after a change, want 1", n)
		}
		time.Sleep(time.Second)
		if n := track.Looks(); n != 1 {
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
		track.Set(func() { track.Stuck = make(chan struct{}) })
		l.Apply(policytest.Set(dnsFile("10.0.0.2")))
		k.expect(t, "web")
		l.Apply(policytest.Set(dnsFile("10.0.0.3"), policytest.File("a", "x 10.96.0.1:80")))
		k.expect(t, "web x")
		if n := track.Looks(); n != 2 {
			t.Errorf("%d looks, want those of UDP and TCP that are stuck", n)
		}
		close(track.Stuck)
		if n := track.Looks(); n != 1 {
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
		{"asked for", func(l *Loop, _ *kernel) { l.FullSync() }, 2},
		{"another node", func(l *Loop, _ *kernel) {
			l.SetNode(policytest.Node(func(n *policy.Node) { n.LocalInterfaces = []string{"lo"} }))
		}, 2},
		{"the same node", func(l *Loop, _ *kernel) { l.SetNode(policytest.Node()) }, 0},
		{"another backend", func(l *Loop, k *kernel) { l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: &kernel{}}) }, 2},
		{"the same backend", func(l *Loop, k *kernel) { l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: k}) }, 0},
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
				track.Set(func() { track.Flows = []flowstest.Flow{{"", "10.96.0.10:53", "10.0.0.9:53"}} })
				tt.do(l, k)
				time.Sleep(500 * time.Millisecond)
				synctest.Wait()
				track.Set(func() {
					for _, q := range track.Queries {
						if len(q.From)+len(q.To) > 0 {
							t.Errorf("asked for %v, want all", q)
						}
					}
				})
				if n := track.Looks(); n != tt.want {
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
		track.Set(func() { track.Flows = []flowstest.Flow{{"", "10.96.0.10:53", "10.0.0.1:5353"}} })
		k.failWith(errors.New("no"))
		l.SetNode(policytest.Node(func(n *policy.Node) { n.Zone = "b" }))
		synctest.Wait()
		l.Apply(policytest.Gone("dns"))
		synctest.Wait()
		k.failWith(nil)
		time.Sleep(time.Minute)
		track.Expect(t)
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
		left []flowstest.Flow
	}{
		{"client", policytest.Node(), nil},
		{"host process", policytest.Node(owns("10.9.9.9")), []flowstest.Flow{{"", "192.0.2.1:30053", "10.0.0.2:5353"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, track := startLoop(t, &kernel{})
				u := dnsFile("10.0.0.1 @here", "10.0.0.2 @there")
				u.Services[0].ExternalTrafficPolicy = source.Local
				l.Apply(policytest.Set(u))
				l.SetNode(tt.node)
				time.Sleep(time.Second)
				track.Set(func() { track.Flows = []flowstest.Flow{{"", "192.0.2.1:30053", "10.0.0.2:5353"}} })
				l.FullSync()
				track.Expect(t, tt.left...)
			})
		})
	}
}

// What is closed is looked for twice: a connection may have been on its way. An endpoint that
// is back by then, or that another service has there, keeps what it has; nothing is remembered.
func TestCloserLooksTwice(t *testing.T) {
	for _, back := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			track := &flowstest.Tracking{}
			conn := flowstest.Flow{"", "10.96.0.10:80", "10.0.0.1:8080"}
			k := &kernel{}
			about := knower{make(chan *source.Service, 9), make(chan policy.Conditions, 9)}
			about.known <- policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed")
			var log strings.Builder
			l := start(t, k, func(c *Config) {
				c.Conditions, c.Flows.Tracking, c.Log = about, track, slog.New(slog.NewTextHandler(&log, nil))
			})
			svc := policytest.Service(policytest.Probed, policytest.Closing(source.CloseFailed), policytest.Endpoints("10.0.0.1", "10.0.0.2"))
			l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{svc}}}})
			l.Synced("file")
			time.Sleep(time.Minute)
			if n := track.Looks(); n != 2 {
				t.Errorf("%d looks for a service that appears, want 2", n)
			}
			track.Set(func() { track.Flows = []flowstest.Flow{conn} })
			about.known <- policytest.Conditions("10.0.0.1 failed", "10.0.0.2 passed")
			l.Reconsider(svc.Key)
			track.Expect(t)
			track.Set(func() { track.Flows = []flowstest.Flow{conn} })
			if back {
				about.known <- policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed")
				l.Reconsider(svc.Key)
			}
			time.Sleep(time.Minute)
			if back {
				track.Expect(t, conn)
			} else {
				track.Expect(t)
			}
			if got := strings.Count(log.String(), "closed connections"); got == 0 || back && got != 1 {
				t.Errorf("told %d times:\n%s", got, &log)
			}
			if track.Challenged == 0 {
				t.Error("no client was told")
			}
		})
	}
}

// A connection that is over is removed as others are, without a word to its client or the log.
func TestEndedConnectionIsRemovedSilently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		track := &flowstest.Tracking{Ended: true, Flows: []flowstest.Flow{{"", "10.96.0.10:80", "10.0.0.1:8080"}}}
		about := knower{make(chan *source.Service, 9), make(chan policy.Conditions, 9)}
		about.known <- policytest.Conditions("10.0.0.1 failed", "10.0.0.2 passed")
		var log strings.Builder
		l := start(t, &kernel{}, func(c *Config) {
			c.Conditions, c.Flows.Tracking, c.Log = about, track, slog.New(slog.NewTextHandler(&log, nil))
		})
		svc := policytest.Service(policytest.Probed, policytest.Closing(source.CloseFailed), policytest.Endpoints("10.0.0.1", "10.0.0.2"))
		l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{svc}}}})
		l.Synced("file")
		time.Sleep(time.Minute)
		track.Expect(t)
		if track.Challenged > 0 || strings.Contains(log.String(), "closed connections") {
			t.Errorf("%d clients are told:\n%s", track.Challenged, &log)
		}
	})
}
