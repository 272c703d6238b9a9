package policy

import (
	"net/netip"

	"svcproxy.dev/svcproxy/source"
)

// AllFailOf is allFailOf.
func (s Subject) AllFailOf(fam Family, p *source.Port) string { return s.allFailOf(fam, p) }

// WithoutContained is withoutContained.
func WithoutContained(in []netip.Prefix) []netip.Prefix { return withoutContained(in) }

// Counted returns how many endpoints are unusable, by state, and what policy local has to do with it.
func (r *Reason) Counted() (unusable []int, local bool, elsewhere int) {
	return r.unusable[:], r.local, r.elsewhere
}
