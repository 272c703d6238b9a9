package proxier

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// conditions parses "10.0.0.1 failed", with any of: passed, failed, failing, returning, drained, overdue, share=n.
func conditions(list ...string) Conditions {
	known := make(Conditions)
	for _, text := range list {
		words := strings.Fields(text)
		var c Condition
		for _, w := range words[1:] {
			switch w {
			case "passed":
				c.Check = source.CheckPassed
			case "failed": // for long
				c.Check, c.Settled = source.CheckFailed, true
			case "failing":
				c.Check = source.CheckFailed
			case "returning":
				c.Returning = true
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

func hashed(s *source.Service)   { s.Scheduler = "sh" }
func nearZone(s *source.Service) { s.TrafficDistribution = source.PreferSameZone }

// otherPort has an endpoint not serve the port http.
func otherPort(i int) func(*source.Service) {
	return func(s *source.Service) { s.Endpoints[i].Ports = map[string]uint16{s.Ports[0].Name: 0} }
}

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
		{"no result yet, the other fails", edits{probed, testEndpoints(one, two)}, conditions(two + " failed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"no result yet, the other fails, refuse", edits{probedRefuse, testEndpoints(one, two)}, conditions(two + " failed"), "10.0.0.1:8080"},
		{"no result yet, by tiers with one that fails", edits{probed, testEndpoints(one+" tier=1", two)}, conditions(two + " failed"), "10.0.0.2:8080"},
		{"no result yet, one that terminates passes", edits{probed, testEndpoints(one, two+" terminating")}, conditions(two + " passed"), "10.0.0.1:8080"},
		{"no result yet, and one that terminates", edits{probed, testEndpoints(one, two+" terminating")}, nil, "10.0.0.1:8080"},
		{"all fail, and one terminates", edits{probed, testEndpoints(one, two+" terminating")}, conditions(one+" failed", two+" failed"), "10.0.0.1:8080"},
		{"all terminate and fail", edits{probed, testEndpoints(one+" terminating", two+" terminating")}, conditions(one+" failed", two+" failed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"all of a family fail", edits{probed, testEndpoints(one, two, "fd00::1")}, conditions(one+" failed", two+" failed", "fd00::1 passed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"all that serve the port fail", edits{probed, testEndpoints(one, two), otherPort(1)}, conditions(one+" failed", two+" passed"), "10.0.0.1:8080"},
		{"near within each tier", edits{nearZone, minUp(2), testEndpoints(one+" zone=b", two+" tier=1 zone=a", three+" tier=1 zone=b")}, nil, "10.0.0.1:8080 10.0.0.2:8080"},
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
		{"slow start with a scheduler of no shares", edits{slowly, hashed, testEndpoints(one+" weight=3", two)}, conditions(one + " share=2"), "10.0.0.1:8080*3 10.0.0.2:8080"},
		{"no slow start", edits{testEndpoints(one)}, conditions(one + " share=1"), "10.0.0.1:8080"},
		{"backup", edits{testEndpoints(one, two+" tier=1")}, nil, "10.0.0.1:8080"},
		{"backup in use", edits{probed, testEndpoints(one, two+" tier=1")}, conditions(one+" failed", two+" passed"), "10.0.0.2:8080"},
		{"backup beside too few", edits{minUp(2), testEndpoints(one, two+" tier=1", three+" tier=2")}, nil, "10.0.0.1:8080 10.0.0.2:8080"},
		{"never enough", edits{minUp(9), testEndpoints(one, two+" tier=1", three+" tier=9")}, nil, "10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080"},
		{"all fail, with a backup", edits{probed, testEndpoints(one, two+" tier=1")}, conditions(one+" failed", two+" failed"), "10.0.0.1:8080"},
		{"disabled", edits{testEndpoints(one, two+" disabled")}, nil, "10.0.0.1:8080"},

		{"one passes again, and another may", edits{probed, testEndpoints(one, two, three)}, conditions(one+" passed returning", two+" failing returning", three+" passed returning"), "10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080"},
		{"a third one failed before they did", edits{probed, testEndpoints(one, two, three)}, conditions(one+" passed returning", two+" failing returning", three+" failed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"a third one passes for longer", edits{probed, testEndpoints(one, two, three)}, conditions(one+" passed returning", two+" failing returning", three+" passed"), "10.0.0.1:8080 10.0.0.3:8080"},
		{"a third one has no result", edits{probed, testEndpoints(one, two, three)}, conditions(one+" passed returning", two+" failing returning"), "10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080"},
		{"one without a result, and nobody may follow", edits{probed, testEndpoints(one, two)}, conditions(one + " passed returning"), "10.0.0.1:8080"},
		{"one passes again, refuse", edits{probedRefuse, testEndpoints(one, two)}, conditions(one+" passed returning", two+" failing returning"), "10.0.0.1:8080"},
		{"another one may, which is drained", edits{probed, testEndpoints(one, two)}, conditions(one+" passed returning", two+" failing returning drained"), "10.0.0.1:8080"},
		{"the one that passes is drained", edits{probed, testEndpoints(one, two, three)}, conditions(one+" passed drained returning", two+" failing returning", three+" failing"), "10.0.0.2:8080 10.0.0.3:8080"},
		{"the first tier may follow its backup", edits{probed, testEndpoints(one, two+" tier=1")}, conditions(one+" failing returning", two+" passed returning"), "10.0.0.1:8080"},
		{"the first tier failed before its backup", edits{probed, testEndpoints(one, two+" tier=1", three+" tier=1")}, conditions(one+" failed", two+" passed returning", three+" failing returning"), "10.0.0.2:8080 10.0.0.3:8080"},
		{"enough of the first tier may follow", edits{probed, minUp(2), testEndpoints(one, two, three+" tier=1")}, conditions(one+" passed returning", two+" failing returning", three+" passed returning"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"one that terminates passes again", edits{probed, testEndpoints(one, two+" terminating")}, conditions(one+" failing returning", two+" passed returning"), "10.0.0.1:8080"},
		{"all terminate, and one passes again", edits{probed, testEndpoints(one+" terminating", two+" terminating")}, conditions(one+" failing returning", two+" passed returning"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"all of the other family may follow", edits{probed, testEndpoints(one, two, "fd00::1")}, conditions(one+" passed returning", two+" failing", "fd00::1 failing returning"), "10.0.0.1:8080"},
		{"another one may that does not serve the port", edits{probed, testEndpoints(one, two, three), otherPort(1)}, conditions(one+" passed returning", two+" failing returning", three+" failing"), "10.0.0.1:8080"},
		{"another one passes for longer at another port", edits{probed, testEndpoints(one, two, three), otherPort(2)}, conditions(one+" passed returning", two+" failing returning", three+" passed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"one may follow, in no slow start", edits{probed, slowly, testEndpoints(one, two)}, conditions(one+" passed returning share=2", two+" failing returning"), "10.0.0.1:8080*2 10.0.0.2:8080*10"},
	}
	for _, tt := range tests {
		r := Resolve(testService(tt.svc...), tt.known, testNode(), IPv4)
		if got := strings.TrimSuffix(show(r.Frontends[0].Outside), " masquerade everyone"); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A step of one endpoint changes its weight alone, and no settled one, by which backends lay it out.
func TestSettledWeights(t *testing.T) {
	one, large := testEndpoints("10.0.0.1 weight=3", "10.0.0.2"), testEndpoints("10.0.0.1 weight=30000", "10.0.0.2")
	for _, tt := range []struct {
		svc   []func(*source.Service)
		share uint8
		want  string
	}{
		{[]func(*source.Service){slowly, one}, 0, "30/30 10/10"},
		{[]func(*source.Service){slowly, one}, 1, "3/30 10/10"},
		{[]func(*source.Service){slowly, one}, 9, "27/30 10/10"},
		{[]func(*source.Service){slowly, large}, 1, "3000/30000 1/1"},
		{[]func(*source.Service){slowly, hashed, one}, 1, "3/0 1/0"},
		{[]func(*source.Service){one}, 1, "3/0 1/0"},
	} {
		r := Resolve(testService(tt.svc...), conditions(fmt.Sprint("10.0.0.1 share=", tt.share)), testNode(), IPv4)
		var got []string
		for _, target := range r.Pools[0].Targets {
			got = append(got, fmt.Sprintf("%d/%d", target.Weight, target.Settled))
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%d tenths: weights and settled ones %s, want %s", tt.share, text, tt.want)
		}
	}
}

// A local policy uses what is in use of this node: where others are up or of lower tiers, endpoints
// that fail, have no result or are backups are not.
func TestResolveConditionsLocal(t *testing.T) {
	both := []string{"10.0.0.1 @here", "10.0.0.2 @there"}
	for _, tt := range []struct {
		name      string
		endpoints []string
		known     Conditions
		want      Action
		local     int
		why       string
	}{
		{"up", both, conditions("10.0.0.1 passed", "10.0.0.2 passed"), Balance, 1, ""},
		{"fails", both, conditions("10.0.0.1 failed", "10.0.0.2 passed"), Drop, 0, "policy local: no usable endpoint on this node: 1 down; usable elsewhere: 1"},
		{"all fail", both, conditions("10.0.0.1 failed", "10.0.0.2 failed"), Balance, 1, ""},
		{"may follow", both, conditions("10.0.0.1 failing returning", "10.0.0.2 passed returning"), Balance, 1, ""},
		{"terminates here, and may follow", []string{"10.0.0.1 @here terminating", "10.0.0.2 @there"}, conditions("10.0.0.1 failing returning", "10.0.0.2 passed returning"), Balance, 0, ""},
		{"terminates here, and all fail", []string{"10.0.0.1 @here terminating", "10.0.0.2 @there"}, conditions("10.0.0.1 failed", "10.0.0.2 failed"), Balance, 0, ""},
		{"no result here", both, conditions("10.0.0.2 passed"), Drop, 0, "policy local: no usable endpoint on this node: 1 checking; usable elsewhere: 1"},
		{"no result", both, nil, Balance, 1, ""},
		{"no result here, fails there", both, conditions("10.0.0.2 failed"), Balance, 1, ""},
		{"a backup here", []string{"10.0.0.1 @here tier=1", "10.0.0.2 @there"}, conditions("10.0.0.1 passed", "10.0.0.2 passed"), Drop, 0,
			"policy local: no usable endpoint on this node: 1 backup; usable elsewhere: 1"},
		{"a backup that is needed", []string{"10.0.0.1 @here tier=1", "10.0.0.2 @there"}, conditions("10.0.0.1 passed", "10.0.0.2 failed"), Balance, 1, ""},
		{"terminates here", []string{"10.0.0.1 @here terminating", "10.0.0.2 @there"}, conditions("10.0.0.1 passed", "10.0.0.2 passed"), Balance, 0, ""},
		{"terminates here, without a result", []string{"10.0.0.1 @here terminating", "10.0.0.2 @there"}, conditions("10.0.0.2 passed"), Drop, 0,
			"policy local: no usable endpoint on this node: 1 checking; usable elsewhere: 1"},
		{"a backup that terminates here", []string{"10.0.0.1 @here tier=1 terminating", "10.0.0.2 @there"}, conditions("10.0.0.1 passed", "10.0.0.2 passed"), Drop, 0,
			"policy local: no usable endpoint on this node: 1 not ready; usable elsewhere: 1"},
		{"all terminate, without a result", []string{"10.0.0.1 @here terminating"}, nil, Balance, 0, ""},
	} {
		svc := testService(probed, externalLocal, testEndpoints(tt.endpoints...))
		f := Resolve(svc, tt.known, testNode(), IPv4).Frontends[0]
		if got := f.Outside.Action; got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if got := Why(Subject{svc, tt.known}, testNode(), f, f.Outside).String(); got != tt.why {
			t.Errorf("%s: because: %s\nwant: %s", tt.name, got, tt.why)
		}
		if got := localReady(Subject{svc, tt.known}, testNode()); got.IPv4 != tt.local {
			t.Errorf("%s: %d local endpoints, want %d", tt.name, got.IPv4, tt.local)
		}
	}
}

// Whether no endpoint passes is for each family, and each port that only some serve.
func TestAllFailByFamily(t *testing.T) {
	type edits = []func(*source.Service)
	for _, tt := range []struct {
		name  string
		svc   edits
		known Conditions
		want  string // of the service, IPv4 and IPv6
	}{
		{"one family", edits{probed, testEndpoints("10.0.0.1", "fd00::1")}, conditions("10.0.0.1 failed", "fd00::1 passed"), "use_all use_all -"},
		{"a family without an address", edits{probed, testEndpoints("10.0.0.1", "fd00::1")}, conditions("10.0.0.1 passed", "fd00::1 failed"), "- - use_all"},
		{"a port", edits{probed, testEndpoints("10.0.0.1", "10.0.0.2"), otherPort(1)}, conditions("10.0.0.1 failed", "10.0.0.2 passed"), "use_all use_all -"},
		{"nobody has a result", edits{probed, testEndpoints("10.0.0.1")}, nil, "- - -"},
		{"one has no result", edits{probed, testEndpoints("10.0.0.1", "10.0.0.2")}, conditions("10.0.0.1 failed"), "use_all use_all -"},
		{"one passes again", edits{probed, testEndpoints("10.0.0.1", "10.0.0.2")}, conditions("10.0.0.1 passed returning", "10.0.0.2 failing returning"), "- - -"},
		{"one has no result, refuse", edits{probedRefuse, testEndpoints("10.0.0.1", "10.0.0.2")}, conditions("10.0.0.1 failed"), "- - -"},
	} {
		s := Subject{testService(tt.svc...), tt.known}
		var got []string
		for _, setting := range []string{s.AllFail(), s.allFail(IPv4, &s.Ports[0]), s.allFail(IPv6, &s.Ports[0])} {
			got = append(got, cmp.Or(setting, "-"))
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
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
