package policy_test

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// Hints count where all endpoints that get new connections have them, those for nodes
// before those for zones.
func TestResolveHints(t *testing.T) {
	hints := func(h ...*source.Hints) func(*source.Service) {
		return func(s *source.Service) {
			for i := range s.Endpoints {
				more := s.Endpoints[i].Extras()
				more.Hints = h[i]
				s.Endpoints[i] = s.Endpoints[i].With(more)
			}
			s.TrafficDistribution = source.AsHinted
		}
	}
	zones := func(z ...string) *source.Hints { return &source.Hints{Zones: z} }
	nodes := func(n ...string) *source.Hints { return &source.Hints{Nodes: n} }
	both := func(n, z string) *source.Hints { return &source.Hints{Nodes: []string{n}, Zones: []string{z}} }
	type edits = []func(*source.Service)
	two := policytest.Endpoints("10.0.0.1 zone=a @here", "10.0.0.2 zone=b @there")
	tests := []struct {
		name string
		svc  []func(*source.Service)
		want string
	}{
		{"one of several zones", edits{two, hints(zones("b"), zones("c", "a"))}, "10.0.0.2:8080 masquerade everyone"},
		{"no zone is meant", edits{two, hints(zones(), zones())}, "10.0.0.1:8080 10.0.0.2:8080 masquerade everyone"},
		{"another zone is meant", edits{two, hints(zones("b"), zones("c"))}, "10.0.0.1:8080 10.0.0.2:8080 masquerade everyone"},
		{"node", edits{two, hints(nodes("there"), nodes("here"))}, "10.0.0.2:8080 masquerade everyone"},
		{"node before zone", edits{two, hints(both("there", "a"), both("here", "b"))}, "10.0.0.2:8080 masquerade everyone"},
		{"zone where no node is meant", edits{two, hints(both("there", "a"), both("there", "b"))}, "10.0.0.1:8080 masquerade everyone"},
		{"zone where one has no node", edits{two, hints(both("here", "b"), zones("a"))}, "10.0.0.2:8080 masquerade everyone"},
		{"one without", edits{two, hints(nil, both("here", "a"))}, "10.0.0.1:8080 10.0.0.2:8080 masquerade everyone"},
		{"one without that is not ready", edits{policytest.Endpoints("10.0.0.1 notready", "10.0.0.2", "10.0.0.3"), hints(nil, zones("b"), zones("a"))}, "10.0.0.3:8080 masquerade everyone"},
		{"local is who runs here", edits{two, policytest.InternalLocal, hints(nodes("there"), nodes("here"))}, "10.0.0.1:8080 masquerade everyone"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := policy.Resolve(policytest.Service(tt.svc...), nil, policytest.Node(), policy.IPv4)
			if got := policytest.Show(r.Frontends[0].Outside); got != tt.want {
				t.Errorf("\n got: %s\nwant: %s", got, tt.want)
			}
		})
	}
}

// An endpoint is no target of a port that it does not serve, and the fallback
// to those that terminate is decided for each port.
func TestResolveEndpointsOfSomePorts(t *testing.T) {
	svc := policytest.Service(policytest.Endpoints("10.0.0.1", "10.0.0.2 terminating", "10.0.0.3"))
	svc.Ports = []source.Port{
		{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 8080},
		{Name: "old", Protocol: source.TCP, Port: 81, TargetPort: 8081},
		{Name: "none", Protocol: source.TCP, Port: 82, TargetPort: 8082},
	}
	svc.Endpoints[0].Ports = map[string]uint16{"old": 0, "none": 0}
	svc.Endpoints[1].Ports = map[string]uint16{"none": 0}
	svc.Endpoints[2].Ports = map[string]uint16{"http": 9090, "old": 0, "none": 0}
	want := []string{"10.0.0.1:8080 10.0.0.3:9090 masquerade everyone", "10.0.0.2:8081 masquerade everyone", "reject"}
	for i, f := range policy.Resolve(svc, nil, policytest.Node(), policy.IPv4).Frontends {
		if got := policytest.Show(f.Outside); got != want[i] {
			t.Errorf("port %d: got %s, want %s", f.Key.Port, got, want[i])
		}
		if i == 0 && len(f.Outside.Pool.Kept) != 1 {
			t.Errorf("port 80 keeps %v, want the one that terminates", f.Outside.Pool.Kept)
		}
	}
}

// One address under several ports is one local endpoint. Each family has its own
// number, but where the service has one family only.
func TestLocalReadyCountsAddresses(t *testing.T) {
	svc := policytest.Service(policytest.Endpoints("10.0.0.1 @here", "10.0.0.1 @here", "10.0.0.2 @here", "10.0.0.3 @there", "10.0.0.4 @here notready", "fd00::1 @here", "fd00::2 @there"))
	svc.Endpoints[1].Ports = map[string]uint16{"": 8081}
	for _, c := range []struct {
		vips string
		want policy.PerFamily
	}{{"10.96.0.1 fd00:96::1", policy.PerFamily{IPv4: 2, IPv6: 1}}, {"10.96.0.1", policy.PerFamily{IPv4: 2, IPv6: 2}}, {"fd00:96::1", policy.PerFamily{IPv4: 1, IPv6: 1}}} {
		svc.VIPs = policytest.Addrs(strings.Fields(c.vips)...)
		if got := policy.LocalReady(policy.Subject{Service: svc}, policytest.Node()); got != c.want {
			t.Errorf("%s: %+v local endpoints, want %+v", c.vips, got, c.want)
		}
	}
}
