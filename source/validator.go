package source

import "net/netip"

// problems are those that were found so far.
type problems []Problem

func (p *problems) fault(at Path, msg, hint string) {
	*p = append(*p, Problem{Path: at, Msg: msg, Hint: hint})
}

func (p *problems) warn(at Path, msg, hint string) {
	*p = append(*p, Problem{Path: at, Msg: msg, Hint: hint, Warning: true})
}

// maxProblems is how many problems of one service are looked for: nobody reads
// more, and each takes time to word.
const maxProblems = 1000

// full reports whether there is no use in looking on.
func (p problems) full() bool { return len(p) >= maxProblems }

type validator struct {
	*Service
	problems
	written []int               // which element of ports says each port; nil: each one
	where   map[netip.Addr]Path // of each address of the service
	served  map[PortAddr]int    // the ports of the service, as indexes
	named   map[string]bool     // ports, by name
}

// portAt returns which element of ports says a port.
func (v *validator) portAt(i int) int {
	if v.written == nil {
		return i
	}
	return v.written[i]
}

func portOnly(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, port) }

// seen remembers that k was found at i, and tells where it was found before.
func seen[K comparable](m map[K]int, k K, i int) (first int, twice bool) {
	if first, twice = m[k]; !twice {
		m[k] = i
	}
	return first, twice
}

// Unusable says why no packet can be forwarded to an address, or returns "".
func Unusable(a netip.Addr) string {
	switch {
	case a.Zone() != "":
		return "an address with a zone"
	case a.Is4In6():
		return "an IPv4 address written as IPv6"
	case a.IsUnspecified():
		return "the unspecified address"
	case a.Is4() && a.As4()[0] == 0:
		return "an address of 0.0.0.0/8, which the kernel does not route"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsMulticast():
		return "a multicast address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	}
	return ""
}
