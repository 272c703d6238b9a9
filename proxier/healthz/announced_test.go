package healthz

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
)

// Each of the means and reasons is there from the start, and each router as of the time of a scrape.
func TestWatchAnnounced(t *testing.T) {
	m := NewMetrics("v1")
	var list []report.AnnouncedAddress
	var sessions []AnnounceSession
	m.WatchAnnounced(func() ([]report.AnnouncedAddress, []AnnounceSession) { return list, sessions })
	if n, err := testutil.GatherAndCount(m.registry, "svcproxy_withheld_addresses", "svcproxy_announced_addresses"); err != nil || n != 2*len(policy.AllWithheld())+2 {
		t.Errorf("%d series at the start, %v", n, err)
	}
	list = []report.AnnouncedAddress{{Means: "bgp"}, {Means: "bgp", Withheld: "all_failed"}, {Means: "bgp"}}
	sessions = []AnnounceSession{
		{Peer: "192.0.2.254", Up: true, Routes: map[policy.Family]int{policy.IPv4: 2}, Refused: map[policy.Family]int{policy.IPv6: 9}},
		{Peer: "2001:db8::1"},
	}
	const want = `
# HELP svcproxy_announced_addresses Addresses of services that the network is told of, by how it is told.
# TYPE svcproxy_announced_addresses gauge
svcproxy_announced_addresses{means="bgp"} 2
svcproxy_announced_addresses{means="l2"} 0
# HELP svcproxy_bgp_routes_announced Routes that a router gets.
# TYPE svcproxy_bgp_routes_announced gauge
svcproxy_bgp_routes_announced{ip_family="IPv4",peer="192.0.2.254"} 2
svcproxy_bgp_routes_announced{ip_family="IPv6",peer="192.0.2.254"} 0
svcproxy_bgp_routes_announced{ip_family="IPv4",peer="2001:db8::1"} 0
svcproxy_bgp_routes_announced{ip_family="IPv6",peer="2001:db8::1"} 0
# HELP svcproxy_bgp_routes_refused Routes that a router sends, none of which is used.
# TYPE svcproxy_bgp_routes_refused gauge
svcproxy_bgp_routes_refused{ip_family="IPv4",peer="192.0.2.254"} 0
svcproxy_bgp_routes_refused{ip_family="IPv6",peer="192.0.2.254"} 9
svcproxy_bgp_routes_refused{ip_family="IPv4",peer="2001:db8::1"} 0
svcproxy_bgp_routes_refused{ip_family="IPv6",peer="2001:db8::1"} 0
# HELP svcproxy_bgp_session_up 1 while the session with a router is established.
# TYPE svcproxy_bgp_session_up gauge
svcproxy_bgp_session_up{peer="192.0.2.254"} 1
svcproxy_bgp_session_up{peer="2001:db8::1"} 0
`
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "svcproxy_announced_addresses",
		"svcproxy_bgp_routes_announced", "svcproxy_bgp_routes_refused", "svcproxy_bgp_session_up"); err != nil {
		t.Error(err)
	}
}
