//go:build !nokubernetes

package kubernetes

import (
	"fmt"
	"net/netip"
	"strings"

	utilnet "k8s.io/utils/net"

	"svcproxy.dev/svcproxy/source"
)

// maxNotes is how many lines are kept of what one object says that is not used.
// A slice has up to 1,000 endpoints, and nobody reads more than the first.
const maxNotes = 5

// notes say what of an object is not used as it stands, and why.
type notes struct {
	lines []string
	more  int
}

func (n *notes) add(format string, args ...any) {
	if len(n.lines) < maxNotes {
		n.lines = append(n.lines, fmt.Sprintf(format, args...))
		return
	}
	n.more++
}

// all returns the lines, and how many are left out.
func (n *notes) all() []string {
	if n.more == 0 {
		return n.lines
	}
	return append(n.lines[:len(n.lines):len(n.lines)], fmt.Sprintf("and %d more", n.more))
}

// addr reads an address as kube-proxy does: leading zeros do not count, and an
// IPv4 address written as IPv6 is an IPv4 address. One that no packet can be
// forwarded to is noted, as is what is no address.
func (n *notes) addr(what, text string) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(utilnet.ParseIPSloppy(text))
	if !ok {
		n.add("%s %s is not an address: left out", what, source.Excerpt(text))
		return netip.Addr{}, false
	}
	if a = a.Unmap(); source.Unusable(a) != "" {
		n.add("%s %s is %s: left out", what, a, source.Unusable(a))
		return netip.Addr{}, false
	}
	return a, true
}

// addrs reads those of list that can be used. Empty ones say nothing.
func (n *notes) addrs(what string, list []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range list {
		if text == "" {
			continue
		}
		if a, ok := n.addr(what, text); ok {
			out = append(out, a)
		}
	}
	return out
}

// prefix reads a range as kube-proxy does: as addr, with spaces around it and
// bits beyond its length.
func prefix(text string) (netip.Prefix, bool) {
	_, p, err := utilnet.ParseCIDRSloppy(strings.TrimSpace(text))
	if err != nil {
		return netip.Prefix{}, false
	}
	a, _ := netip.AddrFromSlice(p.IP) // has 4 or 16 bytes
	ones, _ := p.Mask.Size()
	if a.Is4In6() { // then the range has at least the 96 bits that say so
		a, ones = a.Unmap(), ones-96
	}
	return netip.PrefixFrom(a, ones).Masked(), true
}

// readPrefixes returns those of list that are ranges.
func readPrefixes(list []string) (out []netip.Prefix) {
	for _, text := range list {
		if p, ok := prefix(text); ok {
			out = append(out, p)
		}
	}
	return out
}
