package loop

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier/flows/flowstest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// reconsidered starts a Loop with one service, of which known is known at first.
func reconsidered(t *testing.T, k *kernel, svc *source.Service, known policy.Conditions, edit func(*Config)) (*Loop, knower) {
	about := knower{make(chan *source.Service, 9), make(chan policy.Conditions, 9)}
	about.known <- known
	l := start(t, k, func(c *Config) { c.Conditions = about }, edit)
	l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{svc}}}})
	l.Synced("file")
	synctest.Wait()
	return l, about
}

// What is known of endpoints is in what others are shown of services, and is forgotten where it
// is true no more.
func TestConditionsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, svc := &kernel{}, policytest.Service(policytest.Endpoints("10.0.0.1", "10.0.0.2"))
		drained := policytest.Conditions("10.0.0.1 drained")
		l, about := reconsidered(t, k, svc, drained, func(*Config) {})
		expect := func(when string, known policy.Conditions, targets string) {
			t.Helper()
			synctest.Wait()
			if got := l.Snapshot().Services[0].Conditions; !maps.Equal(got, known) {
				t.Errorf("%s: %v is known, want %v", when, got, known)
			}
			for _, r := range []*policy.Resolved{k.services[svc.Key], l.Snapshot().Snapshot.Resolve().Resolved[0]} {
				if got := fmt.Sprint(r.Pools[0].Targets); got != targets {
					t.Errorf("%s: %s, want %s", when, got, targets)
				}
			}
		}
		expect("drained", drained, "[10.0.0.2:8080]")
		about.known <- nil
		l.Reconsider(svc.Key)
		expect("not drained any more", nil, "[10.0.0.1:8080 10.0.0.2:8080]")
		node := *policytest.Node()
		node.Zone = "another"
		l.SetNode(&node)
		l.FullSync()
		time.Sleep(time.Minute)
		expect("of another node", nil, "[10.0.0.1:8080 10.0.0.2:8080]")
	})
}

// A health check node port tells of an endpoint whose check fails at once, and of one that
// passes again when the kernel sends to it.
func TestChecksReachHealthCheckNodePorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, told := &kernel{}, atomic.Int64{}
		svc := policytest.Service(policytest.Probed, policytest.ExternalLocal, policytest.Endpoints("10.0.0.1 @here", "10.0.0.2 @there"))
		svc.HealthCheckNodePort = 32000
		passed, failed := policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed"), policytest.Conditions("10.0.0.1 failed", "10.0.0.2 passed")
		l, about := reconsidered(t, k, svc, passed, func(c *Config) {
			observe(c).nodeHealth = func(list []NodeHealth) { told.Store(int64(list[0].LocalEndpoints.IPv4)) }
		})
		expect := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := told.Load(); got != want {
				t.Errorf("%s: %d local endpoints, want %d", when, got, want)
			}
		}
		expect("at first", 1)
		about.known <- failed
		l.Reconsider(svc.Key)
		expect("it fails", 0)
		time.Sleep(time.Minute)
		k.mu.Lock()
		k.took = 10 * time.Second
		k.mu.Unlock()
		about.known <- passed
		l.Reconsider(svc.Key)
		expect("it passes, and the kernel does not have it", 0)
		time.Sleep(20 * time.Second)
		expect("the kernel has it", 1)
	})
}

// Of a service that is disabled nothing on this node is ready.
func TestDisabledIsNotHealthy(t *testing.T) {
	svc := policytest.Service(policytest.ExternalLocal, policytest.Endpoints("10.0.0.1 @here"), func(s *source.Service) { s.Disabled = true })
	if got := policy.LocalReady(policy.Subject{Service: svc}, policytest.Node()); got != (policy.PerFamily{}) {
		t.Errorf("local endpoints: %+v", got)
	}
}

// A connection that was not answered is sent to another endpoint without a word to its client,
// which asks again anyway, or to the log.
func TestUnansweredConnectionIsMovedSilently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		track := &flowstest.Tracking{Unreplied: true, Flows: []flowstest.Flow{{"", "10.96.0.10:80", "10.0.0.1:8080"}}}
		svc := policytest.Service(policytest.Probed, policytest.Closing(source.CloseFailed), policytest.Endpoints("10.0.0.1", "10.0.0.2"))
		var log strings.Builder
		reconsidered(t, &kernel{}, svc, policytest.Conditions("10.0.0.1 failed", "10.0.0.2 passed"), func(c *Config) {
			c.Flows.Tracking, c.Log = track, slog.New(slog.NewTextHandler(&log, nil))
		})
		time.Sleep(time.Minute)
		track.Expect(t)
		if track.Challenged > 0 || strings.Contains(log.String(), "closed connections") {
			t.Errorf("%d clients are told:\n%s", track.Challenged, &log)
		}
	})
}

// knower is a Conditioner of one service.
type knower struct {
	used  chan *source.Service
	known chan policy.Conditions // returned in turn
}

func (k knower) Use(_ source.Key, svc *source.Service) policy.Conditions {
	k.used <- svc
	if svc == nil {
		return nil
	}
	return <-k.known
}

func (k knower) Conditions(source.Key) policy.Conditions { return <-k.known }

// What is known of endpoints is in the first sync of their service, and in another one when more is known.
func TestLoopReconsiders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		about := knower{make(chan *source.Service, 9), make(chan policy.Conditions, 9)}
		about.known <- policytest.Conditions("10.0.0.1 failed", "10.0.0.2 passed")
		l := start(t, k, func(c *Config) { c.Conditions = about })
		svc := policytest.Service(policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2"))
		l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{svc}}}})
		l.Synced("file")
		synctest.Wait()
		if got := fmt.Sprint(k.services[svc.Key].Pools[0].Targets); got != "[10.0.0.2:8080]" {
			t.Errorf("at first: %s", got)
		}
		about.known <- policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed")
		l.Reconsider(svc.Key, source.Key{Namespace: "default", Name: "unknown"})
		synctest.Wait()
		if got := fmt.Sprint(k.services[svc.Key].Pools[0].Targets); got != "[10.0.0.1:8080 10.0.0.2:8080]" {
			t.Errorf("when more is known: %s", got)
		}
		if got := len(about.used); got != 1 {
			t.Errorf("Use was called %d times", got)
		}
		if got := strings.Join(k.syncs, ", "); got != "full, web" {
			t.Errorf("syncs: %s", got)
		}
	})
}
