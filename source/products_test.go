package source

import (
	"net/netip"
	"testing"
)

// addrs returns n addresses of a family.
func addrs(first string, n int) (list []netip.Addr) {
	for a := netip.MustParseAddr(first); len(list) < n; a = a.Next() {
		list = append(list, a)
	}
	return list
}

// weighing returns endpoints of a family with these weights.
func weighing(first string, weights ...uint16) (list []Endpoint) {
	for i, a := range addrs(first, len(weights)) {
		list = append(list, Endpoint{Addr: a, Weight: weights[i]})
	}
	return list
}

func TestProducts(t *testing.T) {
	ports := []Port{{Port: 80}, {Port: 81, NodePort: 30081}, {Port: 82}}
	four, six := addrs("10.96.0.1", 2), addrs("fd00:96::1", 5)
	ranges := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/16"), netip.MustParsePrefix("fd01::/16")}
	both := append(weighing("192.0.2.1", 1, 1, 1, 1), weighing("2001:db8::1", 1, 1)...)
	huge := &Service{VIPs: make([]netip.Addr, 3_000_000), Ports: make([]Port, 190_000), Endpoints: make([]Endpoint, 1000), SourceRanges: make([]netip.Prefix, 1000)}
	tests := []struct {
		name string
		svc  *Service
		want Products
	}{
		{"nothing", &Service{}, Products{}},
		{"addresses, ports and endpoints", &Service{VIPs: four, Ports: ports, Endpoints: both[:4]}, Products{7, 28, 0}},
		{"of both families", &Service{VIPs: four, ExternalIPs: six, Ports: ports, Endpoints: both}, Products{23, 7*4 + 16*2, 0}},
		{"node ports alone, of both families", &Service{Ports: ports, Endpoints: both}, Products{3, 6, 0}},
		{"ports alone", &Service{Ports: make([]Port, 9), Endpoints: both}, Products{9, 6, 0}},
		{"source ranges by their families", &Service{VIPs: four, ExternalIPs: six, Ports: ports, SourceRanges: ranges}, Products{23, 0, 7 + 16*2}},
		{"source ranges of load balancers", &Service{VIPs: four, LoadBalancerIPs: four, Ports: ports, LoadBalancerSourceRanges: ranges}, Products{13, 0, 6}},
		{"local endpoints apart", &Service{VIPs: four, ExternalIPs: four, Ports: ports, Endpoints: both[:4], ExternalTrafficPolicy: Local}, Products{13, (13 + 7) * 4, 0}},
		{"rules beside IPVS", &Service{VIPs: four, Ports: ports[:1], Endpoints: both[:4], Forward: Forwarding{Method: ForwardDirect}}, Products{2, 16, 0}},
		{"equal weights", &Service{VIPs: four, Ports: ports[:1], Endpoints: weighing("192.0.2.1", 100, 100)}, Products{2, 4, 0}},
		{"weights in common", &Service{VIPs: four, Ports: ports[:1], Endpoints: weighing("192.0.2.1", 100, 300)}, Products{2, 8, 0}},
		{"weights that differ", &Service{VIPs: four, Ports: ports[:1], Endpoints: weighing("192.0.2.1", 499, 500)}, Products{2, 256, 0}},
		{"more of them", &Service{VIPs: four, Ports: ports[:1], Endpoints: weighing("192.0.2.1", 999, 1, 1, 1, 1, 1, 1, 1, 1, 1)}, Products{2, 320, 0}},
		{"no weight", &Service{VIPs: four, Ports: ports[:1], Endpoints: weighing("192.0.2.1", 0, 0)}, Products{2, 4, 0}},
		{"slow start", &Service{VIPs: four, Ports: ports[:1], Endpoints: both[:4], SlowStart: 1}, Products{2, 256, 0}},
		{"tables of maglev", &Service{VIPs: four, Ports: ports[:1], Endpoints: both[:4], Scheduler: Maglev}, Products{2, 2 * 2039, 0}},
		{"too many to count", huge, Products{570_000_000_000, mostCounted, mostCounted}},
	}
	for _, tt := range tests {
		if got := tt.svc.Products(); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// Each limit is reached by what it allows, and exceeded by one more.
func TestExceeded(t *testing.T) {
	limits := Products{Frontends: 10, Endpoints: 20, SourceRanges: 30}
	tests := []struct {
		sum  Products
		want string
	}{
		{limits, ""},
		{Products{11, 20, 30}, "we have 11 frontends (addresses times ports), more than 10; use fewer addresses or ports, or raise frontends in [limits] of svcproxy.toml"},
		{Products{10, 21, 30}, "we have 21 endpoints of frontends (addresses times ports times endpoints), more than 20; " +
			"use fewer addresses, ports, endpoints or different weights, or raise frontend_endpoints in [limits] of svcproxy.toml"},
		{Products{10, 20, 31}, "we have 31 source ranges of frontends (addresses times ports times ranges), more than 30; " +
			"use fewer addresses, ports or ranges, or raise frontend_source_ranges in [limits] of svcproxy.toml"},
	}
	for _, tt := range tests {
		got := ""
		if p := limits.Exceeded(tt.sum, "we"); p != nil {
			got = p.Msg + "; " + p.Hint
		}
		if got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.sum, got, tt.want)
		}
	}
}
