package healthz

import (
	"github.com/prometheus/client_golang/prometheus"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// An AnnounceSession is that with a router.
type AnnounceSession struct {
	Peer string
	Up   bool

	Routes, Refused map[policy.Family]int // that it gets, and that it sends for nothing
}

// WatchAnnounced has what the network is told of asked for each time that metrics are: addresses that services ask to be
// announced, and sessions with routers.
func (m *Metrics) WatchAnnounced(now func() ([]report.AnnouncedAddress, []AnnounceSession)) {
	m.Register(collector(func(ch chan<- prometheus.Metric) {
		list, sessions := now()
		for _, s := range sessions {
			number(ch, one(s.Up), "bgp_session_up", "1 while the session with a router is established.", "peer", s.Peer)
			for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
				number(ch, s.Routes[fam], "bgp_routes_announced", "Routes that a router gets.", "peer", s.Peer, "ip_family", fam.Title())
				number(ch, s.Refused[fam], "bgp_routes_refused", "Routes that a router sends, none of which is used.",
					"peer", s.Peer, "ip_family", fam.Title())
			}
		}
		type how struct{ means, withheld string }
		counts := make(map[how]int)
		for _, a := range list {
			counts[how{a.Means, a.Withheld}]++
		}
		for _, m := range source.EachMeans {
			means := m.String()
			number(ch, counts[how{means, ""}], "announced_addresses",
				"Addresses of services that the network is told of, by how it is told.", "means", means)
			for _, why := range policy.AllWithheld() {
				number(ch, counts[how{means, why.String()}], "withheld_addresses",
					"Addresses of services that ask to be announced and are not, by how they would be and why they are not.",
					"means", means, "reason", why.String())
			}
		}
	}))
}
