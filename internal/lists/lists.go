// Package lists has what packages do with lists and package slices lacks.
package lists

import (
	"net/netip"
	"slices"
)

// Keep returns the elements that are ok, in a list of its own; nil: there are none.
func Keep[T any](list []T, ok func(T) bool) []T {
	var out []T
	for _, v := range list {
		if ok(v) {
			out = append(out, v)
		}
	}
	return out
}

// Sorted sorts list in its place, and returns it without what is there twice.
func Sorted(list []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// InSorted reports whether a sorted list has a.
func InSorted(list []netip.AddrPort, a netip.AddrPort) bool {
	_, has := slices.BinarySearchFunc(list, a, netip.AddrPort.Compare)
	return has
}
