package report

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Each endpoint and address has its state, and a reason where one is known.
func TestEachState(t *testing.T) {
	s := someSnapshot()
	s.Details = func(source.Key) map[netip.AddrPort]policy.Detail {
		return map[netip.AddrPort]policy.Detail{
			netip.MustParseAddrPort("10.0.0.1:8080"): {Drain: &policy.Drain{Reason: "new disk"}},
			netip.MustParseAddrPort("10.0.0.2:8080"): {Error: "refused"},
		}
	}
	var got []string
	EachState(s, func(o Object, state string, why func() string) {
		got = append(got, strings.TrimSpace(o.Kind+" "+o.Service+" "+o.Name+": "+state+" "+why()))
	})
	want := []string{
		"endpoint default/well 10.0.0.1: ready",
		"address default/well 10.96.0.10:80/tcp: balance",
		"address default/empty 10.96.0.10:80/tcp: reject no endpoints",
		"endpoint default/down 10.0.0.1: up",
		"endpoint default/down 10.0.0.2: down refused",
		"address default/down 10.96.0.10:80/tcp: balance",
		"endpoint default/drained 10.0.0.1: draining new disk",
		"endpoint default/drained 10.0.0.2: up",
		"address default/drained 10.96.0.10:80/tcp: balance",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
