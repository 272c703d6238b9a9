package proxier

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/source"
)

func TestWhy(t *testing.T) {
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
		fam  Family
		want string
	}{
		{"it balances", edits{testEndpoints("10.0.0.1")}, IPv4, ""},
		{"without endpoints", nil, IPv4, "no endpoints"},
		{"none of the family", edits{testEndpoints("10.0.0.1", "10.0.0.2")}, IPv6, "no IPv6 endpoint"},
		{"none for the port", edits{testEndpoints("10.0.0.1"), part}, IPv4, "no IPv4 endpoint serves this port"},
		{"not ready", edits{testEndpoints("10.0.0.1 notready", "10.0.0.2 notready")}, IPv4, "no usable endpoint: 2 not ready"},
		{"weight 0", edits{testEndpoints("10.0.0.1 weight=0", "10.0.0.2 weight=0 terminating")}, IPv4, "no usable endpoint: 2 with weight 0"},
		{"of each some", edits{testEndpoints("10.0.0.1 weight=0", "10.0.0.2 notready")}, IPv4, "no usable endpoint: 1 not ready, 1 with weight 0"},

		{"none here", edits{local, testEndpoints("10.0.0.1 @b", "10.0.0.2 @c", "10.0.0.3 @c weight=0")}, IPv4,
			"policy local: no endpoint on this node; usable elsewhere: 2"},
		{"none here, terminating elsewhere", edits{local, testEndpoints("10.0.0.1 @b terminating")}, IPv4,
			"policy local: no endpoint on this node; usable elsewhere: 1"},
		{"none usable here", edits{local, testEndpoints("10.0.0.1 @b", "10.0.0.2 @here notready", "10.0.0.3 @here weight=0")}, IPv4,
			"policy local: no usable endpoint on this node: 1 not ready, 1 with weight 0; usable elsewhere: 1"},
		{"local, and none anywhere", edits{local, testEndpoints("10.0.0.1 @b notready")}, IPv4, "no usable endpoint: 1 not ready"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := testService(append(edits{func(s *source.Service) { s.VIPs = addrs("10.96.0.10", "fd00:96::10") }}, tt.svc...)...)
			node := testNode()
			f := Resolve(svc, nil, node, tt.fam).Frontends[0]
			if got := Why(Subject{Service: svc}, node, f, f.Outside); got.String() != tt.want {
				t.Errorf("%s\nwant: %s", got, tt.want)
			}
		})
	}
}

// What does not balance has a reason, and what does has none: for every route of every frontend.
func TestEveryRouteHasAReason(t *testing.T) {
	seen := make(map[EndpointState]bool)
	rapid.Check(t, func(t *rapid.T) {
		node := randomNode(t)
		for _, u := range slices.Concat(randomServices(t), randomServices(t), randomServices(t), randomServices(t)) {
			svc := u.Services[0]
			known := make(Conditions)
			if rapid.Bool().Draw(t, "checked") {
				svc.HealthCheck = &source.HealthCheck{Type: source.CheckTCP, Refuse: rapid.Bool().Draw(t, "refuse")}
			}
			for i := range svc.Endpoints {
				e := &svc.Endpoints[i]
				e.Weight = rapid.SampledFrom([]uint16{0, 1}).Draw(t, "weight")
				e.Ready = rapid.Bool().Draw(t, "ready")
				e.Terminating = rapid.Bool().Draw(t, "terminating")
				e.Disabled = rapid.IntRange(0, 3).Draw(t, "disabled") == 0
				known[svc.EndpointAt(e)] = Condition{
					Check:   rapid.SampledFrom([]source.CheckResult{source.CheckUnknown, source.CheckPassed, source.CheckFailed, source.CheckFailed}).Draw(t, "check"),
					Drained: rapid.IntRange(0, 3).Draw(t, "drained") == 0,
				}
			}
			for _, fam := range []Family{IPv4, IPv6} {
				r := Resolve(svc, known, node, fam)
				if r == nil {
					continue
				}
				for _, f := range r.Frontends {
					for _, route := range []Route{f.Outside, f.Local} {
						why := Why(Subject{svc, known}, node, f, route)
						for state, n := range why.unusable {
							seen[EndpointState(state)] = seen[EndpointState(state)] || n > 0
						}
						if (why == Reason{}) != (route.Action == Balance) || (why.String() == "") != (route.Action == Balance) {
							t.Fatalf("%v of %+v: %q", route.Action, svc, why)
						}
						if why.local != (route.Action == Drop) || why.local && why.elsewhere == 0 {
							t.Fatalf("%v of %+v: %+v", route.Action, svc, why)
						}
					}
				}
			}
		}
	})
	for _, state := range []EndpointState{Down, NotReady, Draining, ZeroWeight, Disabled} {
		if !seen[state] {
			t.Errorf("nothing was refused for endpoints that are %s", state)
		}
	}
}
