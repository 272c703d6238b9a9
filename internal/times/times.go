// Package times compares two times.
package times

import "time"

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Earlier returns the earlier of two times.
func Earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Due returns the earlier of two times at which something is due; zero is never.
func Due(a, b time.Time) time.Time {
	if a.IsZero() || b.IsZero() {
		return Later(a, b)
	}
	return Earlier(a, b)
}
