package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// maxSteps bounds how many rules are looked at, from chain to chain.
const maxSteps = 2_000_000

// readIPTables follows packets from PREROUTING of table nat to the rules that rewrite their
// destination.
func readIPTables(in Input) (*Result, error) {
	rs, err := readRules(in)
	if err != nil {
		return nil, err
	}
	w := &walker{Result: &Result{}, rules: rs, fronts: map[frontKey]*frontend{}, leads: map[string]bool{}}
	if len(rs.nat["PREROUTING"]) == 0 {
		return nil, errorAt(place{in.Name, 0}, "the table nat has no rules in PREROUTING")
	}
	if err := w.walk("PREROUTING", match{chance: 1}, 0); err != nil {
		return nil, errorAt(place{in.Name, 0}, "%s", err)
	}
	w.firewalls()
	if err := w.kube(); err != nil {
		return nil, err
	}
	return w.Result, w.plain()
}

// A frontKey is what clients connect to. Without address it is every address of the host.
type frontKey struct {
	addr     netip.Addr
	protocol source.Protocol
	port     uint16
}

// A frontend is where the connections to one address and port go.
type frontend struct {
	frontKey
	comment string // of kube-proxy
	leaves  []leaf
	ranges  []netip.Prefix // who may use it; nil: everybody
}

// A leaf is a rule that rewrites the destination, and what leads there.
type leaf struct {
	match
	at place
	to []netip.AddrPort // port 0: the same
}

// A match is what all rules on a way to another one want.
type match struct {
	dst      netip.Prefix
	local    bool // an address of the host
	protocol source.Protocol
	ports    []uint16
	src      netip.Prefix
	fromHost bool
	in       string
	chance   float64
	affinity uint64
	comment  string
	limited  string // what else is wanted; empty: nothing
	svl      bool   // it leads through a chain for endpoints of this host
}

type walker struct {
	*Result
	rules  *ruleset
	fronts map[frontKey]*frontend
	order  []*frontend
	leads  map[string]bool // whether a chain leads to a DNAT
	steps  int
}

