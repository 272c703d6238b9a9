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
	for _, p := range s.Peers() {
		if setting := p.allFail(); setting != "" && Serves(s.Service, p.fam) {
			return setting
		}
	}
	return ""
}

// allFail is AllFail for some peers. One without a result does not pass, but is not refused.
func (p Peers) allFail() string {
	if p.svc.HealthCheck == nil {
		return ""
	}
	setting, n := AllFailed(p.svc.HealthCheck), p.count()
	if n.passing > 0 || n.failing == 0 || n.checking > 0 && setting == RefuseAll {
		return ""
	}
	return setting
}

// AllFailAt is allFail for what a frontend sends its packets to.
func (s Subject) AllFailAt(f *Frontend) string {
	if p := s.portOf(f); p != nil {
		return Peers{s, FamilyOf(f.Key.Addr), p}.allFail()
	}
	return ""
}

// failedUse returns which of some peers are used though they do not pass.
func (p Peers) failedUse() failedUse {
	if p.svc.HealthCheck == nil || p.svc.HealthCheck.Refuse {
		return useNone
	}
	switch n := p.count(); {
	case n.passing == 0 && n.failing > 0:
		return useFailed
	case n.passing == n.back && n.returning > 0: // and none has passed for longer
		return useReturning
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
	for _, p := range s.Peers() {
		use := p.failedUse()
		for e := range p.All() {
			at := s.EndpointAt(e)
			was, seen := spared[at]
			spared[at] = s.spares(e, use) && (was || !seen)
		}
	}
	return spared
}

// Peers are the endpoints that stand in for one another: those of a family that could be used if
// they passed their check and, unless port is nil, serve it.
type Peers struct {
	svc  Subject
	fam  Family
	port *source.Port
}

// Peers returns all: one for each port where some endpoints do not serve every port. An endpoint may be
// among several.
func (s Subject) Peers() (list []Peers) {
	ports := []*source.Port{nil}
	if slices.ContainsFunc(s.Endpoints, servesSome) {
		ports = ports[:0]
		for i := range s.Ports {
			ports = append(ports, &s.Ports[i])
		}
	}
	for _, fam := range []Family{IPv4, IPv6} {
		for _, p := range ports {
			list = append(list, Peers{s, fam, p})
		}
	}
	return list
}

// All yields them.
func (p Peers) All() iter.Seq[*source.Endpoint] {
	return func(yield func(*source.Endpoint) bool) {
		for i := range p.svc.Endpoints {
			e := &p.svc.Endpoints[i]
			if FamilyOf(e.Addr) != p.fam || p.port != nil && e.Port(*p.port) == 0 || StateOf(p.svc, e) > Down {
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

func (p Peers) count() (n peerCounts) {
	for e := range p.All() {
		again := 0
		if p.svc.Conditions.Of(p.svc.Service, e).Returning {
			again = 1
		}
		switch StateOf(p.svc, e) {
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
