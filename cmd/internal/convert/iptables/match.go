package iptables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/source"
)

// maxSteps bounds how many rules are looked at, from chain to chain.
const maxSteps = 2_000_000

// A match is what all rules on a way to another one want.
type match struct {
	dst      netip.Prefix
	local    bool // an address of the host
	protocol source.Protocol
	ports    []uint16
	src      netip.Prefix
	fromHost bool
	notIn    string // an interface that it is not for
	chance   float64
	affinity uint64
	comment  string
	limited  string // what else is wanted; empty: nothing
	svl      bool   // it leads through a chain for endpoints of this host
	returns  []exit // of the chains on the way
	shortcut int    // a line by which pods and this host get around those; 0: it leads through none
}

// An exit is a rule that ends the way of what it matches, and what leads there.
type exit struct {
	match
	rule rule
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
	ofKube bool // as a comment says
	leaves []leaf
	ranges []netip.Prefix // who may use it; nil: everybody
}

// A leaf is a rule that rewrites the destination, and what leads there.
type leaf struct {
	match
	at reader.Position
	to []netip.AddrPort // port 0: the same

	persistent bool
	before     []exit // that keep some connections from it
}

type walker struct {
	*reader.Result
	rules  *ruleset
	fronts map[frontKey]*frontend
	order  []*frontend
	leads  map[string]bool     // whether a chain leads to a DNAT
	before map[frontKey][]exit // rules that packets meet before others, by port without address; of all ports: frontKey{}
	named  map[int]bool        // lines that packets get to, of rules that a service or a note has
	pools  map[*reader.Service]poolIndex
	steps  int
}

// A poolIndex finds endpoints of a service.
type poolIndex struct {
	of    map[netip.Addr][]int
	known map[servedPort]bool
	next  map[servedPort]int // how many endpoints of an address serve a port; number 0
}

// A servedPort is a port of an address, by name and number.
type servedPort struct {
	addr   netip.Addr
	port   string
	number uint16
}

// step counts what is looked at, and ends the reading where it is too much.
func (w *walker) step(n int) {
	if w.steps += n; w.steps > maxSteps {
		w.Fail("more than %d rules lead from one to another", maxSteps)
	}
}

// name describes a rule that rewrites destinations, for messages.
func (r *rule) name(m match) string {
	text := r.target
	if m.dst.IsValid() {
		text += " of " + m.dst.String()
	}
	switch n := len(r.ports); {
	case n == 1:
		text += fmt.Sprintf(" port %d", r.ports[0])
	case n > 1:
		text += fmt.Sprintf(" port %d and %d more", r.ports[0], n-1)
	}
	if r.destination != "" {
		text += " to " + source.Excerpt(r.destination)
	}
	return text
}

// and returns what a rule wants beside what was wanted before; false: both cannot be.
func (m match) and(r rule) (match, bool) {
	if r.shortcut() {
		if m.shortcut == 0 {
			m.shortcut = r.at.Line
		}
		r.src.Prefix, r.src.local, r.in = netip.Prefix{}, false, ""
	}
	dst, dstOK := narrow(m.dst, r.dst)
	src, srcOK := narrow(m.src, r.src)
	ports, portsOK := commonPorts(m.ports, r.ports)
	if !dstOK || !srcOK || !portsOK || r.protocol != 0 && m.protocol != 0 && m.protocol != r.protocol {
		return m, false
	}
	m.dst, m.src, m.ports, m.protocol = dst, src, ports, cmp.Or(r.protocol, m.protocol)
	m.local = m.local || r.dst.local
	m.fromHost = m.fromHost || r.src.local
	if r.in != "" && r.notIn && !r.ofDocker() {
		m.notIn = r.in
	}
	if r.comment != "" && m.comment == "" && r.ports != nil {
		m.comment = r.comment
	}
	m.limited = m.limitedBy(r)
	m.chance *= r.chance
	m.affinity = max(m.affinity, r.affinity)
	return m, true
}

// limitedBy returns a match, of a rule or of those before it, by which no service is chosen.
func (m match) limitedBy(r rule) string {
	switch {
	case len(r.other) > 0:
		return strings.Join(r.other, " ")
	case r.in != "" && !r.notIn:
		return "-i " + r.in
	case r.dst.not && !outside(m.dst, r.dst.Prefix):
		return "! -d " + r.dst.String()
	case r.src.not && !outside(m.src, r.src.Prefix):
		return "! -s " + r.src.String()
	}
	return m.limited
}

// outside reports whether a range, which is not every address, has nothing in common with another one.
func outside(a, b netip.Prefix) bool { return a.IsValid() && !a.Overlaps(b) }

// narrow returns what a range and the side of a rule have in common; false: nothing. An invalid range
// is every address.
func narrow(a netip.Prefix, of side) (netip.Prefix, bool) {
	b := of.Prefix
	switch {
	case of.not:
		return a, !a.IsValid() || !a.Overlaps(b) || b.Bits() > a.Bits()
	case !b.IsValid():
		return a, true
	case !a.IsValid():
		return b, true
	case b.Bits() > a.Bits():
		return b, a.Overlaps(b)
	}
	return a, a.Overlaps(b)
}

// commonPorts returns the ports that are in both lists; false: none. Nil is every port.
func commonPorts(a, b []uint16) ([]uint16, bool) {
	switch {
	case a == nil:
		return b, true
	case b == nil:
		return a, true
	}
	both := lists.Keep(a, func(n uint16) bool { return slices.Contains(b, n) })
	return both, both != nil
}
