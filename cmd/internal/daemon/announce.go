package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/netutil/bgp"
	"svcproxy.dev/svcproxy/netutil/l2"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// announceSessions returns those with routers, for metrics.
func announceSessions(sessions []announcer.Session) (list []healthz.AnnounceSession) {
	for _, s := range sessions {
		list = append(list, healthz.AnnounceSession{
			Peer: s.Peer.String(), Up: s.Up(),
			Routes:  map[policy.Family]int{policy.IPv4: s.IPv4.Announced, policy.IPv6: s.IPv6.Announced},
			Refused: map[policy.Family]int{policy.IPv4: s.IPv4.Refused, policy.IPv6: s.IPv6.Refused},
		})
	}
	return list
}

// neighbours tells neighbours of addresses. It begins with the first address: most hosts have none.
type neighbours struct {
	*l2.Announcer
	begin chan struct{} // holds something when there is an address
}

// Set implements announcer.Neighbours.
func (n *neighbours) Set(list []netip.Addr) {
	if len(list) > 0 {
		wake.Once(n.begin)
	}
	n.Announcer.Set(list)
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

// A speaker is a bgp.Speaker as an Announcer sees it.
type speaker struct{ *bgp.Speaker }

// openBGP opens a speaker for the routers in passwords. An empty password means none.
func openBGP(log *slog.Logger, b configs.BGP, passwords announcer.Peers) (announcer.Speaker, error) {
	c := bgp.Config{
		AS: b.AS, RouterID: b.RouterID, ListenPort: int(b.Port),
		HoldTime: b.HoldTime, GracefulRestart: b.GracefulRestart, Log: log,
	}
	if b.Port == 0 {
		c.ListenPort = -1
	}
	var err error
	if c.Peers, err = peersOf(b, passwords); err != nil {
		return nil, err
	}
	s, err := bgp.New(c)
	if err != nil {
		return nil, err
	}
	return speaker{s}, nil
}

// peersOf returns the routers in passwords as peers.
func peersOf(b configs.BGP, passwords announcer.Peers) (list []bgp.Peer, err error) {
	for i := range b.Peers {
		p := &b.Peers[i]
		password, usable := passwords[p.Address]
		if !usable {
			continue
		}
		var marks []bgp.Community // each once
		for _, word := range slices.Concat(b.Communities, p.Communities) {
			c, err := bgp.ParseCommunity(word)
			if err != nil {
				return nil, fmt.Errorf("peer %s: %w", p.Address, err)
			}
			if !slices.Contains(marks, c) {
				marks = append(marks, c)
			}
		}
		list = append(list, bgp.Peer{
			Address: p.Address, AS: p.AS, Port: p.Port, Source: p.Source, Multihop: p.Multihop, TTLSecurity: p.TTLSecurity,
			HoldTime: p.HoldTime, Password: password, Communities: marks, MED: p.MED, LocalPreference: p.LocalPreference,
		})
	}
	return list, nil
}

// SetPeers implements announcer.Speaker.
func (s speaker) SetPeers(b configs.BGP, passwords announcer.Peers) (bool, error) {
	list, err := peersOf(b, passwords)
	if err != nil {
		return false, err
	}
	return s.Speaker.SetPeers(list)
}

// SetRoutes implements announcer.Speaker.
func (s speaker) SetRoutes(list []announcer.Route) error {
	routes := make([]bgp.Route, len(list))
	for i, r := range list {
		routes[i] = bgp.Route{Prefix: netip.PrefixFrom(r.Addr, r.Addr.BitLen()), Shutdown: r.Shutdown}
	}
	return s.Speaker.SetRoutes(routes)
}

// Sessions implements announcer.Speaker.
func (s speaker) Sessions(numbers bool) (list []announcer.Session) {
	state := s.Brief
	if numbers {
		state = s.State
	}
	for _, p := range state() {
		list = append(list, announcer.Session{
			Peer: p.Address, AS: p.AS, State: string(p.State), Since: p.Since,
			LastError: p.LastError, LastErrorAt: p.LastErrorAt,
			Notice: p.Notice,
			IPv4:   announcer.SessionRoutes(p.IPv4), IPv6: announcer.SessionRoutes(p.IPv6),
		})
	}
	return list
}
