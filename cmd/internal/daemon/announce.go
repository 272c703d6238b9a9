package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/l2"
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

// neighbours tells neighbours of addresses. It begins with the first address: most hosts have none.
type neighbours struct {
	*l2.Announcer
	asked atomic.Bool
	begin chan struct{} // holds something when there is an address
}

func newNeighbours(log *slog.Logger) *neighbours {
	return &neighbours{Announcer: l2.New(log), begin: make(chan struct{}, 1)}
}

// Set implements announcer.Neighbours.
func (n *neighbours) Set(list []netip.Addr) {
	if len(list) > 0 && n.asked.CompareAndSwap(false, true) {
		n.begin <- struct{}{}
	}
	if n.asked.Load() {
		n.Announcer.Set(list)
	}
}

// run tells neighbours until ctx ends.
func (n *neighbours) run(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-n.begin:
		n.Run(ctx)
	}
}

// Unanswered implements announcer.Neighbours: no link answers for an address that fails on all.
func (n *neighbours) Unanswered() map[netip.Addr]string {
	if !n.asked.Load() {
		return nil
	}
	why, good := make(map[netip.Addr]string), make(map[netip.Addr]bool)
	for _, r := range n.Results() {
		if r.Err == nil {
			good[r.Addr] = true
		} else {
			why[r.Addr] = r.Err.Error()
		}
	}
	for a := range good {
		delete(why, a)
	}
	return why
}
