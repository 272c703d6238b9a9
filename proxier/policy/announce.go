package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/source"
)

// An Announcement is one address of a service that is to be announced by one of the means, and
// why it is not.
type Announcement struct {
	Addr     netip.Addr
	Means    source.Means // one
	Withheld Withheld
}

// Withheld is why an address is not announced. The zero Withheld: it is.
type Withheld uint8

// The causes. All but the first ones and the last ones are of the service, as Resolve finds it.
const (
	NotWithheld     Withheld = iota
	NoMeans                  // nothing announces by these means, see Announcer.Unavailable
	HostDrained              // this host is
	Refused                  // the file is refused, and no earlier version of it is in use
	DisabledService          // by its file
	CarriedHere              // BGP: an interface of this host carries it, other than lo
	NotCarried               // L2: no interface of this host carries it
	PortsTaken               // others have all of its ports
	NoEndpoints              // the service has none that could ever serve it here
	NoUsable                 // it has some, and cannot use them here
	WantedUnusable           // the same, and all for what people asked: drained, weight 0, disabled
	AllFail                  // no endpoint passes its check, whatever all_failed does with that
	Unproven                 // no endpoint that is used has passed its check yet
	LeavingHere              // policy local: the endpoints here terminate, and other nodes have some that are ready
	NotHeld                  // the kernel does not hold it yet
	KernelLacksIt            // the kernel cannot hold it
	NoRouter                 // BGP: nothing is in the way here, and no router hears of it, see Announcer.Unheard
	withheldCount
)

// String returns one word that does not change between versions, as for a label of a metric.
func (w Withheld) String() string {
	return [withheldCount]string{
		"", "no_means", "host_drained", "refused", "disabled", "own_address", "not_own_address", "claimed",
		"no_endpoint", "none_usable", "none_wanted", "all_failed", "unproven", "terminating", "pending", "unserved", "no_router",
	}[w]
}

// AllWithheld returns all causes but NotWithheld.
func AllWithheld() (list []Withheld) {
	for w := NotWithheld + 1; w < withheldCount; w++ {
		list = append(list, w)
	}
	return list
}

// Wanted reports whether it is so because people want it, and nothing has failed.
func (w Withheld) Wanted() bool {
	return w == HostDrained || w == DisabledService || w == NoEndpoints || w == WantedUnusable || w == LeavingHere
}

// Announcements decides which addresses of a service are announced on node, in one family: those
// that a frontend serves with an endpoint that passes its check, where it has one. All are resolved
// for it; what the kernel holds of them is not known here.
func Announcements(svc Subject, node *Node, fam Family, frontends []*Frontend) (list []Announcement) {
	if svc.Announce == 0 {
		return nil
	}
	for _, a := range svc.AnnouncedAddrs() {
		if FamilyOf(a) != fam {
			continue
		}
		why := svc.withholds(node, a, frontends)
		for _, means := range source.EachMeans {
			if svc.Announce&means != 0 {
				list = append(list, Announcement{a, means, cmp.Or(misplaced(node, a, means), why)})
			}
		}
	}
	return list
}

// misplaced returns why an address cannot be announced by these means, even if it serves. Routers find an
// address that a link carries by themselves; one of lo is there for this. Which links answer for one is known to the Announcer alone.
func misplaced(node *Node, a netip.Addr, means source.Means) Withheld {
	if means == source.BGP && node.OwnsOnLink(a) {
		return CarriedHere
	}
	return NotWithheld
}

// withholds returns why an address of s is not announced: NotWithheld where any of its frontends
// serves, else what is in the way of the first.
func (s Subject) withholds(node *Node, a netip.Addr, frontends []*Frontend) Withheld {
	if s.Disabled {
		return DisabledService
	}
	why := PortsTaken
	for _, f := range frontends {
		if f.Key.Addr != a || f.Key.Kind == NodePort {
			continue
		}
		switch now := s.Unready(node, f); {
		case now == NotWithheld:
			return NotWithheld
		case why == PortsTaken:
			why = now
		}
	}
	return why
}

// Unready returns why nobody should be sent to a frontend.
func (s Subject) Unready(node *Node, f *Frontend) Withheld {
	if s.AllFailAt(f) != "" {
		return AllFail
	}
	if f.Outside.Action == Balance {
		return s.unreadyTargets(node, f)
	}
	switch why := Why(s, node, f, f.Outside); {
	case why.counts() == "":
		return NoEndpoints
	case why.only(Draining, ZeroWeight, Disabled): // what people asked for
		return WantedUnusable
	case !why.local && why.only(Down):
		return AllFail
	}
	return NoUsable
}

// unreadyTargets is unready for a frontend that balances. Under policy local it answers as
// health_check_node_port does, except that an address stays where no node has a ready endpoint.
func (s Subject) unreadyTargets(node *Node, f *Frontend) Withheld {
	if s.HealthCheck != nil && !s.proven(f) {
		return Unproven
	}
	if f.Outside.Pool.Scope == LocalScope {
		chosen := choose(s, node, FamilyOf(f.Key.Addr), s.portOf(f))
		if chosen.readyElsewhereOnly(s) {
			return LeavingHere
		}
	}
	return NotWithheld
}

// proven reports whether a target of a frontend has passed its check.
func (s Subject) proven(f *Frontend) bool {
	port := s.portOf(f)
	return port != nil && slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool {
		at := netip.AddrPortFrom(e.Addr, e.Port(*port))
		return f.Outside.Pool.Targeted(at) && s.Conditions.Of(s.Service, &e).Check == source.CheckPassed
	})
}

// FrontendsAt returns the frontends of an address; r may be nil.
func (r *Resolved) FrontendsAt(a netip.Addr) []*Frontend {
	return lists.Keep(r.AllFrontends(), func(f *Frontend) bool { return f.Key.Addr == a && f.Key.Kind != NodePort })
}

// Announcement returns the one of the same address and means; nil: there is none.
func (r *Resolved) Announcement(x Announcement) *Announcement {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Announced, func(n Announcement) bool { return n.Addr == x.Addr && n.Means == x.Means })
	if i < 0 {
		return nil
	}
	return &r.Announced[i]
}

// Balances reports whether packets to an address are sent to endpoints; r may be nil.
func (r *Resolved) Balances(a netip.Addr) bool {
	return slices.ContainsFunc(r.FrontendsAt(a), func(f *Frontend) bool { return f.Outside.Action == Balance })
}

// AnnouncedAs returns a State with a frontend that is to be announced by these means; nil: there is none.
func (s Subject) AnnouncedAs(means source.Means, node *Node, fam Family) *State {
	r := Resolve(s.Service, s.Conditions, node, fam)
	if r == nil {
		return nil
	}
	for _, n := range r.Announced {
		if n.Means != means || n.Withheld != NotWithheld {
			continue
		}
		for _, f := range r.FrontendsAt(n.Addr) {
			if s.Unready(node, f) == NotWithheld {
				return OnlyFor(node, fam, r, f)
			}
		}
	}
	return nil
}
