package policy_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

func TestWhyANameIsGiven(t *testing.T) {
	local := func(s *source.Service) { s.InternalTrafficPolicy = source.Local }
	part := func(s *source.Service) {
		s.Ports[0].Name = "http"
		s.Ports = append(s.Ports, source.Port{Name: "x", Protocol: source.TCP, Port: 81, TargetPort: 81})
		s.Endpoints[0].Ports = map[string]uint16{"http": 0}
	}
	type edits = []func(*source.Service)
	tests := []struct {
		name string
		svc  edits
		fam  policy.Family
		want string
	}{
		{"it balances", edits{policytest.Endpoints("10.0.0.1")}, policy.IPv4, ""},
		{"without endpoints", nil, policy.IPv4, "no endpoints"},
		{"none of the family", edits{policytest.Endpoints("10.0.0.1", "10.0.0.2")}, policy.IPv6, "no IPv6 endpoint"},
		{"none for the port", edits{policytest.Endpoints("10.0.0.1"), part}, policy.IPv4, "no IPv4 endpoint serves this port"},
		{"not ready", edits{policytest.Endpoints("10.0.0.1 notready", "10.0.0.2 notready")}, policy.IPv4, "no usable endpoint: 2 not ready"},
		{"weight 0", edits{policytest.Endpoints("10.0.0.1 weight=0", "10.0.0.2 weight=0 terminating")}, policy.IPv4, "no usable endpoint: 2 with weight 0"},
		{"of each some", edits{policytest.Endpoints("10.0.0.1 weight=0", "10.0.0.2 notready")}, policy.IPv4, "no usable endpoint: 1 not ready, 1 with weight 0"},

		{"none here", edits{local, policytest.Endpoints("10.0.0.1 @b", "10.0.0.2 @c", "10.0.0.3 @c weight=0")}, policy.IPv4,
			"policy local: no endpoint on this node; usable elsewhere: 2"},
		{"none here, terminating elsewhere", edits{local, policytest.Endpoints("10.0.0.1 @b terminating")}, policy.IPv4,
			"policy local: no endpoint on this node; usable elsewhere: 1"},
		{"none usable here", edits{local, policytest.Endpoints("10.0.0.1 @b", "10.0.0.2 @here notready", "10.0.0.3 @here weight=0")}, policy.IPv4,
			"policy local: no usable endpoint on this node: 1 not ready, 1 with weight 0; usable elsewhere: 1"},
		{"local, and none anywhere", edits{local, policytest.Endpoints("10.0.0.1 @b notready")}, policy.IPv4, "no usable endpoint: 1 not ready"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := policytest.Service(append(edits{func(s *source.Service) { s.VIPs = policytest.Addrs("10.96.0.10", "fd00:96::10") }}, tt.svc...)...)
			node := policytest.Node()
			f := policy.Resolve(svc, nil, node, tt.fam).Frontends[0]
			if got := policy.Why(policy.Subject{Service: svc}, node, f, f.Outside); got.String() != tt.want {
				t.Errorf("%s\nwant: %s", got, tt.want)
			}
		})
	}
}

// What does not balance has a reason, and what does has none: for every route of every frontend.
func TestEveryRouteHasAReason(t *testing.T) {
	seen := make(map[policy.EndpointState]bool)
	rapid.Check(t, func(t *rapid.T) {
		node := policytest.RandomNode(t)
		for _, u := range slices.Concat(policytest.RandomServices(t), policytest.RandomServices(t), policytest.RandomServices(t), policytest.RandomServices(t)) {
			svc := u.Services[0]
			known := make(policy.Conditions)
			if rapid.Bool().Draw(t, "checked") {
				svc.HealthCheck = &source.HealthCheck{Type: source.CheckTCP, Refuse: rapid.Bool().Draw(t, "refuse")}
			}
			for i := range svc.Endpoints {
				e := &svc.Endpoints[i]
				e.Weight = rapid.SampledFrom([]uint16{0, 1}).Draw(t, "weight")
				e.Ready = rapid.Bool().Draw(t, "ready")
				e.Terminating = rapid.Bool().Draw(t, "terminating")
				e.Disabled = rapid.IntRange(0, 3).Draw(t, "disabled") == 0
				known[svc.EndpointAt(e)] = policy.Condition{
					Check:   rapid.SampledFrom([]source.CheckResult{source.CheckUnknown, source.CheckPassed, source.CheckFailed, source.CheckFailed}).Draw(t, "check"),
					Drained: rapid.IntRange(0, 3).Draw(t, "drained") == 0,
				}
			}
			for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
				r := policy.Resolve(svc, known, node, fam)
				if r == nil {
					continue
				}
				for _, f := range r.Frontends {
					for _, route := range []policy.Route{f.Outside, f.FromLocal} {
						why := policy.Why(policy.Subject{Service: svc, Conditions: known}, node, f, route)
						unusable, local, elsewhere := why.Counted()
						for state, n := range unusable {
							seen[policy.EndpointState(state)] = seen[policy.EndpointState(state)] || n > 0
						}
						if (why == policy.Reason{}) != (route.Action == policy.Balance) || (why.String() == "") != (route.Action == policy.Balance) {
							t.Fatalf("%v of %+v: %q", route.Action, svc, why)
						}
						if local != (route.Action == policy.Drop) || local && elsewhere == 0 {
							t.Fatalf("%v of %+v: %+v", route.Action, svc, why)
						}
					}
				}
			}
		}
	})
	for _, state := range []policy.EndpointState{policy.Down, policy.NotReady, policy.Draining, policy.ZeroWeight, policy.Disabled} {
		if !seen[state] {
			t.Errorf("nothing was refused for endpoints that are %s", state)
		}
	}
}
