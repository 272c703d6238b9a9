package read

import (
	"fmt"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// defaults are what [defaults] of a file says of all its services.
type defaults struct {
	service                          // what it says, in the place of a service
	has     []*decode.Field[service] // the keys that it has, in the order of serviceFields
	said    map[string]bool          // messages about what it says
}

// readCheck takes over the check, the one that share returns for it, and reports what is wrong with it alone.
func (d *defaults) readCheck(r *decode.Reader, share func(*source.HealthCheck) *source.HealthCheck) {
	at := source.At(checkKey)
	switch {
	case d.check == nil:
		return
	case d.check.none:
		r.Problem(source.Problem{Path: slices.Concat(at, source.At("type")), Msg: `type = "none" in [defaults] does nothing`, Hint: "it switches a default off, in a service", Warning: true})
		d.has = slices.DeleteFunc(d.has, func(f *decode.Field[service]) bool { return f.Key == checkKey })
		return
	}
	for _, problem := range source.ValidateCheck(&d.check.HealthCheck) {
		problem.Path = slices.Concat(at, problem.Path)
		d.said[problem.Msg] = true
		r.Problem(problem)
	}
	d.HealthCheck = share(&d.check.HealthCheck)
}

// note notes which keys a table has.
func (d *defaults) note(table map[string]any) {
	for i := range defaultFields {
		if _, ok := table[defaultFields[i].Key]; ok {
			d.has = append(d.has, &defaultFields[i])
		}
	}
}

// typical returns a service to which nothing is in the way of any default.
func (d *defaults) typical() *service {
	s := standardService
	s.Name, s.listed = "typical", true
	s.VIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
	s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("2001:db8::3")}
	s.Ports = []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 80}}
	for _, text := range []string{"192.0.2.11", "192.0.2.12", "2001:db8::11", "2001:db8::12"} {
		e := standardEndpoint
		e.Addr = netip.MustParseAddr(text)
		s.endpoints = append(s.endpoints, e.endpoint)
	}
	d.give(&s, nil)
	return &s
}

// give gives a service, whose keys a table has, what it lacks.
func (d *defaults) give(s *service, table map[string]any) {
	for _, f := range d.has {
		if _, own := table[f.Key]; own || !f.Needs(s) {
			continue
		}
		f.Copy(&d.service, s)
		s.inherited = append(s.inherited, f.Key)
	}
}

// inherits reports whether the value of a key is that of [defaults].
func (s *service) inherits(key string) bool { return slices.Contains(s.inherited, key) }

// inheritedKey returns the key of [defaults] that a problem of the service is about; empty: of none.
func (s *service) inheritedKey(p *source.Problem) string {
	if len(p.Path) > 0 && s.inherits(p.Path[0].Key) {
		return p.Path[0].Key
	}
	return ""
}

// ofDefaults is the hint for what is wrong with a service by a default that is good for others.
func ofDefaults(key string) string {
	return fmt.Sprintf("%s is that of [defaults]: write one of the service", key)
}

// aboutDefaults returns what is wrong with a service. What is wrong with defaults themselves has been said
// where they stand.
func (d *defaults) aboutDefaults(s *service, problems []source.Problem) (left []source.Problem) {
	if len(s.inherited) == 0 {
		return problems
	}
	for _, p := range problems {
		switch key := s.inheritedKey(&p); {
		case key == "":
		case d.said[p.Msg]:
			continue
		case key == checkKey:
			p.Path, p.Hint = nil, `it is that of [defaults]: write a health_check of the service, type = "none" for no check`
		default:
			p.Path, p.Hint = nil, ofDefaults(key)
		}
		left = append(left, p)
	}
	return left
}
