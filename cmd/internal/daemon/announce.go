package daemon

import (
	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
)

// announcing is what tells the network of addresses.
type announcing struct {
	*announcer.Announcer
	neighbours *neighbours
	noBGP      string // why there is no BGP, as service files were told
}

// use takes over other settings of BGP. It reports whether they change whether anything is announced:
// service files are then looked at again.
func (a *announcing) use(b configs.BGP) (decides bool) {
	a.Use(b)
	was := a.noBGP
	a.noBGP = b.NoBGP()
	return a.noBGP != was
}

// counts returns what the network is told of, for metrics.
func (a *announcing) counts(list []report.AnnouncedAddress) healthz.Announced {
	n := healthz.Announced{Addresses: make(map[string]int), Withheld: make(map[healthz.Withheld]int)}
	for _, one := range list {
		if one.Announced {
			n.Addresses[one.Means]++
		} else {
			n.Withheld[healthz.Withheld{Means: one.Means, Reason: one.Withheld}]++
		}
	}
	for _, s := range a.Sessions() {
		n.Sessions = append(n.Sessions, healthz.AnnounceSession{
			Peer: s.Peer.String(), Up: s.Up(),
			Routes:  map[policy.Family]int{policy.IPv4: s.IPv4.Announced, policy.IPv6: s.IPv6.Announced},
			Refused: map[policy.Family]int{policy.IPv4: s.IPv4.Refused, policy.IPv6: s.IPv6.Refused},
		})
	}
	return n
}
