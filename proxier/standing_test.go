package proxier

import (
	"net/netip"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

func TestStandings(t *testing.T) {
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
		want   []Standing
	}{
		{"cluster", nil, ClusterScope, []Standing{Chosen, Chosen, Gone, NotReady, Terminating, ZeroWeight, OtherPorts, OtherFamily}},
		{"local", nil, LocalScope, []Standing{Chosen, OtherNode, Gone, OtherNode, OtherNode, OtherNode, OtherPorts, OtherFamily}},
		{"near", func(s *source.Service) { s.TrafficDistribution = source.PreferSameZone }, ClusterScope,
			[]Standing{Chosen, NotNear, Gone, NotReady, Terminating, ZeroWeight, OtherPorts, OtherFamily}},
		{"only terminating ones are left", func(s *source.Service) { s.Endpoints = s.Endpoints[2:] }, ClusterScope,
			[]Standing{Gone, NotReady, Chosen, ZeroWeight, OtherPorts, OtherFamily}},
		{"not ready ones are used", func(s *source.Service) { s.PublishNotReady = true }, ClusterScope,
			[]Standing{Chosen, Chosen, Chosen, Chosen, Chosen, ZeroWeight, OtherPorts, OtherFamily}},
	}
	for _, tt := range tests {
		s := &source.Service{Ports: []source.Port{{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 80}}, Endpoints: slices.Clone(all)}
		if tt.change != nil {
			tt.change(s)
		}
		got := Standings(Subject{Service: s}, &Node{Name: "node", Zone: "z"}, IPv4, s.Ports[0], tt.scope)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got: %v\nwant: %v", tt.name, got, tt.want)
		}
	}
}

func TestSender(t *testing.T) {
	h := &Host{LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, LocalInterfaces: []string{"cni0", "veth*"}}
	tests := []struct {
		sender Sender
		want   string
	}{
		{Sender{Addr: netip.MustParseAddr("10.1.2.3"), Interface: "eth0"}, "local_cidrs 10.0.0.0/8"},
		{Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "eth0"}, ""},
		{Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "cni0"}, "local_interfaces cni0"},
		{Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "cni01"}, ""},
		{Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "veth7"}, "local_interfaces veth*"},
		{Sender{Addr: netip.MustParseAddr("192.0.2.1"), Host: true}, ""},
	}
	outside, local := Route{Action: Drop}, Route{Action: Balance}
	f := &Frontend{Outside: outside, Local: local, Restricted: true, SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for _, tt := range tests {
		if got := h.LocalBy(tt.sender); got != tt.want {
			t.Errorf("%+v is local by %q, want %q", tt.sender, got, tt.want)
		}
		want := outside
		if tt.want != "" || tt.sender.Host {
			want = local
		}
		if got := f.RouteOf(tt.sender, h); got != want {
			t.Errorf("%+v meets %+v", tt.sender, got)
		}
		for m, covers := range map[Masquerade]bool{NoOne: false, Everyone: true, HostProcesses: tt.sender.Host, NonLocal: tt.want == ""} {
			if m.Covers(tt.sender, h) != covers {
				t.Errorf("%s covers %+v: %v", m, tt.sender, !covers)
			}
		}
		if f.Admits(tt.sender.Addr) != (tt.sender.Addr == netip.MustParseAddr("10.1.2.3")) {
			t.Errorf("%+v is admitted, or not", tt.sender)
		}
	}
}
