package daemon

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/bgp"
)

// A speaker is a bgp.Speaker as an Announcer sees it.
type speaker struct{ *bgp.Speaker }

// openBGP opens a speaker with the routers of which there is a password, which may be empty.
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

// peersOf returns the routers of which there is a password.
func peersOf(b configs.BGP, passwords announcer.Peers) (list []bgp.Peer, err error) {
	for i := range b.Peers {
		p := &b.Peers[i]
		password, usable := passwords[p.Address]
		if !usable {
			continue
		}
		marks, err := communities(slices.Concat(b.Communities, p.Communities))
		if err != nil {
			return nil, fmt.Errorf("peer %s: %w", p.Address, err)
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

// communities returns each of a list once.
func communities(words []string) (list []bgp.Community, err error) {
	for _, w := range words {
		c, err := bgp.ParseCommunity(w)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list, nil
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
