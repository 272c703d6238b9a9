package report

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// An AnnouncedAddress is an address that services ask to be announced by one of the means.
type AnnouncedAddress struct {
	Address   netip.Addr `json:"address"`
	Means     string     `json:"means"`
	Announced bool       `json:"announced"`
	Withheld  string     `json:"withheld,omitempty"` // why it is not, one of AllWithheld
	Reason    string     `json:"reason,omitempty"`   // the same for people; of one that is announced: what of it does not serve

	Services []string `json:"services"` // that ask for it, by name, the first ones
	More     int      `json:"more_services,omitempty"`

	Place string `json:"place,omitempty"` // where the first that does not serve it is written
}

// maxSharers is how many services of an address are named.
const maxSharers = 5

// compare orders by address and means.
func (a AnnouncedAddress) compare(o AnnouncedAddress) int {
	return cmp.Or(a.Address.Compare(o.Address), cmp.Compare(a.Means, o.Means))
}

// Announced returns all addresses that are to be announced, those of a service that match
// accepts; nil: of all. They are in order.
func Announced(s *Snapshot, match func(*source.Service) bool) []AnnouncedAddress {
	wanted := func(svc *source.Service) bool { return match == nil || match(svc) }
	sum := announcedSum{
		Snapshot: s, unavailable: make(map[source.Means]string), unheard: make(map[policy.Family]string),
		at: make(map[policy.Announcement]*AnnouncedAddress),
	}
	for _, m := range source.EachMeans {
		if s.Announcer == nil {
			sum.unavailable[m] = "nothing announces by " + m.String()
		} else if text := s.Announcer.Unavailable(m); text != "" {
			sum.unavailable[m] = text
		}
	}
	if s.Announcer != nil {
		sum.unanswered = s.Announcer.Unanswered()
		for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
			sum.unheard[fam] = s.Announcer.Unheard(fam)
		}
	}
	for _, u := range usedByName(s, func(svc *source.Service) bool { return svc.Announce != 0 && wanted(svc) }) {
		for _, r := range u.families {
			sum.addService(u.Subject, r)
		}
	}
	for _, svc := range lists.Keep(s.Unannounced, wanted) { // which are not in use
		for i := range s.Syncs {
			refused := policy.Subject{Service: svc}
			for _, n := range policy.Announcements(refused, s.Node, s.Syncs[i].Family, nil) {
				n.Withheld = policy.Refused
				sum.add(refused, n, inFamily{})
			}
		}
	}
	list := make([]AnnouncedAddress, 0, len(sum.at))
	for _, row := range sum.at {
		list = append(list, *row)
	}
	slices.SortFunc(list, AnnouncedAddress.compare)
	return list
}

// announcedOf is Announced by service, of those that an AnnouncedAddress names.
func announcedOf(s *Snapshot, match func(*source.Service) bool) map[string][]AnnouncedAddress {
	by := make(map[string][]AnnouncedAddress)
	for _, a := range Announced(s, match) {
		for _, key := range a.Services {
			by[key] = append(by[key], a)
		}
	}
	return by
}

// An announcedSum gathers what several services say of an address.
type announcedSum struct {
	*Snapshot
	unavailable map[source.Means]string
	unanswered  map[netip.Addr]string
	unheard     map[policy.Family]string
	at          map[policy.Announcement]*AnnouncedAddress // by address and means
}

// addService adds what a family announces of a service: nothing, where it is disabled.
func (sum *announcedSum) addService(s policy.Subject, in inFamily) {
	if in.Resolved == nil {
		for _, n := range policy.Announcements(s, sum.Node, in.Family.Family, nil) {
			if !s.Disabled { // the family has not got to it yet
				n.Withheld = policy.NotHeld
			}
			sum.add(s, n, in)
		}
		return
	}
	for _, n := range in.Resolved.Announced {
		if n.Withheld == policy.NotWithheld {
			n.Withheld = sum.withholds(n, in)
		}
		sum.add(s, n, in)
	}
}

// withholds returns why what a service could announce is not, as far as it is the kernel or this host.
func (sum *announcedSum) withholds(n policy.Announcement, in inFamily) policy.Withheld {
	switch {
	case sum.Drained:
		return policy.HostDrained
	case slices.Contains(in.Family.Announced[in.Key], n):
		return policy.NotWithheld
	case in.holds(in.Key) && Lacks(in.Resolved, n.Addr, in.Unserved):
		return policy.KernelLacksIt
	}
	return policy.NotHeld
}

