package policy_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

func hashed(s *source.Service)   { s.Scheduler = "sh" }
func nearZone(s *source.Service) { s.TrafficDistribution = source.PreferSameZone }

func TestResolveConditions(t *testing.T) {
	type edits = []func(*source.Service)
	one, two, three := "10.0.0.1", "10.0.0.2", "10.0.0.3"
	tests := []struct {
		name  string
		svc   edits
		known policy.Conditions
		want  string
	}{
		{"one fails", edits{policytest.Probed, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" passed"), "10.0.0.2:8080"},
		{"without a check nothing fails", edits{policytest.Endpoints(one, two)}, policytest.Conditions(one + " failed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"no result yet, and another passes", edits{policytest.Probed, policytest.Endpoints(one, two)}, policytest.Conditions(two + " passed"), "10.0.0.2:8080"},
		{"no result yet, the other fails", edits{policytest.Probed, policytest.Endpoints(one, two)}, policytest.Conditions(two + " failed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"no result yet, the other fails, refuse", edits{policytest.ProbedRefuse, policytest.Endpoints(one, two)}, policytest.Conditions(two + " failed"), "10.0.0.1:8080"},
		{"no result yet, by tiers with one that fails", edits{policytest.Probed, policytest.Endpoints(one+" tier=1", two)}, policytest.Conditions(two + " failed"), "10.0.0.2:8080"},
		{"no result yet, one that terminates passes", edits{policytest.Probed, policytest.Endpoints(one, two+" terminating")}, policytest.Conditions(two + " passed"), "10.0.0.1:8080"},
		{"no result yet, and one that terminates", edits{policytest.Probed, policytest.Endpoints(one, two+" terminating")}, nil, "10.0.0.1:8080"},
		{"all fail, and one terminates", edits{policytest.Probed, policytest.Endpoints(one, two+" terminating")}, policytest.Conditions(one+" failed", two+" failed"), "10.0.0.1:8080"},
		{"all terminate and fail", edits{policytest.Probed, policytest.Endpoints(one+" terminating", two+" terminating")}, policytest.Conditions(one+" failed", two+" failed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"all of a family fail", edits{policytest.Probed, policytest.Endpoints(one, two, "fd00::1")}, policytest.Conditions(one+" failed", two+" failed", "fd00::1 passed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"all that serve the port fail", edits{policytest.Probed, policytest.Endpoints(one, two), policytest.OtherPort(1)}, policytest.Conditions(one+" failed", two+" passed"), "10.0.0.1:8080"},
		{"near within each tier", edits{nearZone, policytest.MinUp(2), policytest.Endpoints(one+" zone=b", two+" tier=1 zone=a", three+" tier=1 zone=b")}, nil, "10.0.0.1:8080 10.0.0.2:8080"},
		{"no result at all", edits{policytest.Probed, policytest.Endpoints(one, two)}, nil, "10.0.0.1:8080 10.0.0.2:8080"},
		{"all fail", edits{policytest.Probed, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" failed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"all fail, refuse", edits{policytest.ProbedRefuse, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" failed"), "reject"},
		{"all fail but one that is drained", edits{policytest.Probed, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" passed drained"), "10.0.0.1:8080"},
		{"all fail but one that is not ready", edits{policytest.Probed, policytest.Endpoints(one, two+" notready")}, policytest.Conditions(one+" failed", two+" passed"), "10.0.0.1:8080"},
		{"all fail but one that terminates", edits{policytest.Probed, policytest.Endpoints(one, two+" terminating")}, policytest.Conditions(one+" failed", two+" passed"), "10.0.0.2:8080"},
		{"drained", edits{policytest.Endpoints(one, two)}, policytest.Conditions(one + " drained"), "10.0.0.2:8080"},
		{"all drained", edits{policytest.Endpoints(one)}, policytest.Conditions(one + " drained"), "reject"},
		{"slow start", edits{policytest.Slowly, policytest.Endpoints(one, two+" weight=3")}, policytest.Conditions(one+" share=2", two+" share=1"), "10.0.0.1:8080*2 10.0.0.2:8080*3"},
		{"slow start that is over", edits{policytest.Slowly, policytest.Endpoints(one, two)}, policytest.Conditions(one + " share=9"), "10.0.0.1:8080*9 10.0.0.2:8080*10"},
		{"slow start of large weights", edits{policytest.Slowly, policytest.Endpoints(one+" weight=60000", two)}, policytest.Conditions(one+" share=5", two+" share=5"), "10.0.0.1:8080*30000 10.0.0.2:8080"},
		{"slow start with a scheduler of no shares", edits{policytest.Slowly, hashed, policytest.Endpoints(one+" weight=3", two)}, policytest.Conditions(one + " share=2"), "10.0.0.1:8080*3 10.0.0.2:8080"},
		{"no slow start", edits{policytest.Endpoints(one)}, policytest.Conditions(one + " share=1"), "10.0.0.1:8080"},
		{"backup", edits{policytest.Endpoints(one, two+" tier=1")}, nil, "10.0.0.1:8080"},
		{"backup in use", edits{policytest.Probed, policytest.Endpoints(one, two+" tier=1")}, policytest.Conditions(one+" failed", two+" passed"), "10.0.0.2:8080"},
		{"backup beside too few", edits{policytest.MinUp(2), policytest.Endpoints(one, two+" tier=1", three+" tier=2")}, nil, "10.0.0.1:8080 10.0.0.2:8080"},
		{"never enough", edits{policytest.MinUp(9), policytest.Endpoints(one, two+" tier=1", three+" tier=9")}, nil, "10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080"},
		{"all fail, with a backup", edits{policytest.Probed, policytest.Endpoints(one, two+" tier=1")}, policytest.Conditions(one+" failed", two+" failed"), "10.0.0.1:8080"},
		{"disabled", edits{policytest.Endpoints(one, two+" disabled")}, nil, "10.0.0.1:8080"},

		{"one passes again, and another may", edits{policytest.Probed, policytest.Endpoints(one, two, three)}, policytest.Conditions(one+" passed returning", two+" failing returning", three+" passed returning"), "10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080"},
		{"a third one failed before they did", edits{policytest.Probed, policytest.Endpoints(one, two, three)}, policytest.Conditions(one+" passed returning", two+" failing returning", three+" failed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"a third one passes for longer", edits{policytest.Probed, policytest.Endpoints(one, two, three)}, policytest.Conditions(one+" passed returning", two+" failing returning", three+" passed"), "10.0.0.1:8080 10.0.0.3:8080"},
		{"a third one has no result", edits{policytest.Probed, policytest.Endpoints(one, two, three)}, policytest.Conditions(one+" passed returning", two+" failing returning"), "10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080"},
		{"one without a result, and nobody may follow", edits{policytest.Probed, policytest.Endpoints(one, two)}, policytest.Conditions(one + " passed returning"), "10.0.0.1:8080"},
		{"one passes again, refuse", edits{policytest.ProbedRefuse, policytest.Endpoints(one, two)}, policytest.Conditions(one+" passed returning", two+" failing returning"), "10.0.0.1:8080"},
		{"another one may, which is drained", edits{policytest.Probed, policytest.Endpoints(one, two)}, policytest.Conditions(one+" passed returning", two+" failing returning drained"), "10.0.0.1:8080"},
		{"the one that passes is drained", edits{policytest.Probed, policytest.Endpoints(one, two, three)}, policytest.Conditions(one+" passed drained returning", two+" failing returning", three+" failing"), "10.0.0.2:8080 10.0.0.3:8080"},
		{"the first tier may follow its backup", edits{policytest.Probed, policytest.Endpoints(one, two+" tier=1")}, policytest.Conditions(one+" failing returning", two+" passed returning"), "10.0.0.1:8080"},
		{"the first tier failed before its backup", edits{policytest.Probed, policytest.Endpoints(one, two+" tier=1", three+" tier=1")}, policytest.Conditions(one+" failed", two+" passed returning", three+" failing returning"), "10.0.0.2:8080 10.0.0.3:8080"},
		{"enough of the first tier may follow", edits{policytest.Probed, policytest.MinUp(2), policytest.Endpoints(one, two, three+" tier=1")}, policytest.Conditions(one+" passed returning", two+" failing returning", three+" passed returning"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"one that terminates passes again", edits{policytest.Probed, policytest.Endpoints(one, two+" terminating")}, policytest.Conditions(one+" failing returning", two+" passed returning"), "10.0.0.1:8080"},
		{"all terminate, and one passes again", edits{policytest.Probed, policytest.Endpoints(one+" terminating", two+" terminating")}, policytest.Conditions(one+" failing returning", two+" passed returning"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"all of the other family may follow", edits{policytest.Probed, policytest.Endpoints(one, two, "fd00::1")}, policytest.Conditions(one+" passed returning", two+" failing", "fd00::1 failing returning"), "10.0.0.1:8080"},
		{"another one may that does not serve the port", edits{policytest.Probed, policytest.Endpoints(one, two, three), policytest.OtherPort(1)}, policytest.Conditions(one+" passed returning", two+" failing returning", three+" failing"), "10.0.0.1:8080"},
		{"another one passes for longer at another port", edits{policytest.Probed, policytest.Endpoints(one, two, three), policytest.OtherPort(2)}, policytest.Conditions(one+" passed returning", two+" failing returning", three+" passed"), "10.0.0.1:8080 10.0.0.2:8080"},
		{"one may follow, in no slow start", edits{policytest.Probed, policytest.Slowly, policytest.Endpoints(one, two)}, policytest.Conditions(one+" passed returning share=2", two+" failing returning"), "10.0.0.1:8080*2 10.0.0.2:8080*10"},
	}
	for _, tt := range tests {
		r := policy.Resolve(policytest.Service(tt.svc...), tt.known, policytest.Node(), policy.IPv4)
		if got := strings.TrimSuffix(policytest.Show(r.Frontends[0].Outside), " masquerade everyone"); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A step of one endpoint changes its weight alone, and no settled one, by which backends lay it out.
func TestSettledWeights(t *testing.T) {
	one, large := policytest.Endpoints("10.0.0.1 weight=3", "10.0.0.2"), policytest.Endpoints("10.0.0.1 weight=30000", "10.0.0.2")
	for _, tt := range []struct {
		svc   []func(*source.Service)
		share uint8
		want  string
	}{
		{[]func(*source.Service){policytest.Slowly, one}, 0, "30/30 10/10"},
		{[]func(*source.Service){policytest.Slowly, one}, 1, "3/30 10/10"},
		{[]func(*source.Service){policytest.Slowly, one}, 9, "27/30 10/10"},
		{[]func(*source.Service){policytest.Slowly, large}, 1, "3000/30000 1/1"},
		{[]func(*source.Service){policytest.Slowly, hashed, one}, 1, "3/0 1/0"},
		{[]func(*source.Service){one}, 1, "3/0 1/0"},
	} {
		r := policy.Resolve(policytest.Service(tt.svc...), policytest.Conditions(fmt.Sprint("10.0.0.1 share=", tt.share)), policytest.Node(), policy.IPv4)
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
		known     policy.Conditions
		want      policy.Action
		local     int
		why       string
	}{
		{"up", both, policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed"), policy.Balance, 1, ""},
		{"fails", both, policytest.Conditions("10.0.0.1 failed", "10.0.0.2 passed"), policy.Drop, 0, "policy local: no usable endpoint on this node: 1 down; usable elsewhere: 1"},
		{"all fail", both, policytest.Conditions("10.0.0.1 failed", "10.0.0.2 failed"), policy.Balance, 1, ""},
		{"may follow", both, policytest.Conditions("10.0.0.1 failing returning", "10.0.0.2 passed returning"), policy.Balance, 1, ""},
		{"terminates here, and may follow", []string{"10.0.0.1 @here terminating", "10.0.0.2 @there"}, policytest.Conditions("10.0.0.1 failing returning", "10.0.0.2 passed returning"), policy.Balance, 0, ""},
		{"terminates here, and all fail", []string{"10.0.0.1 @here terminating", "10.0.0.2 @there"}, policytest.Conditions("10.0.0.1 failed", "10.0.0.2 failed"), policy.Balance, 0, ""},
		{"no result here", both, policytest.Conditions("10.0.0.2 passed"), policy.Drop, 0, "policy local: no usable endpoint on this node: 1 checking; usable elsewhere: 1"},
		{"no result", both, nil, policy.Balance, 1, ""},
		{"no result here, fails there", both, policytest.Conditions("10.0.0.2 failed"), policy.Balance, 1, ""},
		{"a backup here", []string{"10.0.0.1 @here tier=1", "10.0.0.2 @there"}, policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed"), policy.Drop, 0,
			"policy local: no usable endpoint on this node: 1 backup; usable elsewhere: 1"},
		{"a backup that is needed", []string{"10.0.0.1 @here tier=1", "10.0.0.2 @there"}, policytest.Conditions("10.0.0.1 passed", "10.0.0.2 failed"), policy.Balance, 1, ""},
		{"terminates here", []string{"10.0.0.1 @here terminating", "10.0.0.2 @there"}, policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed"), policy.Balance, 0, ""},
		{"terminates here, without a result", []string{"10.0.0.1 @here terminating", "10.0.0.2 @there"}, policytest.Conditions("10.0.0.2 passed"), policy.Drop, 0,
			"policy local: no usable endpoint on this node: 1 checking; usable elsewhere: 1"},
		{"a backup that terminates here", []string{"10.0.0.1 @here tier=1 terminating", "10.0.0.2 @there"}, policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed"), policy.Drop, 0,
			"policy local: no usable endpoint on this node: 1 not ready; usable elsewhere: 1"},
		{"all terminate, without a result", []string{"10.0.0.1 @here terminating"}, nil, policy.Balance, 0, ""},
	} {
		svc := policytest.Service(policytest.Probed, policytest.ExternalLocal, policytest.Endpoints(tt.endpoints...))
		f := policy.Resolve(svc, tt.known, policytest.Node(), policy.IPv4).Frontends[0]
		if got := f.Outside.Action; got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if got := policy.Why(policy.Subject{Service: svc, Conditions: tt.known}, policytest.Node(), f, f.Outside).String(); got != tt.why {
			t.Errorf("%s: because: %s\nwant: %s", tt.name, got, tt.why)
		}
		if got := policy.LocalReady(policy.Subject{Service: svc, Conditions: tt.known}, policytest.Node()); got.IPv4 != tt.local {
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
		known policy.Conditions
		want  string // of the service, IPv4 and IPv6
	}{
		{"one family", edits{policytest.Probed, policytest.Endpoints("10.0.0.1", "fd00::1")}, policytest.Conditions("10.0.0.1 failed", "fd00::1 passed"), "use_all use_all -"},
		{"a family without an address", edits{policytest.Probed, policytest.Endpoints("10.0.0.1", "fd00::1")}, policytest.Conditions("10.0.0.1 passed", "fd00::1 failed"), "- - use_all"},
		{"a port", edits{policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2"), policytest.OtherPort(1)}, policytest.Conditions("10.0.0.1 failed", "10.0.0.2 passed"), "use_all use_all -"},
		{"nobody has a result", edits{policytest.Probed, policytest.Endpoints("10.0.0.1")}, nil, "- - -"},
		{"one has no result", edits{policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2")}, policytest.Conditions("10.0.0.1 failed"), "use_all use_all -"},
		{"one passes again", edits{policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2")}, policytest.Conditions("10.0.0.1 passed returning", "10.0.0.2 failing returning"), "- - -"},
		{"one has no result, refuse", edits{policytest.ProbedRefuse, policytest.Endpoints("10.0.0.1", "10.0.0.2")}, policytest.Conditions("10.0.0.1 failed"), "- - -"},
	} {
		s := policy.Subject{Service: policytest.Service(tt.svc...), Conditions: tt.known}
		var got []string
		for _, setting := range []string{s.AllFail(), s.AllFailOf(policy.IPv4, &s.Ports[0]), s.AllFailOf(policy.IPv6, &s.Ports[0])} {
			got = append(got, cmp.Or(setting, "-"))
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
	}
}

// An endpoint that gets no new connections keeps those that it has.
func TestConditionsKeep(t *testing.T) {
	svc := policytest.Service(policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2", "10.0.0.3 disabled"))
	pool := policy.Resolve(svc, policytest.Conditions("10.0.0.1 failed", "10.0.0.2 passed"), policytest.Node(), policy.IPv4).Pools[0]
	if got := fmt.Sprint(pool.Kept); got != "[10.0.0.1:8080 10.0.0.3:8080]" {
		t.Errorf("kept: %s", got)
	}
}

// A service that is disabled has nothing in the kernel.
func TestResolveDisabled(t *testing.T) {
	svc := policytest.Service(policytest.Endpoints("10.0.0.1"), func(s *source.Service) { s.Disabled = true })
	if r := policy.Resolve(svc, nil, policytest.Node(), policy.IPv4); r != nil {
		t.Errorf("resolved to %+v", r)
	}
}
