package report

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/sourcetest"
)

// Whatever differs between two services is told.
func TestEditsReportEveryDifference(t *testing.T) {
	same := sourcetest.Filled()
	if got := Describe(claims.Transition{Old: same, New: sourcetest.Filled()}); got != "" {
		t.Errorf("services that mean the same differ in %q", got)
	}
	for path, other := range sourcetest.Changes() {
		tr := claims.Transition{Old: same, New: other}
		if got := Describe(tr); (got == "") != same.Equal(other) && same.Key == other.Key {
			t.Errorf("%s: the log says %q", path, got)
		}
	}
}

func TestDescribe(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	endpoint := func(i int) source.Endpoint {
		return source.Endpoint{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Weight: 1, Ready: true}
	}
	var many []source.Endpoint
	for i := range 9 {
		many = append(many, endpoint(i))
	}
	tests := []struct {
		name string
		edit func(*source.Service)
		want string
	}{
		{"nothing", func(*source.Service) {}, ""},
		{"policy", func(s *source.Service) { s.ExternalTrafficPolicy = source.Local }, "external_traffic_policy cluster -> local"},
		{"two keys", func(s *source.Service) { s.Affinity, s.PublishNotReady = time.Minute, true },
			"session_affinity none -> client_ip for 1m0s, publish_not_ready false -> true"},
		{"an address", func(s *source.Service) { s.VIPs = []netip.Addr{addr("10.96.0.9")} }, "vips 10.96.0.1 -> 10.96.0.9"},
		{"none any more", func(s *source.Service) { s.VIPs = nil }, "vips 10.96.0.1 -> none"},
		{"a long list", func(s *source.Service) {
			for i := range 9 {
				s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges, prefix(fmt.Sprintf("10.%d.0.0/16", i)))
			}
		}, "load_balancer_source_ranges none -> 10.0.0.0/16 10.1.0.0/16 10.2.0.0/16 10.3.0.0/16 10.4.0.0/16 and 4 more"},
		{"ports", func(s *source.Service) {
			s.Ports = []source.Port{{Name: "web", Protocol: source.TCP, Port: 80, TargetPort: 8080, NodePort: 30080}}
		}, "ports 80/tcp -> web=80/tcp,target_port=8080,node_port=30080"},
		{"weight", func(s *source.Service) { s.Endpoints[1].Weight = 5 }, "endpoints changed: 192.0.2.1 weight 1 -> 5"},
		{"readiness", func(s *source.Service) { s.Endpoints[0].Ready, s.Endpoints[1].Weight = false, 0 },
			"endpoints changed: 192.0.2.0 ready true -> false, 192.0.2.1 weight 1 -> 0"},
		{"an endpoint's port", func(s *source.Service) { s.Endpoints[0].Ports = map[string]uint16{"": 81} },
			"endpoints removed: 192.0.2.0, endpoints added: 192.0.2.0:81"},
		{"an endpoint less", func(s *source.Service) { s.Endpoints = s.Endpoints[1:] }, "endpoints removed: 192.0.2.0"},
		{"several", func(s *source.Service) { s.Endpoints, s.Scheduler = append(many[2:4:4], many[0]), "sh" },
			"scheduler none -> sh, endpoints removed: 192.0.2.1, endpoints added: 192.0.2.2 192.0.2.3"},
		{"many", func(s *source.Service) { s.Endpoints = many[2:] }, "endpoints removed: 192.0.2.0 192.0.2.1, endpoints added: 7"},
		{"order", func(s *source.Service) { s.Endpoints = []source.Endpoint{s.Endpoints[1], s.Endpoints[0]} },
			"endpoints 192.0.2.0 192.0.2.1 -> 192.0.2.1 192.0.2.0"},
		{"a name that steers a terminal", func(s *source.Service) { zone(s, "a\x1b[2J") },
			`endpoints changed: 192.0.2.0 zone none -> "a\x1b[2J"`},
		{"a long name", func(s *source.Service) { zone(s, strings.Repeat("z", 1e6)) },
			"endpoints changed: 192.0.2.0 zone none -> " + strings.Repeat("z", maxWord) + "..."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := func() *source.Service {
				return &source.Service{
					VIPs: []netip.Addr{addr("10.96.0.1")}, Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 80}},
					Endpoints: []source.Endpoint{endpoint(0), endpoint(1)},
				}
			}
			old, edited := now(), now()
			tt.edit(edited)
			if got := Describe(claims.Transition{Old: old, New: edited}); got != tt.want {
				t.Errorf("got:  %s\nwant: %s", got, tt.want)
			}
		})
	}
}

// Of endpoints with one name, as a file may have them by mistake, each is compared.
func TestEditsOfEqualNames(t *testing.T) {
	e := source.Endpoint{Addr: netip.MustParseAddr("192.0.2.1"), Weight: 1}
	heavy := e
	heavy.Weight = 2
	tests := []struct {
		was, is []source.Endpoint
		want    string
	}{
		{[]source.Endpoint{e, heavy}, []source.Endpoint{heavy, heavy}, "endpoints changed: 192.0.2.1 weight 1 -> 2"},
		{[]source.Endpoint{e, e}, []source.Endpoint{e}, "endpoints removed: 192.0.2.1"},
		{[]source.Endpoint{e}, []source.Endpoint{e, e}, "endpoints added: 192.0.2.1"},
	}
	for _, tt := range tests {
		if got := Describe(claims.Transition{Old: &source.Service{Endpoints: tt.was}, New: &source.Service{Endpoints: tt.is}}); got != tt.want {
			t.Errorf("got:  %s\nwant: %s", got, tt.want)
		}
	}
}

func zone(s *source.Service, name string) {
	s.Endpoints[0] = s.Endpoints[0].With(source.Extras{Zone: name})
}
