package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/policy"
)

// Packet returns a question as package policy has it.
func (l *Lab) Packet(q Question) (p policy.Packet, err error) {
	p = policy.Packet{Protocol: q.Protocol, To: q.To, From: q.Source, Process: q.From == l.Node}
	switch {
	case p.Process:
		routes, err := l.Node.Links.RouteGet(q.To.Addr().AsSlice())
		if err != nil || len(routes) == 0 {
			return p, fmt.Errorf("the route to %s: %w", q.To, err)
		}
		from, _ := netip.AddrFromSlice(routes[0].Src)
		p.From = from.Unmap()
		return p, nil
	case slices.Contains(l.Local, q.From):
		p.Interface = q.From.Role
	default:
		p.Interface = "front"
	}
	if !p.From.IsValid() {
		p.From = q.From.Addr().of(q.To.Addr())
	}
	return p, nil
}

// of returns the address of the family of another.
func (d Dual) of(a netip.Addr) netip.Addr {
	if a.Is4() {
		return d.V4
	}
	return d.V6
}

// EndpointOf returns the address of the endpoint that answered a packet; not valid: none did.
func (l *Lab) EndpointOf(got Answer, p policy.Packet) netip.Addr {
	for _, h := range slices.Concat(l.Local, l.Remote, l.Many) {
		if h.Role == got.By {
			return h.Addr().of(p.To.Addr())
		}
	}
	return netip.Addr{}
}

// Model returns the service as package policy has it. Of a check it has no more than what is used when all fail.
func (s Service) Model() *source.Service {
	word := func(text string, words ...string) uint8 { return uint8(max(0, slices.Index(words, text))) }
	m := &source.Service{
		Key: source.Key{Namespace: "default", Name: s.Name}, VIPs: s.VIPs, ExternalIPs: s.ExternalIPs, LoadBalancerIPs: s.LoadBalancerIPs,
		SourceRanges: s.SourceRanges, LoadBalancerSourceRanges: s.LoadBalancerSourceRanges,
		InternalTrafficPolicy: source.TrafficPolicy(word(s.InternalTrafficPolicy, "cluster", "local")),
		ExternalTrafficPolicy: source.TrafficPolicy(word(s.ExternalTrafficPolicy, "cluster", "local")),
		TrafficDistribution:   source.TrafficDistribution(word(s.TrafficDistribution, "", "prefer_same_zone", "prefer_same_node")),
		Masquerade:            source.Masquerading(word(s.Masquerade, "", "auto", "all", "never")),
		PublishNotReady:       s.PublishNotReady, MinUp: uint16(s.MinUp),
	}
	if s.HealthCheck != nil {
		m.HealthCheck = &source.HealthCheck{Refuse: s.HealthCheck["all_failed"] == "refuse"}
	}
	if s.SessionAffinity != "" {
		m.Affinity = time.Hour
	}
	if s.NodePortAddresses != nil {
		m.NodePortAddresses = source.SelectAddresses(s.NodePortAddresses)
	}
	for _, p := range s.Ports {
		protocol := map[string]source.Protocol{"tcp": source.TCP, "udp": source.UDP}[p.Protocol]
		m.Ports = append(m.Ports, source.Port{Name: p.Name, Protocol: protocol, Port: p.Port, TargetPort: p.TargetPort, NodePort: p.NodePort})
	}
	for _, e := range s.Endpoints {
		is := func(set *bool, unset bool) bool {
			if set == nil {
				return unset
			}
			return *set
		}
		weight := uint16(1)
		if e.Weight != nil {
			weight = *e.Weight
		}
		out := source.Endpoint{
			Addr: e.Address, Ports: e.Ports, Weight: weight, Tier: uint8(e.Tier), Disabled: !is(e.Enabled, true),
			Ready: is(e.Ready, true), Serving: is(e.Serving, true), Terminating: is(e.Terminating, false),
		}
		out = out.With(source.Extras{Node: e.Node, Zone: e.Zone})
		m.Endpoints = append(m.Endpoints, out)
	}
	return m
}
