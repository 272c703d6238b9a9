package policy_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// A service of many addresses and ports is resolved in a time that grows as they do, and not with their square.
func TestResolveLarge(t *testing.T) {
	work := func(ports int, masquerade source.Masquerading) time.Duration {
		s := policytest.Service(policytest.Endpoints("10.0.0.1"))
		s.Ports, s.Masquerade = nil, masquerade
		for i := range ports {
			s.Ports = append(s.Ports, source.Port{Name: fmt.Sprint("p", i), Protocol: source.TCP, Port: uint16(i + 1), TargetPort: 8080})
		}
		for a := netip.MustParseAddr("10.64.0.1"); len(s.VIPs) < 50; a = a.Next() {
			s.VIPs = append(s.VIPs, a)
		}
		least := time.Hour
		for range 5 {
			before := processorTime(t)
			if got := len(policy.Resolve(s, nil, policytest.Node(), policy.IPv4).Pools); got != ports {
				t.Fatalf("%d pools of %d ports", got, ports)
			}
			least = min(least, processorTime(t)-before)
		}
		return least
	}
	for _, masquerade := range []source.Masquerading{source.MasqueradeAuto, source.MasqueradeNever} {
		if one, eight := work(250, masquerade), work(2000, masquerade); eight > 40*one {
			t.Errorf("masquerade %v: %v for 250 ports, %v for 2000", masquerade, one, eight)
		}
	}
}

// processorTime is how long this process has worked.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	fatal.If(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
