package proxier

import (
	"net/netip"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

func TestStates(t *testing.T) {
	ep := func(a string, change func(*source.Endpoint)) source.Endpoint {
		e := source.Endpoint{Addr: netip.MustParseAddr(a), Node: "other", Weight: 1, Ready: true, Serving: true}
		if change != nil {
			change(&e)
		}
		return e
	}
	here := func(e *source.Endpoint) { e.Node, e.Zone = "node", "z" }
	gone := func(e *source.Endpoint) { e.Ready, e.Serving = false, false }
	unready := func(e *source.Endpoint) { e.Ready = false }
	leaving := func(e *source.Endpoint) { e.Ready, e.Terminating = false, true }
	idle := func(e *source.Endpoint) { e.Weight = 0 }
	web := func(e *source.Endpoint) { e.Ports = map[string]uint16{"http": 0} }
	all := []source.Endpoint{
		ep("10.0.0.1", here), ep("10.0.0.2", nil), ep("10.0.0.3", gone), ep("10.0.0.4", unready), ep("10.0.0.5", leaving),
		ep("10.0.0.6", idle), ep("10.0.0.7", web), ep("fd00::1", nil),
	}
	tests := []struct {
		name   string
		change func(*source.Service)
		scope  Scope
		want   []EndpointState
	}{
		{"cluster", nil, ClusterScope, []EndpointState{Ready, Ready, Gone, NotReady, Terminating, ZeroWeight, OtherPorts, OtherFamily}},
		{"local", nil, LocalScope, []EndpointState{Ready, OtherNode, Gone, OtherNode, OtherNode, OtherNode, OtherPorts, OtherFamily}},
		{"near", func(s *source.Service) { s.TrafficDistribution = source.PreferSameZone }, ClusterScope,
			[]EndpointState{Ready, NotNear, Gone, NotReady, Terminating, ZeroWeight, OtherPorts, OtherFamily}},
		{"only terminating ones are left", func(s *source.Service) { s.Endpoints = s.Endpoints[2:] }, ClusterScope,
			[]EndpointState{Gone, NotReady, Ready, ZeroWeight, OtherPorts, OtherFamily}},
		{"not ready ones are used", func(s *source.Service) { s.PublishNotReady = true }, ClusterScope,
			[]EndpointState{Ready, Ready, Ready, Ready, Ready, ZeroWeight, OtherPorts, OtherFamily}},
	}
	for _, tt := range tests {
		s := &source.Service{Ports: []source.Port{{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 80}}, Endpoints: slices.Clone(all)}
		if tt.change != nil {
			tt.change(s)
		}
		got := States(Subject{Service: s}, &Node{Name: "node", Zone: "z"}, IPv4, s.Ports[0], tt.scope)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got: %v\nwant: %v", tt.name, got, tt.want)
		}
	}
}
