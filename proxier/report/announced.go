package report

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/proxier"
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

// Unheard reports whether the only reason is that no router is reachable.
func (a *AnnouncedAddress) Unheard() bool { return a.Withheld == policy.NoRouter.String() }

// maxSharers is how many services of an address are named.
const maxSharers = 5

// compare orders by address and means.
func (a AnnouncedAddress) compare(o AnnouncedAddress) int {
	return cmp.Or(a.Address.Compare(o.Address), cmp.Compare(a.Means, o.Means))
}

// An Announcer says what stands in the way of announcing. Any goroutine may call it.
type Announcer interface {
	// Unavailable says why nothing is announced by one of the means; empty: it is.
	Unavailable(means source.Means) string

	// Unheard says why no router gets routes of a family, where BGP is available; empty: one does.
	Unheard(policy.Family) string

	// Unanswered returns the addresses that neighbours should be told of and are not, and why.
	Unanswered() map[netip.Addr]string
}

// Announced returns all addresses that are to be announced, those of a service that match
// accepts; nil: of all. They are in order.
func Announced(s *Snapshot, match func(*source.Service) bool) []AnnouncedAddress {
	var list []policy.Subject
	at := make(map[source.Key]int) // of services that are announced
	for _, svc := range s.Services {
		if svc.Announce != 0 && (match == nil || match(svc.Service)) {
			list = append(list, svc.Subject)
			at[svc.Key] = 0
		}
	}
	slices.SortFunc(list, func(a, b policy.Subject) int { return a.Key.Compare(b.Key) })
	sum := announcedSum{Snapshot: s, unavailable: make(map[source.Means]string), unheard: make(map[policy.Family]string), at: make(map[policy.Announcement]*AnnouncedAddress)}
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
	for i := range s.Syncs {
		f := &s.Syncs[i]
		resolved := f.resolved(at)
		for _, svc := range list {
			sum.addService(f, svc, resolved[svc.Key])
		}
		for _, svc := range s.Unannounced {
			if match == nil || match(svc) {
				sum.addRefused(f.Family, svc)
			}
		}
	}
	return sum.sorted()
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

// addService adds what a family announces of a service; r is as the family has resolved it.
func (sum *announcedSum) addService(f *Family, s policy.Subject, r *policy.Resolved) {
	for _, n := range announcementsOf(s, sum.Node, f.Family, r) {
		if n.Withheld == policy.NotWithheld {
			n.Withheld = sum.withholds(f, n, r)
		}
		sum.add(s, n, r, f.Unserved)
	}
}

// announcementsOf returns those of a service as it was resolved: not at all, where it is disabled.
func announcementsOf(s policy.Subject, node *policy.Node, fam policy.Family, r *policy.Resolved) []policy.Announcement {
	if r != nil {
		return r.Announced
	}
	list := policy.Announcements(s, node, fam, nil)
	for i := range list {
		if !s.Disabled { // the family has not got to it yet
			list[i].Withheld = policy.NotHeld
		}
	}
	return list
}

// withholds returns why what a service could announce is not, as far as it is the kernel or this host.
func (sum *announcedSum) withholds(f *Family, n policy.Announcement, r *policy.Resolved) policy.Withheld {
	switch {
	case sum.Drained:
		return policy.HostDrained
	case r != nil && slices.Contains(f.Announced[r.Key], n):
		return policy.NotWithheld
	case r != nil && f.holds(r.Key) && Lacks(r, n.Addr, f.Unserved):
		return policy.KernelLacksIt
	}
	return policy.NotHeld
}

// add adds what one service says.
func (sum *announcedSum) add(s policy.Subject, n policy.Announcement, r *policy.Resolved, lacks *proxier.PartialError) {
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
		row.Reason = inPart(s, sum.Node, n.Addr, r)
	case first:
		row.Withheld, row.Reason, row.Place = why.String(), sum.reason(why, s, n, r, lacks), writtenAt(s.Service)
	}
}

// addRefused adds a service that is not in use.
func (sum *announcedSum) addRefused(fam policy.Family, s *source.Service) {
	for _, n := range policy.Announcements(policy.Subject{Service: s}, sum.Node, fam, nil) {
		n.Withheld = policy.Refused
		sum.add(policy.Subject{Service: s}, n, nil, nil)
	}
}

func (sum *announcedSum) sorted() []AnnouncedAddress {
	list := make([]AnnouncedAddress, 0, len(sum.at))
	for _, row := range sum.at {
		list = append(list, *row)
	}
	slices.SortFunc(list, AnnouncedAddress.compare)
	return list
}

// reason says for people why an address is withheld.
func (sum *announcedSum) reason(why policy.Withheld, s policy.Subject, n policy.Announcement, r *policy.Resolved, lacks *proxier.PartialError) string {
	switch why {
	case policy.NoMeans:
		return sum.unavailable[n.Means]
	case policy.KernelLacksIt:
		return whyAddrUnserved(n.Addr, r, lacks)
	case policy.NoEndpoints, policy.NoUsable, policy.WantedUnusable, policy.AllFail:
		return whyWithheld(s, sum.Node, n.Addr, r)
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
