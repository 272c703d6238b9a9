//go:build !nokubernetes

package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"svcproxy.dev/svcproxy/source"
)

// show is one endpoint: "10.0.0.1 http=8080 dns=- !ready".
func show(svc *source.Service, e source.Endpoint) string {
	out := e.Addr.String()
	for _, p := range svc.Ports {
		out += fmt.Sprintf(" %s=%d", p.Name, e.Port(p))
	}
	if !e.Ready {
		out += " unready"
	}
	if h := e.Extras().Hints; h != nil {
		out += fmt.Sprintf(" for nodes %v zones %v", h.Nodes, h.Zones)
	}
	return out
}

func TestMerge(t *testing.T) {
	two := parseService(svc("a", "10.96.0.1", func(s *core.Service) {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:96::1")
		s.Spec.ExternalIPs = []string{"192.0.2.1"}
		s.Spec.Ports = []core.ServicePort{{Name: "http", Port: 80}, {Name: "dns", Port: 53, Protocol: core.ProtocolUDP}}
	}), newWords()).Service
	ports := func(http, dns int32, of *discovery.EndpointSlice) *discovery.EndpointSlice {
		of.Ports = nil
		for name, n := range map[string]int32{"http": http, "dns": dns} {
			protocol := map[string]core.Protocol{"http": core.ProtocolTCP, "dns": core.ProtocolUDP}[name]
			if n != 0 {
				of.Ports = append(of.Ports, discovery.EndpointPort{Name: &name, Port: &n, Protocol: &protocol})
			}
		}
		return of
	}
	terminating := func(s *discovery.EndpointSlice) *discovery.EndpointSlice {
		for i := range s.Endpoints {
			s.Endpoints[i].Conditions = discovery.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
		}
		return s
	}
	tests := []struct {
		name   string
		slices []*discovery.EndpointSlice
		want   []string
	}{
		{"numbers of the service", []*discovery.EndpointSlice{ports(80, 53, eps("1", "a", "10.0.0.1"))}, []string{"10.0.0.1 http=80 dns=53"}},
		{"each slice has its numbers", []*discovery.EndpointSlice{ports(8080, 53, eps("1", "a", "10.0.0.2")), ports(80, 5353, eps("2", "a", "10.0.0.1"))},
			[]string{"10.0.0.1 http=80 dns=5353", "10.0.0.2 http=8080 dns=53"}},
		{"a slice without a port", []*discovery.EndpointSlice{ports(8080, 0, eps("1", "a", "10.0.0.1"))}, []string{"10.0.0.1 http=8080 dns=0"}},
		{"a slice without any port", []*discovery.EndpointSlice{ports(0, 0, eps("1", "a", "10.0.0.1"))}, nil},
		{"a port of the other protocol", []*discovery.EndpointSlice{func() *discovery.EndpointSlice {
			s := ports(80, 53, eps("1", "a", "10.0.0.1"))
			for i := range s.Ports {
				s.Ports[i].Protocol = new(core.ProtocolUDP)
			}
			return s
		}()}, []string{"10.0.0.1 http=0 dns=53"}},
		{"in both slices", []*discovery.EndpointSlice{ports(80, 53, eps("1", "a", "10.0.0.1!")), ports(80, 53, eps("2", "a", "10.0.0.1"))}, []string{"10.0.0.1 http=80 dns=53"}},
		{"the one that does not end", []*discovery.EndpointSlice{terminating(ports(80, 53, eps("1", "a", "10.0.0.1"))), ports(80, 53, eps("2", "a", "10.0.0.1!"))},
			[]string{"10.0.0.1 http=80 dns=53 unready"}},
		{"one address, two numbers", []*discovery.EndpointSlice{ports(80, 53, eps("1", "a", "10.0.0.1")), ports(81, 53, eps("2", "a", "10.0.0.1"))},
			[]string{"10.0.0.1 http=80 dns=53", "10.0.0.1 http=81 dns=0"}},
		{"families, and what is the service's own", []*discovery.EndpointSlice{ports(80, 53, eps("1", "a", "fd00::1", "10.0.0.1", "10.96.0.1"))},
			[]string{"10.0.0.1 http=80 dns=53", "fd00::1 http=80 dns=53"}},
		{"a proxy on an external address", []*discovery.EndpointSlice{ports(8080, 5353, eps("1", "a", "192.0.2.1"))}, []string{"192.0.2.1 http=8080 dns=5353"}},
		{"one that is itself for one port", []*discovery.EndpointSlice{ports(80, 5353, eps("1", "a", "192.0.2.1"))}, []string{"192.0.2.1 http=0 dns=5353"}},
		{"the number of a port of the other protocol", []*discovery.EndpointSlice{ports(53, 80, eps("1", "a", "192.0.2.1"))}, []string{"192.0.2.1 http=53 dns=80"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // in either order of arrival
				e := &entry{}
				for _, s := range tt.slices {
					e.put(parseSlice(s, newWords()))
				}
				var got []string
				out, _ := merge(two, e.slices)
				for _, ep := range out.Endpoints {
					got = append(got, show(out, ep))
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("\n got: %s\nwant: %s", strings.Join(got, "\n      "), strings.Join(tt.want, "\n      "))
				}
				for _, p := range source.Validate(out) {
					if p.Warning {
						continue
					}
					t.Errorf("fault %v", p)
				}
				slices.Reverse(tt.slices)
			}
		})
	}
}

// Hints are handed on as they are given.
func TestMergeHints(t *testing.T) {
	hint := &discovery.EndpointHints{ForNodes: []discovery.ForNode{{Name: "n"}}, ForZones: []discovery.ForZone{{Name: "a"}, {Name: "b"}}}
	tests := []struct {
		name  string
		hints []*discovery.EndpointHints
		how   source.TrafficDistribution
		want  []string
	}{
		{"none", []*discovery.EndpointHints{nil, nil}, source.Evenly, []string{"", ""}},
		{"empty ones", []*discovery.EndpointHints{{}, {}}, source.Evenly, []string{"", ""}},
		{"some", []*discovery.EndpointHints{nil, hint}, source.AsHinted, []string{"", " for nodes [n] zones [a b]"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := eps("1", "a", "10.0.0.1", "10.0.0.2")
			for i, h := range tt.hints {
				s.Endpoints[i].Hints = h
			}
			out, _ := merge(parseService(svc("a", "10.96.0.1"), newWords()).Service, []*slice{parseSlice(s, newWords())})
			if out.TrafficDistribution != tt.how {
				t.Errorf("distribution %q, want %q", out.TrafficDistribution, tt.how)
			}
			for i, e := range out.Endpoints {
				if _, got, _ := strings.Cut(show(out, e), "=8080"); got != tt.want[i] {
					t.Errorf("%s:%s, want%s", e.Addr, got, tt.want[i])
				}
			}
		})
	}
}
