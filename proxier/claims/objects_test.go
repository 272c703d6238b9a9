package claims

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// frontendsOf lists what there is of a service, with the endpoints that get new connections.
func frontendsOf(t *testing.T, tr *Tracker, name string) string {
	t.Helper()
	svc := tr.InUse(source.Key{Namespace: "default", Name: name})
	if svc == nil {
		return ""
	}
	var out []string
	for _, f := range policy.Resolve(svc, nil, policytest.Node(), policy.IPv4).Frontends {
		line := fmt.Sprintf("%s:%d/%s", f.Key.Addr, f.Key.Port, f.Key.Protocol)
		for _, target := range f.Outside.Pool.Targets {
			line += " " + target.String()
		}
		out = append(out, line)
	}
	if svc.HealthCheckNodePort != 0 {
		out = append(out, fmt.Sprintf("health %d", svc.HealthCheckNodePort))
	}
	return strings.Join(out, "\n")
}

// Of an object only the address and port, or the node port, that another has is
// left out: the rest of it follows its endpoints, and all of it when that is free.
func TestObjectLosesOnlyWhatAnotherHas(t *testing.T) {
	web := func(endpoint string) source.Changes {
		s := policytest.Service(policytest.Endpoints(endpoint), policytest.ExternalLocal)
		s.VIPs, s.HealthCheckNodePort = policytest.Addrs("10.96.0.10"), 32000
		s.Ports = []source.Port{
			{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 8080, NodePort: 30080},
			{Name: "dns", Protocol: source.UDP, Port: 80, TargetPort: 53, NodePort: 30080},
		}
		u := policytest.Object("default/web", 2)
		u.Services = []*source.Service{s}
		return policytest.Set(u)
	}
	tr := NewTracker([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:10349")})
	whole := `0.0.0.0:30080/tcp
0.0.0.0:30080/udp
10.96.0.10:80/tcp 10.0.0.1:8080
10.96.0.10:80/udp 10.0.0.1:53
203.0.113.1:80/tcp
203.0.113.1:80/udp
health 32000`
	tr.Apply(web("10.0.0.1 @there"))
	wants := func(want string) {
		t.Helper()
		if got := frontendsOf(t, tr, "web"); got != want {
			t.Errorf("\n got: %s\nwant: %s", got, want)
		}
	}
	wants(whole)
	tr.Apply(policytest.Set(policytest.File("a", "x 203.0.113.1:80", "y 32000"), policytest.Object("default/older", 1, "older 30080")))
	tr.Apply(web("10.0.0.2 @there"))
	wants(`0.0.0.0:30080/udp
10.96.0.10:80/tcp 10.0.0.2:8080
10.96.0.10:80/udp 10.0.0.2:53
203.0.113.1:80/udp`)
	if r := tr.Refusals(); len(r) != 1 || !r[0].Partial || len(r[0].Faults) != 3 {
		t.Errorf("refusals %+v, want one in part, with 3 faults", r)
	}
	tr.Apply(policytest.Gone("a"))
	tr.Apply(policytest.GoneObject("default/older"))
	wants(strings.ReplaceAll(whole, "10.0.0.1:", "10.0.0.2:"))
	if r := tr.Refusals(); len(r) != 0 {
		t.Errorf("refusals %+v", r)
	}
}