// walk follows packets through a chain.
func (w *walker) walk(chain string, m match, depth int) error {
	if depth > maxDepth {
		return nil // a loop, which the kernel refuses
	}
	m.svl = m.svl || strings.HasPrefix(chain, "KUBE-SVL-")
	for _, r := range w.rules.nat[chain] {
		if w.steps++; w.steps > maxSteps {
			return fmt.Errorf("more than %d rules lead from one to another", maxSteps)
		}
		if r.target == "DNAT" {
			if err := w.leaf(r, m); err != nil {
				return err
			}
			continue
		}
		if r.target == "REDIRECT" {
			w.note(r.at, "REDIRECT is left out: a process of this host is no endpoint", "have it listen on the port itself")
			continue
		}
		if strings.HasPrefix(r.target, "SVCP-") {
			w.note(r.at, "rules of svcproxy are left out", "")
			continue
		}
		if w.rules.nat[r.target] == nil || !w.leadsOn(r.target, 0) {
			continue
		}
		if next, ok := m.and(r); ok {
			if err := w.walk(r.target, next, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// leadsOn reports whether a chain leads to a rule that rewrites the destination, or to a note.
func (w *walker) leadsOn(chain string, depth int) bool {
	known, seen := w.leads[chain]
	if seen || depth > maxDepth {
		return known
	}
	w.leads[chain] = false
	for _, r := range w.rules.nat[chain] {
		if r.target == "DNAT" || r.target == "REDIRECT" || w.rules.nat[r.target] != nil && w.leadsOn(r.target, depth+1) {
			w.leads[chain] = true
			break
		}
	}
	return w.leads[chain]
}

// and returns what a rule wants beside what was wanted before; false: both cannot be.
func (m match) and(r rule) (match, bool) {
	if r.dst.IsValid() && !r.notDst {
		if m.dst.IsValid() && !m.dst.Contains(r.dst.Addr()) {
			return m, false
		}
		m.dst = r.dst
	}
	if r.notDst {
		m.limited = "! -d " + r.dst.String()
	}
	if r.protocol != 0 {
		if m.protocol != 0 && m.protocol != r.protocol {
			return m, false
		}
		m.protocol = r.protocol
	}
	if r.ports != nil {
		m.ports = r.ports
	}
	if r.src.IsValid() && !r.notSrc {
		m.src = r.src
	}
	m.local = m.local || r.dstLocal
	m.fromHost = m.fromHost || r.srcLocal
	if r.in != "" && !r.notIn {
		m.in = r.in
	}
	if r.comment != "" && m.comment == "" && r.ports != nil {
		m.comment = r.comment
	}
	if len(r.other) > 0 {
		m.limited = strings.Join(r.other, " ")
	}
	m.chance *= r.chance
	m.affinity = max(m.affinity, r.affinity)
	return m, true
}

// leaf notes where a rule sends what gets to it.
func (w *walker) leaf(r rule, m match) error {
	m, ok := m.and(r)
	if !ok {
		return nil
	}
	to, err := w.destinations(r.destination)
	if err == errGrown {
		return err
	}
	switch {
	case err != nil:
		w.note(r.at, "the rule is left out: "+err.Error(), "")
	case m.limited != "":
		w.note(r.at, "the rule is left out: no service is chosen by "+source.Excerpt(m.limited), "")
	case m.protocol == 0 || m.ports == nil:
		w.note(r.at, "the rule is left out: it is of all ports or all protocols", "write a service with the ports that are used")
	case m.dst.IsValid() && !m.dst.IsSingleIP():
		w.note(r.at, "the rule is left out: it is of the whole range "+m.dst.String(), "write a service with the addresses that are used")
	case m.dst.IsValid() && source.Unusable(m.dst.Addr()) != "":
		w.note(r.at, fmt.Sprintf("the rule is left out: %s is %s", m.dst.Addr(), source.Unusable(m.dst.Addr())), "")
	default:
		if m.in != "" {
			w.note(r.at, "-i "+source.Excerpt(m.in)+" is left out: services are chosen by address", "node_port_addresses says where node ports are served")
		}
		for _, port := range m.ports {
			if err := w.grow(1 + len(to)); err != nil {
				return err
			}
			f := w.front(frontKey{m.dst.Addr(), m.protocol, port})
			f.leaves = append(f.leaves, leaf{match: m, at: r.at, to: to})
		}
	}
	return nil
}

func (w *walker) front(k frontKey) *frontend {
	f := w.fronts[k]
	if f == nil {
		f = &frontend{frontKey: k}
		w.fronts[k] = f
		w.order = append(w.order, f)
	}
	return f
}

// destinations reads what DNAT rewrites to: ADDRESS, ADDRESS-ADDRESS, with :PORT behind it.
func (w *walker) destinations(text string) (to []netip.AddrPort, err error) {
	host, port := text, ""
	if i := strings.LastIndexByte(text, ':'); i >= 0 && (strings.Count(text, ":") == 1 || strings.Contains(text[:i], "]")) {
		host, port = text[:i], text[i+1:]
	}
	if strings.ContainsAny(port, "-/") {
		return nil, fmt.Errorf("it rewrites ports to the range %s", source.Excerpt(port))
	}
	n, err := portOf(port)
	if err != nil {
		return nil, err
	}
	list, err := w.addrRange(strings.ReplaceAll(strings.ReplaceAll(host, "[", ""), "]", ""))
	for _, a := range list {
		to = append(to, netip.AddrPortFrom(a, n))
	}
	return to, err
}

// firewalls reads who may use the addresses of load balancers: newer versions of kube-proxy drop the
// others in table filter.
func (w *walker) firewalls() {
	for _, r := range w.rules.filter["KUBE-PROXY-FIREWALL"] {
		if !r.dst.IsSingleIP() {
			continue
		}
		for _, port := range r.ports {
			f := w.fronts[frontKey{r.dst.Addr(), r.protocol, port}]
			if f == nil {
				continue
			}
			for _, inner := range w.rules.filter[r.target] {
				if inner.target == "RETURN" && inner.src.IsValid() && !inner.notSrc && len(f.ranges) < 1000 {
					f.ranges = append(f.ranges, inner.src.Masked())
				}
			}
		}
	}
}

// A pool is where connections to a frontend go in the end.
type pool struct {
	to       []netip.AddrPort
	weights  []uint16
	affinity uint64
	ranges   []netip.Prefix
	notes    []Note
}

// pool returns the endpoints of a frontend, with weights as rules give them shares.
func (f *frontend) pool() pool {
	p := pool{ranges: f.ranges}
	open := slices.ContainsFunc(f.leaves, func(l leaf) bool { return !l.src.IsValid() && !l.fromHost && l.affinity == 0 })
	shares := map[netip.AddrPort]float64{}
	rem := 1.0
	var first netip.Prefix
	for i, l := range f.leaves {
		switch {
		case l.affinity != 0:
			p.affinity = l.affinity
			continue
		case l.svl:
			p.notes = append(p.notes, Note{l.at, "the traffic policy local is left out: rules do not say on which node other endpoints are", `write node of endpoints, and external_traffic_policy = "local"`})
		case l.fromHost, open && l.src.IsValid():
			continue // others get there as well
		case l.src.IsValid():
			if !slices.Contains(p.ranges, l.src.Masked()) && len(p.ranges) < 1000 {
				p.ranges = append(p.ranges, l.src.Masked())
			}
			if i == 0 || !first.IsValid() {
				first = l.src
			}
			if l.src != first {
				continue
			}
		}
		share := rem * l.chance
		rem -= share
		for _, to := range l.to {
			if share <= 1e-9 {
				break
			}
			to = netip.AddrPortFrom(to.Addr(), orPort(to.Port(), f.port))
			if _, known := shares[to]; !known {
				p.to = append(p.to, to)
			}
			shares[to] += share / float64(len(l.to))
		}
	}
	p.weights = weights(p.to, shares)
	return p
}

func orPort(n, standard uint16) uint16 {
	if n == 0 {
		return standard
	}
	return n
}

// weights returns whole numbers that are to each other as shares are, within a fiftieth.
func weights(to []netip.AddrPort, shares map[netip.AddrPort]float64) []uint16 {
	least := 1.0
	for _, a := range to {
		least = min(least, shares[a])
	}
	out := make([]uint16, len(to))
	for scale := 1; scale <= 100; scale++ {
		good := true
		for i, a := range to {
			exact := shares[a] / least * float64(scale)
			out[i] = uint16(min(65535, exact+0.5))
			good = good && float64(out[i]) < exact*1.02 && float64(out[i]) > exact*0.98
		}
		if good {
			break
		}
	}
	return out
}