// add adds what one service says, as a family has resolved it.
func (sum *announcedSum) add(s policy.Subject, n policy.Announcement, in inFamily) {
	if sum.unavailable[n.Means] != "" {
		n.Withheld = policy.NoMeans
	}
	why := n.Withheld
	n.Withheld = policy.NotWithheld
	row := sum.at[n]
	if row == nil {
		row = &AnnouncedAddress{Address: n.Addr, Means: n.Means.String()}
		sum.at[n] = row
	}
	if len(row.Services) < maxSharers {
		row.Services = append(row.Services, s.Key.String())
	} else {
		row.More++
	}
	if row.Announced {
		return
	}
	first := row.Withheld == ""
	switch {
	case why == policy.NotWithheld && n.Means == source.L2 && sum.unanswered[n.Addr] != "":
		row.Withheld, row.Reason, row.Place = policy.NotCarried.String(), sum.unanswered[n.Addr], writtenAt(s.Service)
	case why == policy.NotWithheld && n.Means == source.BGP && sum.unheard[policy.FamilyOf(n.Addr)] != "":
		row.Withheld, row.Reason, row.Place = policy.NoRouter.String(), "ready, no router: "+sum.unheard[policy.FamilyOf(n.Addr)], ""
	case why == policy.NotWithheld:
		row.Announced, row.Withheld, row.Place = true, "", ""
		row.Reason = inPart(s, sum.Node, n.Addr, in.Resolved)
	case first:
		row.Withheld, row.Reason, row.Place = why.String(), sum.reason(why, s, n, in), writtenAt(s.Service)
	}
}

// reason says for people why an address is withheld.
func (sum *announcedSum) reason(why policy.Withheld, s policy.Subject, n policy.Announcement, in inFamily) string {
	switch why {
	case policy.NoMeans:
		return sum.unavailable[n.Means]
	case policy.KernelLacksIt:
		return whyAddrUnserved(n.Addr, in.Resolved, in.Unserved)
	case policy.NoEndpoints, policy.NoUsable, policy.WantedUnusable, policy.AllFail:
		return whyWithheld(s, sum.Node, n.Addr, in.Resolved)
	}
	return withheldWords[why]
}

// withheldWords are the reasons that need no more than their cause.
var withheldWords = map[policy.Withheld]string{
	policy.HostDrained:     "this host is drained",
	policy.Refused:         "its file is refused",
	policy.DisabledService: "enabled = false",
	policy.CarriedHere:     "an interface of this host carries it: routers find it without BGP (lo may have it)",
	policy.PortsTaken:      "other services have all of its ports",
	policy.Unproven:        "no endpoint has passed its check yet",
	policy.LeavingHere:     "policy local: the endpoints on this node terminate, and other nodes have ready ones",
	policy.NotHeld:         "the kernel does not hold it yet",
}

// whyWithheld says why the first frontend of an address does not serve.
func whyWithheld(s policy.Subject, node *policy.Node, a netip.Addr, r *policy.Resolved) string {
	for _, f := range r.FrontendsAt(a) {
		if s.Unready(node, f) == policy.NotWithheld {
			continue
		}
		if why := policy.Why(s, node, f, f.Outside).String(); why != "" {
			return why
		}
		return "no endpoint passes its check"
	}
	return ""
}

// inPart says which ports of an announced address do not serve; empty: all do.
func inPart(s policy.Subject, node *policy.Node, a netip.Addr, r *policy.Resolved) string {
	var ports []string
	for _, f := range r.FrontendsAt(a) {
		if s.Unready(node, f) != policy.NotWithheld {
			ports = append(ports, fmt.Sprintf("%d/%s", f.Key.Port, f.Key.Protocol))
		}
	}
	if len(ports) == 0 {
		return ""
	}
	const most = 4
	if more := len(ports) - most; more > 0 {
		ports = append(ports[:most], "...")
	}
	return "in part: not usable at " + strings.Join(ports, ", ")
}

// Unsynced returns those of families of which nothing was ever synced since the start, though addresses of
// theirs would be announced by these means if it had been. Each is a State with one frontend at such
// an address, and nothing else: the kernel may hold it from an earlier run. While this host
// is drained nothing would be announced.
func Unsynced(s *Snapshot, means source.Means, families []policy.Family) (list []*policy.State) {
	if s.Drained {
		return nil
	}
	synced := make(map[policy.Family]bool)
	for _, f := range s.Syncs {
		synced[f.Family] = !f.LastSync.IsZero()
	}
	for _, fam := range families {
		if synced[fam] {
			continue
		}
		if st := announcedAs(s, means, fam); st != nil {
			list = append(list, st)
		}
	}
	return list
}

// announcedAs returns a State with one frontend that would be announced; nil: none would.
func announcedAs(s *Snapshot, means source.Means, fam policy.Family) *policy.State {
	for _, svc := range s.Services {
		if svc.Announce&means == 0 {
			continue
		}
		if st := svc.AnnouncedAs(means, s.Node, fam); st != nil {
			return st
		}
	}
	return nil
}
