package report

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/flows/flowstest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// What is counted is what a worker would remove, and what connection tracking has.
func TestPlanCounts(t *testing.T) {
	at := netip.MustParseAddrPort
	before, after := udpState("53 192.0.2.11 192.0.2.12"), udpState("53 192.0.2.12")
	conntrack := &flowstest.Tracking{Flows: []flowstest.Flow{
		{"198.51.100.1:1", "10.96.0.1:53", "192.0.2.11:53"}, {"198.51.100.2:1", "10.96.0.1:53", "192.0.2.11:53"},
		{"198.51.100.3:1", "10.96.0.1:53", "192.0.2.12:53"}, {"198.51.100.4:1", "10.96.0.9:53", "192.0.2.11:53"},
	}}
	p := ComparePlan(before, after, policytest.Node(), false)
	list := p.Consequences()
	fatal.If(t, p.Count(t.Context(), conntrack, nil, list))
	want := []Consequence{{
		Service: "default/dns", Protocol: "udp", Effect: FlowsRemoved, Frontends: []string{"10.96.0.1:53/udp"},
		Endpoints: []netip.AddrPort{at("192.0.2.11:53")}, Connections: new(2),
	}}
	if diff := cmp.Diff(want, list, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmpopts.IgnoreUnexported(Consequence{})); diff != "" {
		t.Errorf("consequences (-want +got):\n%s", diff)
	}
	if len(conntrack.Flows) != 4 {
		t.Errorf("%d flows are left of 4", len(conntrack.Flows))
	}
}

// udpState is a State with default/dns at 10.96.0.1, of one port, and endpoints.
func udpState(portAndEndpoints string) *policy.State {
	words := strings.Fields(portAndEndpoints)
	s := &source.Service{
		Key: source.Key{Namespace: "default", Name: "dns"}, VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []source.Port{{Protocol: source.UDP, Port: 53, TargetPort: 53}},
	}
	for _, a := range words[1:] {
		s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: netip.MustParseAddr(a), Weight: 1, Ready: true, Serving: true})
	}
	return policy.NewState(policy.IPv4, policytest.Node(), []*source.Service{s})
}
