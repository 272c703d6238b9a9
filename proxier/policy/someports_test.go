package policy_test

import (
	"fmt"
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// Whether all fail is asked of those that serve a port: one that passes, and serves another port
// alone, is none of them.
func TestAllFailOfAPort(t *testing.T) {
	svc := policytest.Service(policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2"))
	svc.Ports = []source.Port{
		{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 8080},
		{Name: "admin", Protocol: source.TCP, Port: 90, TargetPort: 9090},
	}
	svc.Endpoints[1].Ports = map[string]uint16{"http": 0}
	known := policy.Conditions{
		netip.MustParseAddrPort("10.0.0.1:8080"): {Check: source.CheckFailed, Settled: true},
		netip.MustParseAddrPort("10.0.0.2:9090"): {Check: source.CheckPassed},
	}
	s := policy.Subject{Service: svc, Conditions: known}
	if got := fmt.Sprintf("%s, %s, %s", s.AllFail(), s.AllFailOf(policy.IPv4, &svc.Ports[0]), s.AllFailOf(policy.IPv4, &svc.Ports[1])); got != "use_all, use_all, " {
		t.Errorf("all fail of the service, of http, of admin: %s", got)
	}
	pools := policy.Resolve(svc, known, policytest.Node(), policy.IPv4).Pools
	var got []string
	for _, p := range pools {
		got = append(got, fmt.Sprint(p.ServicePort.Port, p.Targets))
	}
	if text := fmt.Sprint(got); text != "[http[10.0.0.1:8080] admin[10.0.0.2:9090]]" {
		t.Errorf("targets: %s", text)
	}
}
