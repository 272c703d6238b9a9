//go:build !nokubernetes

package kubernetes

import (
	"maps"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// merge returns the service with the endpoints of its slices, which are in order
// of their names, and what of them is not used.
func merge(svc *source.Service, list []*slice) (*source.Service, notes) {
	var n notes
	out := *svc
	out.Endpoints = n.endpoints(svc, list)
	out.TrafficDistribution = source.Evenly
	if slices.ContainsFunc(list, func(s *slice) bool { return s.hinted }) {
		out.TrafficDistribution = source.AsHinted
	}
	return &out, n
}

// endpoints returns those of all slices that packets to the service can be sent
// to, each once: while an endpoint moves between slices it is in both.
func (n *notes) endpoints(svc *source.Service, list []*slice) []source.Endpoint {
	count := 0
	for _, s := range list {
		count += len(s.endpoints)
	}
	out := make([]source.Endpoint, 0, count)
	var numbers map[string]uint16
	for _, s := range list {
		next, some := ports(svc, s)
		if !some {
			continue
		}
		if !maps.Equal(next, numbers) { // else the map of the slice before serves
			numbers = next
		}
		for _, e := range s.endpoints {
			e.Ports = numbers
			if n.fits(svc, &e) {
				out = append(out, e)
			}
		}
	}
	if len(list) > 1 { // one slice is in order already
		slices.SortStableFunc(out, compareEndpoints)
	}
	return distinct(svc, out)
}

// fits reports whether packets to the service can be sent to e, and takes from
// it the ports where it is exactly an address and port of the service.
func (n *notes) fits(svc *source.Service, e *source.Endpoint) bool {
	if !hasFamily(svc.VIPs, e.Addr) {
		n.add("endpoint %s is of a family of which the service has no cluster IP: left out", e.Addr)
		return false
	}
	if !isOwn(svc, e.Addr) {
		return true
	}
	left, own := false, make(map[string]uint16, len(svc.Ports))
	for _, p := range svc.Ports {
		number := e.Port(p)
		if slices.ContainsFunc(svc.Ports, func(q source.Port) bool { return q.Protocol == p.Protocol && q.Port == number }) {
			n.add("endpoint %s/%s is an address and port of the service itself: left out", netip.AddrPortFrom(e.Addr, number), p.Protocol)
			number = 0
		}
		left = left || number != 0
		own[p.Name] = number
	}
	e.Ports = own
	return left
}

// isOwn reports whether a is an address of the service itself.
func isOwn(svc *source.Service, a netip.Addr) bool {
	return slices.Contains(svc.VIPs, a) || slices.Contains(svc.ExternalIPs, a) || slices.Contains(svc.LoadBalancerIPs, a)
}

// ports returns where the numbers of a slice differ from those of the service,
// and whether it serves any port.
func ports(svc *source.Service, s *slice) (numbers map[string]uint16, some bool) {
	for _, p := range svc.Ports {
		n := s.port(p)
		some = some || n != 0
		if n == p.TargetPort {
			continue
		}
		if numbers == nil {
			numbers = make(map[string]uint16, len(svc.Ports))
		}
		numbers[p.Name] = n
	}
	return numbers, some
}

// port returns under which number the endpoints of s serve p; 0: they do not.
func (s *slice) port(p source.Port) uint16 {
	for _, sp := range s.ports {
		if sp.name == p.Name && sp.protocol == p.Protocol {
			return sp.number
		}
	}
	return 0
}

// distinct leaves out of endpoints, which are in order, what another one with
// the same address that comes before already is.
func distinct(svc *source.Service, list []source.Endpoint) []source.Endpoint {
	out := list[:0]
	for _, e := range list {
		first := len(out)
		for first > 0 && out[first-1].Addr == e.Addr {
			first--
		}
		if first == len(out) || remainder(svc, &e, out[first:]) {
			out = append(out, e)
		}
	}
	return out
}

// remainder takes from e the ports under which one of others serves too, and
// reports whether any is left.
func remainder(svc *source.Service, e *source.Endpoint, others []source.Endpoint) (left bool) {
	numbers := make(map[string]uint16, len(svc.Ports))
	for _, p := range svc.Ports {
		n := e.Port(p)
		if slices.ContainsFunc(others, func(o source.Endpoint) bool { return o.Port(p) == n }) {
			n = 0
		}
		if n != p.TargetPort {
			numbers[p.Name] = n
		}
		left = left || n != 0
	}
	e.Ports = numbers
	return left
}
