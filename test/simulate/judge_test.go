package simulate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	proxierpolicy "svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/policy"
)

// detection is after how long a check says what an endpoint does: as many intervals of 5 s as Fall and Rise of
// policy.Drawer ask for and two more, with their timeouts, and the time in which others may follow one that comes back.
const detection = 35 * time.Second

// rest is how long nothing happens before all must be as it should be. Detection is followed by a slow start of a minute;
// meanwhile a Sync that hangs is given up after syncTimeout, and tried again within 30 s, and the kernel is compared.
const rest = detection + time.Minute + 25*time.Second

// A life is what an endpoint does with probes.
type life struct {
	since    time.Time
	dead     bool
	silent   bool          // of a dead one: it does not even refuse
	flapping time.Duration // it is dead and alive in turn, each for so long
}

// at reports whether the endpoint answers at a time.
func (l life) at(t time.Time) bool {
	if l.flapping > 0 {
		return t.Sub(l.since)/l.flapping%2 == 1
	}
	return !l.dead
}

// A moment is what is in force from a time on.
type moment struct {
	from  time.Time
	world policy.World // Known says what is drained
	lives map[netip.Addr]life
	asked map[string]time.Time // since when each endpoint is asked in the same way
	away  bool                 // the host is drained
}

// question says what is asked of an endpoint for which service; empty: nothing.
func question(s *source.Service, e *source.Endpoint) string {
	if s.HealthCheck == nil || s.Disabled || e.Disabled {
		return ""
	}
	return fmt.Sprint(s.Key, s.EndpointAt(e), s.AskedAt(e))
}

// checks returns what the check of an endpoint may say.
func (m *moment) checks(s *source.Service, e *source.Endpoint, now time.Time) []policy.Check {
	q, l := question(s, e), m.lives[e.Addr]
	switch {
	case q == "":
		return []policy.Check{policy.Unknown}
	case l.flapping > 0 || now.Sub(l.since) < detection || now.Sub(m.asked[q]) < detection:
		return []policy.Check{policy.Passed, policy.Failed, policy.Unknown}
	case l.dead:
		return []policy.Check{policy.Failed}
	}
	return []policy.Check{policy.Passed}
}

// legal calls visit with what is legal for a packet, for all that checks may say, until it returns false.
func (m *moment) legal(p policy.Packet, now time.Time, visit func(policy.Outcomes) bool) {
	s := m.world.Service(p)
	if s == nil {
		visit(policy.Legal(&m.world, p))
		return
	}
	w, known := m.world, maps.Clone(m.world.Known[s.Key])
	w.Known = map[source.Key]map[netip.AddrPort]policy.Known{s.Key: known}
	var of []*source.Endpoint
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; e.Addr.Is4() == p.To.Addr().Is4() {
			of = append(of, e)
		}
	}
	var try func(i int) bool
	try = func(i int) bool {
		if i == len(of) {
			return visit(policy.Legal(&w, p))
		}
		at := s.EndpointAt(of[i])
		for _, c := range m.checks(s, of[i], now) {
			k := known[at]
			k.Check = c
			if known[at] = k; !try(i + 1) {
				return false
			}
		}
		return true
	}
	try(0)
}

// A past is what was in force since the last rest.
type past []*moment

// between returns the moments of a time.
func (h past) between(since, now time.Time) (list []*moment) {
	for i, m := range h {
		if !m.from.After(now) && (i+1 == len(h) || h[i+1].from.After(since)) {
			list = append(list, m)
		}
	}
	return list
}

// illegal returns what a packet met that was not legal at any time of a span; none: all was.
func (h past) illegal(got policy.Outcomes, p policy.Packet, since, now time.Time) policy.Outcomes {
	left := maps.Clone(got)
	for _, m := range h.between(since, now) {
		at := m.from // from then on, what was not known of checks counts
		if since.After(at) {
			at = since
		}
		m.legal(p, at, func(legal policy.Outcomes) bool {
			maps.DeleteFunc(left, func(o policy.Outcome, _ int) bool { return legal[o] > 0 })
			return len(left) > 0
		})
		if len(left) == 0 {
			break
		}
	}
	return left
}

// comes reports whether a packet could be sent at any time of a span: that its sender is the host, or is not.
func (h past) comes(p policy.Packet, since, now time.Time) bool {
	return !slices.ContainsFunc(h.between(since, now), func(m *moment) bool { return carries(&m.world.Host, p.From) != p.Process })
}

func carries(h *policy.Host, a netip.Addr) bool {
	return slices.ContainsFunc(h.Addresses, func(own policy.Address) bool { return own.Addr == a })
}

// announced returns the addresses of a family that are announced once checks have said what they can.
func (m *moment) announced(fam proxierpolicy.Family, now time.Time) map[netip.Addr]bool {
	list := map[netip.Addr]bool{}
	for _, s := range m.world.Services {
		for _, a := range s.AnnouncedAddrs() {
			if proxierpolicy.FamilyOf(a) == fam && s.Announce != 0 && !s.Disabled && !m.away && !carries(&m.world.Host, a) && m.serves(s, a, now) {
				list[a] = true
			}
		}
	}
	return list
}

// serves reports whether a port of an address sends connections to an endpoint that is usable here and passes its check. Under
// policy local, it does not where those here terminate, and others are ready.
func (m *moment) serves(s *source.Service, a netip.Addr, now time.Time) bool {
	isVIP := slices.Contains(s.VIPs, a)
	local := isVIP && s.InternalTrafficPolicy == source.Local || !isVIP && s.ExternalTrafficPolicy == source.Local
	all := *s
	all.InternalTrafficPolicy, all.ExternalTrafficPolicy = source.Cluster, source.Cluster
	return slices.ContainsFunc(s.Ports, func(port source.Port) bool {
		here := m.balanced(s, port, a, now)
		proven := slices.ContainsFunc(here, func(e *source.Endpoint) bool {
			return s.HealthCheck == nil || m.checks(s, e, now)[0] == policy.Passed
		})
		isReady := func(e *source.Endpoint) bool { return e.Ready || s.PublishNotReady }
		leaves := local && !slices.ContainsFunc(here, isReady) && slices.ContainsFunc(m.balanced(&all, port, a, now), isReady)
		return proven && !leaves
	})
}

// balanced returns the endpoints that packets from outside to a port are sent to.
func (m *moment) balanced(s *source.Service, port source.Port, a netip.Addr, now time.Time) (list []*source.Endpoint) {
	open := *s
	open.SourceRanges, open.LoadBalancerSourceRanges = nil, nil
	only := *m
	only.world.Services = []*source.Service{&open}
	only.world.Host.LocalCIDRs, only.world.Host.LocalInterfaces = nil, nil
	from := netip.MustParseAddr("198.51.100.7")
	if a.Is6() {
		from = netip.MustParseAddr("2001:db8:9::7")
	}
	only.legal(policy.Packet{Protocol: port.Protocol, From: from, To: netip.AddrPortFrom(a, port.Port), Interface: "eth0"}, now, func(o policy.Outcomes) bool {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if o[policy.Outcome{Endpoint: netip.AddrPortFrom(e.Addr, e.Port(port))}]+o[policy.Outcome{Endpoint: netip.AddrPortFrom(e.Addr, e.Port(port)), Masqueraded: true}] > 0 {
				list = append(list, e)
			}
		}
		return false
	})
	return list
}
