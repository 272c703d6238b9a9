package flows

import (
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// Connection tracking sees nothing translated on the way to an endpoint that answers itself; what
// host processes send is. Of what goes by one packet it sees nothing translated either way.
func TestStaleFlowsToAnsweringEndpoints(t *testing.T) {
	const vip, client, process = "10.96.0.10:53", "10.9.9.9:999", "192.0.2.1:999"
	flows := []testFlow{
		{client, vip, vip}, {client, vip, "10.0.0.1:53"}, {client, vip, "10.0.0.9:53"},
		{process, vip, vip}, {process, vip, "10.0.0.1:53"}, {process, vip, "10.0.0.9:53"},
	}
	onePacket := func(s *source.Service) { s.OnePacket = true }
	direct := func(s *source.Service) { s.Forward.Method = source.ForwardDirect }
	service := func(edit ...func(*source.Service)) *source.Service {
		s := policytest.DNS(append(edit, policytest.Endpoints("10.0.0.1"))...)
		s.Ports[0].TargetPort, s.Ports[0].NodePort = 53, 0
		return s
	}
	for name, tt := range map[string]struct {
		service *source.Service
		gone    []testFlow
	}{
		"masquerade": {service(), []testFlow{flows[0], flows[2], flows[3], flows[5]}},
		"direct":     {service(direct), []testFlow{flows[2], flows[3], flows[5]}},
		"one packet": {service(onePacket), []testFlow{flows[2], flows[5]}},
	} {
		tbl := newTable(source.UDP)
		l := tbl.sync(policytest.Node(), map[string]*source.Service{"dns": tt.service})
		l.all = true
		if gone := tbl.removed(l, flows); !slices.Equal(gone, tt.gone) {
			t.Errorf("%s: removed\n got: %v\nwant: %v", name, gone, tt.gone)
		}
	}
}
