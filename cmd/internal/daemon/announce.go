package daemon

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/source"
)

// connectAnnouncer makes what tells the network of addresses.
func (d *daemon) connectAnnouncer() {
	d.neighbours, d.noBGP = newNeighbours(d.log), d.fixed.BGP.NoBGP()
	late := &lateFamilies{mode: d.mode, unsynced: func() []*proxier.State {
		return d.loop.Unsynced(source.BGP, node.Families(d.fixed))
	}}
	d.announcer = announcer.New(announcer.Config{
		Log: d.log, BGP: d.fixed.BGP, Neighbours: d.neighbours, RouterID: d.routerID,
		Late: late.list,
		Open: func(b configs.BGP, peers announcer.Peers) (announcer.Speaker, error) { return openBGP(d.log, b, peers) },
	})
}

// routerID returns the first IPv4 address of this host, one that serves node ports before others.
// Those of loopback alone are not asked: services may have them, on every host the same.
func (d *daemon) routerID() netip.Addr {
	n := d.host.current()
	for _, a := range slices.Concat(n.NodePortAddrs, n.Addrs) {
		if a.Is4() && n.OwnsOnLink(a) {
			return a
		}
	}
	return netip.Addr{}
}

// useAnnounced takes over other settings of BGP. Service files are looked at again where they decide
// whether anything is announced.
func (d *daemon) useAnnounced(now configs.Settings) {
	d.announcer.Use(now.BGP)
	d.loop.SetReserved(node.Reserved(now))
	if why := now.BGP.NoBGP(); why != d.noBGP {
		d.noBGP = why
		each(d.sources, revalidator.Revalidate)
	}
}

// announcedNow returns what the network is told of, for metrics.
func (d *daemon) announcedNow() healthz.Announced {
	n := healthz.Announced{Addresses: make(map[string]int), Withheld: make(map[healthz.Withheld]int)}
	for _, a := range d.loop.Announced(nil) {
		if a.Announced {
			n.Addresses[a.Means]++
		} else {
			n.Withheld[healthz.Withheld{Means: a.Means, Reason: a.Withheld}]++
		}
	}
	for _, s := range d.announcer.Sessions() {
		n.Sessions = append(n.Sessions, healthz.AnnounceSession{
			Peer: s.Peer.String(), Up: s.Up(),
			Routes:  map[proxier.Family]int{proxier.IPv4: s.IPv4.Announced, proxier.IPv6: s.IPv6.Announced},
			Refused: map[proxier.Family]int{proxier.IPv4: s.IPv4.Refused, proxier.IPv6: s.IPv6.Refused},
		})
	}
	return n
}
