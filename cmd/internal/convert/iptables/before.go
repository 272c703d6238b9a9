package iptables

import (
	"fmt"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// exit records that a rule ends the way of what it matches. RETURN and -g do so within their chain. DNAT of one address is compared
// where its frontend becomes a pool, unless it is left out.
func (w *walker) exit(r rule, m *match) {
	e, ok := m.and(r)
	switch {
	case !ok || r.ofDocker() || e.fromHost || r.target == "DNAT" && e.dst.IsSingleIP() && e.limited == "" && e.ports != nil:
	case r.target == "RETURN" || r.goesTo:
		e.chance = r.chance // of what gets to the chain
		m.returns = append(slices.Clip(m.returns), exit{e, r})
	case e.ports == nil || e.protocol == 0:
		w.before[frontKey{}] = append(w.before[frontKey{}], exit{e, r})
	default:
		for _, port := range e.ports {
			k := frontKey{protocol: e.protocol, port: port}
			w.before[k] = append(w.before[k], exit{e, r})
		}
	}
}

// meets returns the rules that keep some connections from a leaf and a port, and whether one keeps all of them.
func (w *walker) meets(m match, port uint16) (some []exit, all bool) {
	for _, list := range [][]exit{m.returns, w.before[frontKey{}], w.before[frontKey{protocol: m.protocol, port: port}]} {
		w.step(len(list))
		for _, e := range list {
			switch {
			case !e.overlaps(m, port):
			case e.covers(m):
				return []exit{e}, true
			default:
				some = append(some, e)
			}
		}
	}
	return some, false
}

// overlaps reports whether an exit may match what gets to a leaf of another frontend.
func (e exit) overlaps(m match, port uint16) bool {
	apart := func(a, b netip.Prefix) bool { return a.IsValid() && b.IsValid() && !a.Overlaps(b) }
	not := func(s side, b netip.Prefix) bool { return s.not && b.IsValid() && within(b, s.Prefix) }
	same := e.rule.target == "DNAT" && !e.dst.IsValid() && !m.dst.IsValid()
	return !same && (e.protocol == 0 || e.protocol == m.protocol) && (e.ports == nil || slices.Contains(e.ports, port)) &&
		!apart(e.dst, m.dst) && !apart(e.src, m.src) && !not(e.rule.dst, m.dst) && !not(e.rule.src, m.src)
}

// covers reports whether an exit matches all that gets to a leaf with which it overlaps.
func (e exit) covers(m match) bool {
	return !e.bySource(m) && e.chance == 1 && e.affinity == 0 && e.shortcut == 0 && (!e.local || m.local) && within(m.dst, e.dst)
}

// bySource reports whether an exit depends on where connections come from, or on more than is known.
func (e exit) bySource(m match) bool {
	return e.limited != "" || e.notIn != "" || !within(m.src, e.src)
}

// within reports whether a range is a part of another one. An invalid range is every address.
func within(a, b netip.Prefix) bool {
	return !b.IsValid() || a.IsValid() && a.Bits() >= b.Bits() && b.Overlaps(a)
}

const saysWho = "source_ranges says who may use a service"

// noteWider notes what kept some connections from a service: an interface, and rules that packets met before.
func noteWider(s *reader.Service, f *frontend) {
	open := func(at reader.Position, l leaf, what string) {
		s.Opens = true
		to := "all sources"
		if len(f.ranges) > 0 || l.src.IsValid() {
			to = "all of its source ranges"
		}
		s.Note(at, fmt.Sprintf("service %s is open to %s now: %s is left out", s.Key, to, what), saysWho)
	}
	for _, l := range f.leaves {
		if l.notIn != "" {
			open(l.at, l, "! -i "+source.Excerpt(l.notIn))
		}
		for _, e := range l.before {
			text := source.Excerpt(e.rule.text)
			switch {
			case e.rule.rewrites() && e.rule.src.not:
				open(e.rule.at, l, text)
			case e.rule.rewrites():
				s.Note(e.rule.at, fmt.Sprintf("%s comes first: connections to service %s that it matches go to the service now", text, s.Key), "")
			case e.bySource(l.match):
				open(e.rule.at, l, text)
			default:
				s.Note(e.rule.at, fmt.Sprintf("%s is left out: connections that it keeps from service %s reach it too", text, s.Key), "")
			}
		}
	}
}
