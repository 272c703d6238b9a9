package read

import (
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// Exceeds reports whether o lacks a service of v, or has fewer endpoints, addresses or ports of one, or lacks what
// keeps clients from one. What is replaced by something else is no sign of half a text.
func (v *Version) Exceeds(o *Version) bool {
	if v.List != nil {
		return o.List == nil || len(o.List.Endpoints) < len(v.List.Endpoints)
	}
	have := o.ByKey()
	return slices.ContainsFunc(v.Services, func(s *source.Service) bool {
		is, ok := have[s.Key]
		return !ok || hasFewer(is, s) || dropsRestriction(is, s)
	})
}

// hasFewer reports whether s has fewer of something than it had.
func hasFewer(s, was *source.Service) bool {
	return s.EndpointsFrom == "" && was.EndpointsFrom != "" || len(s.Endpoints) < len(was.Endpoints) || len(s.Ports) < len(was.Ports) || len(s.VIPs) < len(was.VIPs) ||
		len(s.ExternalIPs) < len(was.ExternalIPs) || len(s.LoadBalancerIPs) < len(was.LoadBalancerIPs)
}

// dropsRestriction reports whether s lacks a restriction that it had.
func dropsRestriction(s, was *source.Service) bool {
	return s.NodePortAddresses == nil && was.NodePortAddresses != nil || len(s.SourceRanges) == 0 && len(was.SourceRanges) > 0 || len(s.LoadBalancerSourceRanges) == 0 && len(was.LoadBalancerSourceRanges) > 0 ||
		s.InternalTrafficPolicy < was.InternalTrafficPolicy || s.ExternalTrafficPolicy < was.ExternalTrafficPolicy ||
		s.HealthCheckNodePort == 0 && was.HealthCheckNodePort != 0 || s.HealthCheck == nil && was.HealthCheck != nil
}

// ClaimsBeyond reports whether v claims something that o does not, which another
// file may be about to claim.
func (v *Version) ClaimsBeyond(o *Version) bool {
	have := o.ByKey()
	return slices.ContainsFunc(v.Services, func(s *source.Service) bool {
		is, ok := have[s.Key]
		return !ok || !containsAll(is.VIPs, s.VIPs) || !containsAll(is.ExternalIPs, s.ExternalIPs) || !containsAll(is.LoadBalancerIPs, s.LoadBalancerIPs) ||
			!containsAll(clientPorts(is), clientPorts(s)) || is.HealthCheckNodePort != s.HealthCheckNodePort
	})
}

// clientPorts returns the ports of a service as far as clients see them.
func clientPorts(s *source.Service) []source.Port {
	ports := slices.Clone(s.Ports)
	for i := range ports {
		ports[i].Name, ports[i].TargetPort = "", 0
	}
	return ports
}

// containsAll reports whether all of some are in list.
func containsAll[T comparable](list, some []T) bool {
	if slices.Equal(list, some) {
		return true
	}
	in := make(map[T]bool, len(list))
	for _, x := range list {
		in[x] = true
	}
	return !slices.ContainsFunc(some, func(x T) bool { return !in[x] })
}
