package policy_test

import (
	"net/netip"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

func TestStatesOfEndpoints(t *testing.T) {
	ep := func(a string, change func(*source.Endpoint)) source.Endpoint {
		e := source.Endpoint{Addr: netip.MustParseAddr(a), Weight: 1, Ready: true, Serving: true}.With(source.Extras{Node: "other"})
		if change != nil {
			change(&e)
		}
		return e
	}
	here := func(e *source.Endpoint) { *e = e.With(source.Extras{Node: "node", Zone: "z"}) }
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
		scope  policy.Scope
		want   []policy.EndpointState
	}{
		{"cluster", nil, policy.ClusterScope, []policy.EndpointState{policy.Ready, policy.Ready, policy.Gone, policy.NotReady, policy.Terminating, policy.ZeroWeight, policy.OtherPorts, policy.OtherFamily}},
		{"local", nil, policy.NodeScope, []policy.EndpointState{policy.Ready, policy.OtherNode, policy.Gone, policy.OtherNode, policy.OtherNode, policy.OtherNode, policy.OtherPorts, policy.OtherFamily}},
		{"near", func(s *source.Service) { s.TrafficDistribution = source.PreferSameZone }, policy.ClusterScope,
			[]policy.EndpointState{policy.Ready, policy.NotNear, policy.Gone, policy.NotReady, policy.Terminating, policy.ZeroWeight, policy.OtherPorts, policy.OtherFamily}},
		{"a tier that is not needed", func(s *source.Service) { s.Endpoints[1].Tier = 1 }, policy.ClusterScope,
			[]policy.EndpointState{policy.Ready, policy.Backup, policy.Gone, policy.NotReady, policy.Terminating, policy.ZeroWeight, policy.OtherPorts, policy.OtherFamily}},
		{"only terminating ones are left", func(s *source.Service) { s.Endpoints = s.Endpoints[2:] }, policy.ClusterScope,
			[]policy.EndpointState{policy.Gone, policy.NotReady, policy.Ready, policy.ZeroWeight, policy.OtherPorts, policy.OtherFamily}},
		{"not ready ones are used", func(s *source.Service) { s.PublishNotReady = true }, policy.ClusterScope,
			[]policy.EndpointState{policy.Ready, policy.Ready, policy.Ready, policy.Ready, policy.Ready, policy.ZeroWeight, policy.OtherPorts, policy.OtherFamily}},
	}
	for _, tt := range tests {
		s := &source.Service{Ports: []source.Port{{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 80}}, Endpoints: slices.Clone(all)}
		if tt.change != nil {
			tt.change(s)
		}
		got := policy.States(policy.Subject{Service: s}, &policy.Node{Name: "node", Zone: "z"}, policy.IPv4, s.Ports[0], tt.scope)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got: %v\nwant: %v", tt.name, got, tt.want)
		}
	}
}
