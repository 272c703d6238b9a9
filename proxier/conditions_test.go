package proxier

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// conditions parses "10.0.0.1 failed", with any of: passed, failed, drained, overdue, share=n.
func conditions(list ...string) Conditions {
	known := make(Conditions)
	for _, text := range list {
		words := strings.Fields(text)
		var c Condition
		for _, w := range words[1:] {
			switch w {
			case "passed":
				c.Check = CheckPassed
			case "failed":
				c.Check = CheckFailed
			case "overdue":
				c.Overdue = true
			case "drained":
				c.Drained = true
			default:
				fmt.Sscanf(w, "share=%d", &c.Share)
			}
		}
		known[netip.AddrPortFrom(netip.MustParseAddr(words[0]), 8080)] = c
	}
	return known
}

func probed(s *source.Service) { s.HealthCheck = &source.HealthCheck{Type: source.CheckTCP} }
func probedRefuse(s *source.Service) {
	s.HealthCheck = &source.HealthCheck{Type: source.CheckTCP, Refuse: true}
}
func slowly(s *source.Service)             { s.SlowStart = time.Minute }
func minUp(n uint16) func(*source.Service) { return func(s *source.Service) { s.MinUp = n } }

func TestResolveConditions(t *testing.T) {
	type edits = []func(*source.Service)
	one, two, three := "10.0.0.1", "10.0.0.2", "10.0.0.3"
	tests := []struct {
		name  string
		svc   edits
		known Conditions
		want  string
	}{
		{"one fails", edits{probed, testEndpoints(one, two)}, conditions(one+" failed", two+" passed"), "10.0.0.2:8080"},
		{"without a check nothing fails", edits{testEndpoints(one, two)}, conditions(one + " failed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"no result yet, and another passes", edits{probed, testEndpoints(one, two)}, conditions(two + " passed"), "10.0.0.2:8080"},
		{"no result yet, the other fails", edits{probed, testEndpoints(one, two)}, conditions(two + " failed"), "10.0.0.1:8080"},
		{"no result at all", edits{probed, testEndpoints(one, two)}, nil, "10.0.0.1:8080 10.0.0.2:8080"},
		{"all fail", edits{probed, testEndpoints(one, two)}, conditions(one+" failed", two+" failed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"all fail, refuse", edits{probedRefuse, testEndpoints(one, two)}, conditions(one+" failed", two+" failed"), "reject"},
		{"all fail but one that is drained", edits{probed, testEndpoints(one, two)}, conditions(one+" failed", two+" passed drained"), "10.0.0.1:8080"},
		{"all fail but one that is not ready", edits{probed, testEndpoints(one, two+" notready")}, conditions(one+" failed", two+" passed"), "10.0.0.1:8080"},
		{"all fail but one that terminates", edits{probed, testEndpoints(one, two+" terminating")}, conditions(one+" failed", two+" passed"), "10.0.0.2:8080"},
		{"drained", edits{testEndpoints(one, two)}, conditions(one + " drained"), "10.0.0.2:8080"},
		{"all drained", edits{testEndpoints(one)}, conditions(one + " drained"), "reject"},
		{"slow start", edits{slowly, testEndpoints(one, two+" weight=3")}, conditions(one+" share=2", two+" share=1"), "10.0.0.1:8080*2 10.0.0.2:8080*3"},
		{"slow start that is over", edits{slowly, testEndpoints(one, two)}, conditions(one + " share=9"), "10.0.0.1:8080*9 10.0.0.2:8080*10"},
		{"slow start of large weights", edits{slowly, testEndpoints(one+" weight=60000", two)}, conditions(one+" share=5", two+" share=5"), "10.0.0.1:8080*30000 10.0.0.2:8080"},
		{"no slow start", edits{testEndpoints(one)}, conditions(one + " share=1"), "10.0.0.1:8080"},
		{"backup", edits{testEndpoints(one, two+" tier=1")}, nil, "10.0.0.1:8080"},
		{"backup in use", edits{probed, testEndpoints(one, two+" tier=1")}, conditions(one+" failed", two+" passed"), "10.0.0.2:8080"},
		{"backup beside too few", edits{minUp(2), testEndpoints(one, two+" tier=1", three+" tier=2")}, nil, "10.0.0.1:8080 10.0.0.2:8080"},
		{"never enough", edits{minUp(9), testEndpoints(one, two+" tier=1", three+" tier=9")}, nil, "10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080"},
		{"all fail, with a backup", edits{probed, testEndpoints(one, two+" tier=1")}, conditions(one+" failed", two+" failed"), "10.0.0.1:8080"},
		{"disabled", edits{testEndpoints(one, two+" disabled")}, nil, "10.0.0.1:8080"},
	}
	for _, tt := range tests {
		r := Resolve(testService(tt.svc...), tt.known, testNode(), IPv4)
		if got := strings.TrimSuffix(show(r.Frontends[0].Outside), " masquerade everyone"); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A local policy chooses among the endpoints of this node: they fail alone only if others are up.
func TestResolveConditionsLocal(t *testing.T) {
	svc := testService(probed, externalLocal, testEndpoints("10.0.0.1 @here", "10.0.0.2 @there"))
	for _, tt := range []struct {
		known Conditions
		want  Action
		local int
	}{
		{conditions("10.0.0.1 passed", "10.0.0.2 passed"), Balance, 1},
		{conditions("10.0.0.1 failed", "10.0.0.2 passed"), Drop, 0},
		{conditions("10.0.0.1 failed", "10.0.0.2 failed"), Balance, 1},
	} {
		if got := Resolve(svc, tt.known, testNode(), IPv4).Frontends[0].Outside.Action; got != tt.want {
			t.Errorf("%v: %s, want %s", tt.known, got, tt.want)
		}
		if got := localReady(Subject{svc, tt.known}, testNode()); got.IPv4 != tt.local {
			t.Errorf("%v: %d local endpoints, want %d", tt.known, got.IPv4, tt.local)
		}
	}
}

// An endpoint that gets no new connections keeps those that it has.
func TestConditionsKeep(t *testing.T) {
	svc := testService(probed, testEndpoints("10.0.0.1", "10.0.0.2", "10.0.0.3 disabled"))
	pool := Resolve(svc, conditions("10.0.0.1 failed", "10.0.0.2 passed"), testNode(), IPv4).Pools[0]
	if got := fmt.Sprint(pool.Kept); got != "[10.0.0.1:8080 10.0.0.3:8080]" {
		t.Errorf("kept: %s", got)
	}
}

// A service that is disabled has nothing in the kernel.
func TestResolveDisabled(t *testing.T) {
	svc := testService(testEndpoints("10.0.0.1"), func(s *source.Service) { s.Disabled = true })
	if r := Resolve(svc, nil, testNode(), IPv4); r != nil {
		t.Errorf("resolved to %+v", r)
	}
}

// knower is a Conditioner of one service.
type knower struct {
	used  chan *source.Service
	known chan Conditions // returned in turn
}

func (k knower) Use(_ source.Key, svc *source.Service) Conditions {
	k.used <- svc
	if svc == nil {
		return nil
	}
	return <-k.known
}

func (k knower) Conditions(source.Key) Conditions           { return <-k.known }
func (knower) Details(source.Key) map[netip.AddrPort]Detail { return nil }

// What is known of endpoints is in the first sync of their service, and in another one when more is known.
func TestLoopReconsiders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		about := knower{make(chan *source.Service, 9), make(chan Conditions, 9)}
		about.known <- conditions("10.0.0.1 failed", "10.0.0.2 passed")
		l := start(t, k, func(c *Config) { c.Conditions = about })
		svc := testService(probed, testEndpoints("10.0.0.1", "10.0.0.2"))
		l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{svc}}}})
		l.Synced("file")
		synctest.Wait()
		if got := fmt.Sprint(k.services[svc.Key].Pools[0].Targets); got != "[10.0.0.2:8080]" {
			t.Errorf("at first: %s", got)
		}
		about.known <- conditions("10.0.0.1 passed", "10.0.0.2 passed")
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
