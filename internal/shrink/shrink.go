// Package shrink finds the part of a list that makes something fail.
package shrink

import "slices"

// Fewest returns a part of a list that still fails, and of which no element can be left out, by delta debugging
// (Zeller and Hildebrandt, 2002). fails is asked for lists that are shorter than the last one that failed.
func Fewest[T any](list []T, fails func([]T) bool) []T {
	for parts := 2; len(list) > 1; {
		size := (len(list) + parts - 1) / parts
		shrunk := false
		for from := 0; from < len(list) && !shrunk; from += size {
			rest := slices.Concat(list[:from], list[min(from+size, len(list)):])
			if shrunk = fails(rest); shrunk {
				list, parts = rest, max(parts-1, 2)
			}
		}
		switch {
		case shrunk:
		case size == 1:
			return list
		default:
			parts = min(2*parts, len(list))
		}
	}
	return list
}
