package policy

import (
	"iter"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// What becomes of connections to a service of which no endpoint passes its check, as
// all_failed of files has it.
const (
	UseAll    = "use_all" // all that fail are used
	RefuseAll = "refuse"
)

// A failedUse says which endpoints that do not pass their check are used as if they did.
type failedUse uint8

const (
	useNone      failedUse = iota
	useReturning           // some pass again: those that may follow, see Condition.Returning, and those without a result
	useFailed              // none passes: all
)

// AllFail returns all_failed of a service if no endpoint passes its check of those of a family that
// could be used, or of those that serve a port where some do not serve every port; else it is empty.
func (s Subject) AllFail() string {
	if s.HealthCheck == nil {
		return ""
	}
	for fam, p := range s.peerings() {
		if setting := s.allFailOf(fam, p); setting != "" && Serves(s.Service, fam) {
			return setting
		}
	}
	return ""
}

// allFailOf is AllFail for one family, and for one port unless that is nil. One without a result
// does not pass, but is not refused.
func (s Subject) allFailOf(fam Family, p *source.Port) string {
	if s.HealthCheck == nil {
		return ""
	}
	setting, n := AllFailed(s.HealthCheck), s.count(s.peers(fam, p))
	if n.passing > 0 || n.failing == 0 || n.checking > 0 && setting == RefuseAll {
		return ""
	}
	return setting
}

// AllFailAt is allFail for what a frontend sends its packets to.
func (s Subject) AllFailAt(f *Frontend) string {
	if p := s.portOf(f); p != nil {
		return s.allFailOf(FamilyOf(f.Key.Addr), p)
	}
	return ""
}

// failedUse returns which endpoints of a family, and of a port unless that is nil, are used though
// they do not pass.
func (s Subject) failedUse(fam Family, p *source.Port) failedUse {
	if s.HealthCheck == nil || s.HealthCheck.Refuse {
		return useNone
	}
	switch n := s.count(s.peers(fam, p)); {
	case n.passing == 0 && n.failing > 0:
		return useFailed
	case n.passing == n.back && n.returning > 0: // and none has passed for longer
		return useReturning
	}
	return useNone
}

// failedUseAt is failedUse for what a frontend sends its packets to.
func (s Subject) failedUseAt(f *Frontend) failedUse {
	if p := s.portOf(f); p != nil {
		return s.failedUse(FamilyOf(f.Key.Addr), p)
	}
	return useNone
}

// spares reports whether an endpoint does not pass its check, and is used as if it did.
func (s Subject) spares(e *source.Endpoint, use failedUse) bool {
	state := StateOf(s, e)
	switch use {
	case useFailed:
		return state == Down || state == Checking
	case useReturning:
		return state == Checking || state == Down && s.Conditions.Of(s.Service, e).Returning
	}
	return false
}

// Spared returns the endpoints, by source.Service.EndpointAt, that do not pass their check and are
// used as if they did, at every port that they serve.
func (s Subject) Spared() map[netip.AddrPort]bool {
	spared := make(map[netip.AddrPort]bool)
	for fam, p := range s.peerings() {
		use := s.failedUse(fam, p)
		for e := range s.peers(fam, p) {
			at := s.EndpointAt(e)
			was, seen := spared[at]
			spared[at] = s.spares(e, use) && (was || !seen)
		}
	}
	return spared
}

// Peers yields the endpoints that stand in for one another: those of a family that could be used if
// they passed their check and, where some do not serve every port, serve one. An endpoint may be
// among several.
func (s Subject) Peers() iter.Seq[iter.Seq[*source.Endpoint]] {
	return func(yield func(iter.Seq[*source.Endpoint]) bool) {
		for fam, p := range s.peerings() {
			if !yield(s.peers(fam, p)) {
				return
			}
		}
	}
}

// peerings yields what peers takes.
func (s Subject) peerings() iter.Seq2[Family, *source.Port] {
	ports := []*source.Port{nil}
	if slices.ContainsFunc(s.Endpoints, servesSome) {
		ports = ports[:0]
		for i := range s.Ports {
			ports = append(ports, &s.Ports[i])
		}
	}
	return func(yield func(Family, *source.Port) bool) {
		for _, fam := range []Family{IPv4, IPv6} {
			for _, p := range ports {
				if !yield(fam, p) {
					return
				}
			}
		}
	}
}

// peers is Peers for one family, and for one port unless that is nil.
func (s Subject) peers(fam Family, p *source.Port) iter.Seq[*source.Endpoint] {
	return func(yield func(*source.Endpoint) bool) {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if FamilyOf(e.Addr) != fam || p != nil && e.Port(*p) == 0 || StateOf(s, e) > Down {
				continue
			}
			if !yield(e) {
				return
			}
		}
	}
}

// peerCounts are how many of some peers are how, by their check.
type peerCounts struct {
	passing, back      int // back: of those, so shortly that others may follow
	failing, returning int // returning: of those, they may follow
	checking           int
}

func (s Subject) count(peers iter.Seq[*source.Endpoint]) (n peerCounts) {
	for e := range peers {
		again := 0
		if s.Conditions.Of(s.Service, e).Returning {
			again = 1
		}
		switch StateOf(s, e) {
		case Down:
			n.failing++
			n.returning += again
		case Checking:
			n.checking++
		default:
			n.passing++
			n.back += again
		}
	}
	return n
}

// AllFailed returns what a check has for all_failed, as files have it.
func AllFailed(c *source.HealthCheck) string {
	if c.Refuse {
		return RefuseAll
	}
	return UseAll
}
