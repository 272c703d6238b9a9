package source

import (
	"net/netip"
	"slices"
)

// Unique returns the paths of the parts that no two services can have in common,
// in the order of Places.
func (s *Service) Unique() []Path {
	paths := []Path{At("name")}
	for _, l := range s.AddressLists() {
		for i := range l.Addrs {
			paths = append(paths, At(l.Key, i))
		}
	}
	for i, p := range s.Ports {
		if p.NodePort != 0 {
			paths = append(paths, At("ports", i, "node_port"))
		}
	}
	if s.HealthCheckNodePort != 0 {
		paths = append(paths, At("health_check_node_port"))
	}
	if s.EndpointsFrom != "" {
		paths = append(paths, At("endpoints_from"))
	}
	return paths
}

// SetPlaces says where what Unique names stands, in a text in which the service
// begins at begin. It is called before the service is sent on.
func (s *Service) SetPlaces(begin Position, at []Position) {
	s.Places = make([]Place, len(at))
	for i, p := range at {
		line, col := p.Line-begin.Line, p.Col
		if line == 0 {
			col -= begin.Col
		}
		s.Places[i] = Place{uint32(max(line, 0)), uint32(max(col, 0))}
	}
}

// NamePos returns where the name stands. Of what is not known more exactly, this
// and its like return where the service does.
func (s *Service) NamePos() Position { return s.place(0) }

// AddrPos returns where an address of the service stands.
func (s *Service) AddrPos(a netip.Addr) Position {
	n := 1
	for _, l := range s.AddressLists() {
		if i := slices.Index(l.Addrs, a); i >= 0 {
			return s.place(n + i)
		}
		n += len(l.Addrs)
	}
	return s.Pos
}

// NodePortPos returns where a node port stands, that of the health check too.
func (s *Service) NodePortPos(protocol Protocol, port uint16) Position {
	n := 1 + len(s.VIPs) + len(s.ExternalIPs) + len(s.LoadBalancerIPs)
	for _, p := range s.Ports {
		switch {
		case p.NodePort == 0:
		case p.NodePort == port && p.Protocol == protocol:
			return s.place(n)
		default:
			n++
		}
	}
	if s.HealthCheckNodePort == port && protocol == TCP {
		return s.place(n)
	}
	return s.Pos
}

// EndpointsFromPos returns where EndpointsFrom stands.
func (s *Service) EndpointsFromPos() Position {
	if s.EndpointsFrom == "" {
		return s.Pos
	}
	return s.place(max(len(s.Places)-1, 0)) // the last of Unique
}

// place returns where the part of an index in Places stands.
func (s *Service) place(i int) Position {
	if i >= len(s.Places) {
		return s.Pos
	}
	at := s.Places[i]
	if at.Line == 0 {
		return Position{File: s.Pos.File, Line: s.Pos.Line, Col: s.Pos.Col + int(at.Col)}
	}
	return Position{File: s.Pos.File, Line: s.Pos.Line + int(at.Line), Col: int(at.Col)}
}
