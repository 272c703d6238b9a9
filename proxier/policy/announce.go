package policy

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

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
			switch {
			case svc.Announce&means == 0:
			case means == source.BGP && node.OwnsOnLink(a): // routers find it by themselves; one of lo is there for this
				list = append(list, Announcement{a, means, CarriedHere})
			default: // which links answer for an address is known to the Announcer alone
				list = append(list, Announcement{a, means, why})
			}
		}
	}
	return list
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

// Unready returns why nobody should be sent to a frontend. Under policy local one that balances answers as
// health_check_node_port does, except that an address stays where no node has a ready endpoint.
func (s Subject) Unready(node *Node, f *Frontend) Withheld {
	switch {
	case s.AllFailAt(f) != "":
		return AllFail
	case f.Outside.Action != Balance:
	case s.HealthCheck != nil && !s.proven(f):
		return Unproven
	case f.Outside.Pool.Scope == NodeScope:
		chosen := choose(s, node, FamilyOf(f.Key.Addr), s.portOf(f))
		if chosen.anyReady && len(chosen.readyHere(s)) == 0 { // others have some that are ready, those here terminate
			return LeavingHere
		}
		return NotWithheld
	default:
		return NotWithheld
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

// proven reports whether a target of a frontend has passed its check.
func (s Subject) proven(f *Frontend) bool {
	port := s.portOf(f)
	return port != nil && slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool {
		at := netip.AddrPortFrom(e.Addr, e.Port(*port))
		return f.Outside.Pool.Targeted(at) && s.Conditions.Of(s.Service, &e).Check == source.CheckPassed
	})
}
