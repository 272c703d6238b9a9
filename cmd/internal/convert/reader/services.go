package reader

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// CommonTargets makes the number that most endpoints have for a port its target port.
func CommonTargets(s *source.Service) {
	ports := slices.Clone(s.Ports)
	for k, p := range ports {
		counts := map[uint16]int{}
		for i := range s.Endpoints {
			counts[s.Endpoints[i].Port(p)]++
		}
		if len(counts) > 0 {
			ports[k].TargetPort = slices.MaxFunc(slices.Sorted(maps.Keys(counts)), func(a, b uint16) int {
				return cmp.Compare(counts[a], counts[b]) // of several the lowest
			})
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		own := map[string]uint16{}
		for k, p := range s.Ports {
			if n := e.Port(p); n != ports[k].TargetPort {
				own[p.Name] = n
			}
		}
		if e.Ports = own; len(own) == 0 {
			e.Ports = nil
		}
	}
	s.Ports = ports
}

// A Named is an endpoint that has a host name instead of an address.
type Named struct {
	Name string
	source.Endpoint
}

// AddEndpoint adds an endpoint, and reports whether it did. It notes and leaves out a duplicate, and an endpoint of a family
// in which the service has no address.
func (s *Service) AddEndpoint(at Position, name string, e source.Endpoint) bool {
	place := s.EndpointAt(&e)
	if s.all.placesOf != s {
		s.all.placesOf, s.all.places = s, map[netip.AddrPort]int{}
		s.all.families = map[bool]bool{}
		for _, a := range s.VIPs {
			s.all.families[a.Is4()] = true
		}
	}
	why := ""
	switch before, twice := s.all.places[place]; {
	case twice:
		why = fmt.Sprintf("line %d has the same address and port", before)
	case len(s.VIPs) > 0 && !s.all.families[e.Addr.Is4()]:
		why = "it is of another family than the addresses of the service"
	}
	if why != "" {
		s.Note(at, name+" is left out: "+why, "")
		return false
	}
	s.all.places[place] = at.Line
	s.Endpoints = append(s.Endpoints, e)
	return true
}

// Endpoint returns one as it is where nothing more is written.
func Endpoint(a netip.Addr) source.Endpoint {
	return source.Endpoint{Addr: a, Weight: 1, Ready: true, Serving: true}
}

// SplitPorts returns a service of each port, where some endpoints do not serve all ports: a file cannot
// say so of one service. What only one can have stays with the first.
func SplitPorts(s *source.Service) []*source.Service {
	partly := func(e source.Endpoint) bool {
		return slices.ContainsFunc(s.Ports, func(p source.Port) bool { return e.Port(p) == 0 })
	}
	if len(s.Ports) < 2 || !slices.ContainsFunc(s.Endpoints, partly) {
		return []*source.Service{s}
	}
	var out []*source.Service
	for i, p := range s.Ports {
		one := *s
		one.Name = Label(s.Name + "-" + p.Name)
		one.Ports, one.Endpoints = []source.Port{p}, nil
		for _, e := range s.Endpoints {
			if n := e.Port(p); n != 0 {
				e.Ports = map[string]uint16{p.Name: n}
				one.Endpoints = append(one.Endpoints, e)
			}
		}
		if i > 0 {
			one.HealthCheckNodePort = 0
		}
		out = append(out, &one)
	}
	return out
}

// Protocols are those that a service can have, by their names.
var Protocols = map[string]source.Protocol{"tcp": source.TCP, "udp": source.UDP, "sctp": source.SCTP}

// FrontendName names a service after where clients reach it.
func FrontendName(a netip.Addr, port uint16, p source.Protocol) string {
	kind := "ip"
	if a.Is6() {
		kind = "ip6"
	}
	return fmt.Sprintf("%s-%s-%s-%d", kind, a, p, port)
}

// KeepsClients notes, once, that endpoints saw the addresses of clients, and that svcproxy masquerades them.
func (r *Result) KeepsClients(file string) {
	if slices.ContainsFunc(r.Services, (*Service).Masquerades) {
		r.Note(Position{File: file}, "endpoints saw the addresses of clients, and svcproxy masquerades those that are not local",
			`where answers come back through this host, set masquerade = "never" of the service, or local_cidrs or masquerade in svcproxy.toml`)
	}
}

// KeepsPods notes, once, that endpoints saw the addresses of pods, which kube-proxy knows by the cluster CIDR.
func (r *Result) KeepsPods(file string) {
	if slices.ContainsFunc(r.Services, func(s *Service) bool { return s.Masquerades() && len(s.VIPs) > 0 }) {
		r.Note(Position{File: file}, "endpoints saw the addresses of pods that use cluster IPs, and svcproxy masquerades sources that are not local",
			"set local_cidrs in svcproxy.toml to the addresses of pods, as --cluster-cidr of kube-proxy")
	}
}

// Masquerades reports whether clients of a service that are not local are masqueraded as svcproxy.toml says.
func (s *Service) Masquerades() bool {
	return !s.Forward.Answers() && s.Masquerade != source.MasqueradeNever && len(s.Endpoints) > 0
}

// SetAffinity keeps clients on their endpoint, as long as a service can.
func (s *Service) SetAffinity(at Position, d time.Duration) {
	if s.Affinity = d; d > source.MaxAffinity {
		s.Note(at, fmt.Sprintf("clients keep their endpoint for 24h, not for %s", d), "nothing to do, as a rule")
		s.Affinity = source.MaxAffinity
	}
}

// CheckTime returns a time of a check within the bounds of those, which is a standard one where none is written. A note says
// where it is not what is written.
func (s *Service) CheckTime(at Position, key, text string, standard time.Duration, read func(string) (time.Duration, error)) time.Duration {
	if text == "" {
		return standard
	}
	d, err := read(text)
	if err == nil {
		standard = max(source.MinCheckTime, min(source.MaxCheckTime, d))
	}
	if standard != d || err != nil {
		s.Note(at, fmt.Sprintf("%s is %s, not %s", key, decode.ShortDuration(standard), source.Excerpt(text)), "")
	}
	return standard
}

// A Checked is a server that is an endpoint, with its check.
type Checked struct {
	At    Position // of the check, or of a server without one
	Name  string
	Check *source.HealthCheck // nil: none
	Other bool                // Check means something else than what is written, as notes say
}

// SetCheck sets the check of a service. A service has one check, so where servers have different requests all their checks
// become comments. They also do where one of them means something else than what is written.
func (s *Service) SetCheck(servers []Checked) {
	i := slices.IndexFunc(servers, func(c Checked) bool { return c.Check != nil })
	if i < 0 {
		return
	}
	first := servers[i].Check
	isOther := func(c Checked) bool { return c.Other }
	why, hint := "the health check is a comment: it would not ask what is written", "correct it and take the # away, or write an exec check"
	if differs := func(c Checked) bool { return c.Check != nil && !sameButTimes(c.Check, first) }; slices.ContainsFunc(servers, differs) {
		why, hint = "servers have different checks, and a service has one: they are comments", "take the # from the one that holds for all endpoints, or write an exec check that asks each"
	} else if !slices.ContainsFunc(servers, isOther) {
		if s.all.check == nil || !first.Equal(s.all.check) {
			s.all.check = first
		}
		s.HealthCheck = s.all.check // services that have the same one share it
	}
	for _, c := range servers {
		if c.Check != nil {
			s.Asked = append(s.Asked, c.At)
		}
		switch {
		case c.Check == nil && s.HealthCheck != nil:
			s.Note(c.At, source.Printable(c.Name)+" gets the check of the others", "leave it out, or have it pass")
		case c.Check == nil || c.Check.Equal(s.HealthCheck):
		case s.HealthCheck != nil:
			s.Note(c.At, "the times of the check of "+source.Printable(c.Name)+" are left out: those of the first one hold for all", "")
		default:
			s.Note(c.At, why, hint)
			if len(s.Checks) < maxChecks && !slices.ContainsFunc(s.Checks, c.Check.Equal) {
				s.Checks = append(s.Checks, c.Check)
			}
		}
	}
}

// maxChecks is the number of different checks of a service that are printed as comments. Further ones are only noted.
const maxChecks = 100

// sameButTimes reports whether two checks ask the same, and differ at most in their times and in how many answers count.
func sameButTimes(a, b *source.HealthCheck) bool {
	same := *a
	same.Timeout, same.Interval, same.IntervalDown = b.Timeout, b.Interval, b.IntervalDown
	same.Rise, same.Fall, same.Refuse = b.Rise, b.Fall, b.Refuse
	return same.Equal(b)
}
