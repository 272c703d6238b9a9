package source

import (
	"net/netip"
	"slices"
	"strings"
)

// The words for addresses of a node, beside ranges.
const (
	AllAddresses     = "all"     // all but loopback and link-local
	PrimaryAddresses = "primary" // the global ones of the interface of the default route
)

// NodeAddresses select addresses of a node, by any of the three. nil is no selection; one
// that is empty selects none.
type NodeAddresses struct {
	All, Primary bool
	Ranges       []netip.Prefix
}

// SelectAddresses returns the selection of a list of words and ranges. Others select nothing.
func SelectAddresses(list []string) *NodeAddresses {
	sel := &NodeAddresses{}
	for _, s := range list {
		switch s {
		case AllAddresses:
			sel.All = true
		case PrimaryAddresses:
			sel.Primary = true
		default:
			if p, err := netip.ParsePrefix(s); err == nil {
				sel.Ranges = append(sel.Ranges, p)
			}
		}
	}
	return sel
}

// Match reports whether an address is selected; primary: it is one of those.
func (n *NodeAddresses) Match(a netip.Addr, primary bool) bool {
	return n.All || n.Primary && primary || slices.ContainsFunc(n.Ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Words returns a selection as files list it; nil for none.
func (n *NodeAddresses) Words() []string {
	if n == nil {
		return nil
	}
	words := []string{}
	if n.All {
		words = append(words, AllAddresses)
	}
	if n.Primary {
		words = append(words, PrimaryAddresses)
	}
	for _, p := range n.Ranges {
		words = append(words, p.String())
	}
	return words
}

// String returns the list on one line; empty for nil.
func (n *NodeAddresses) String() string {
	if n == nil {
		return ""
	}
	return "[" + strings.Join(n.Words(), " ") + "]"
}
