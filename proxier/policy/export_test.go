package policy

import (
	"net/netip"

	"svcproxy.dev/svcproxy/source"
)

// AllFailOf is AllFail of the peers of a family, and of a port unless that is nil.
func (s Subject) AllFailOf(fam Family, p *source.Port) string { return Peers{s, fam, p}.allFail() }

// WithoutContained is withoutContained.
func WithoutContained(in []netip.Prefix) []netip.Prefix { return withoutContained(in) }

// Counted returns how many endpoints are unusable, by state, and what policy local has to do with it.
func (r *Reason) Counted() (unusable []int, local bool, elsewhere int) {
	return r.unusable[:], r.local, r.elsewhere
}
