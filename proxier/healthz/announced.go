package healthz

import (
	"github.com/prometheus/client_golang/prometheus"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Announced is what the network is told of, in numbers.
type Announced struct {
	Addresses map[string]int    // that are announced, by means
	Withheld  map[Withheld]int  // that are not, though services ask for it
	Sessions  []AnnounceSession // with routers: as many as settings have
}

// Withheld is how an address is not announced.
type Withheld struct{ Means, Reason string }

// An AnnounceSession is that with a router.
type AnnounceSession struct {
	Peer string
	Up   bool

	Routes, Refused map[policy.Family]int // that it gets, and that it sends for nothing
}

// WatchAnnounced has numbers asked for each time that metrics are.
func (m *Metrics) WatchAnnounced(now func() Announced) {
	descs := []*prometheus.Desc{sessionUpDesc, routesDesc, refusedDesc, addressesDesc, withheldDesc}
	m.registry.MustRegister(collector{descs, func(ch chan<- prometheus.Metric) { now().collect(ch) }})
}

var (
	sessionUpDesc = desc("bgp_session_up", "1 while the session with a router is established.", "peer")
	routesDesc    = desc("bgp_routes_announced", "Routes that a router gets.", "peer", "ip_family")
	refusedDesc   = desc("bgp_routes_refused", "Routes that a router sends, none of which is used.", "peer", "ip_family")
	addressesDesc = desc("announced_addresses", "Addresses of services that the network is told of, by how it is told.", "means")
	withheldDesc  = desc("withheld_addresses", "Addresses of services that ask to be announced and are not, by how they would be and why they are not.", "means", "reason")
)

func (a Announced) collect(ch chan<- prometheus.Metric) {
	tell := func(d *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	for _, s := range a.Sessions {
		tell(sessionUpDesc, one(s.Up), s.Peer)
		for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
			tell(routesDesc, s.Routes[fam], s.Peer, fam.Title())
			tell(refusedDesc, s.Refused[fam], s.Peer, fam.Title())
		}
	}
	for _, means := range source.EachMeans {
		tell(addressesDesc, a.Addresses[means.String()], means.String())
		for _, why := range policy.AllWithheld() {
			tell(withheldDesc, a.Withheld[Withheld{means.String(), why.String()}], means.String(), why.String())
		}
	}
}
