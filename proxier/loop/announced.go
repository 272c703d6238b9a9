package loop

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

// Unheard reports whether it is not announced for want of a router alone.
func (a *AnnouncedAddress) Unheard() bool { return a.Withheld == policy.NoRouter.String() }

// maxSharers is how many services of an address are named.
const maxSharers = 5

// compare orders by address and means.
func (a AnnouncedAddress) compare(o AnnouncedAddress) int {
	return cmp.Or(a.Address.Compare(o.Address), cmp.Compare(a.Means, o.Means))
}

// Announced returns all addresses that are to be announced, those of a service whose name match
// accepts; nil: of all. They are in order. It may be called like Status.
func (l *Loop) Announced(match func(*source.Service) bool) []AnnouncedAddress {
	l.mu.RLock()
	node, families := l.node, slices.Clone(l.families)
	var list []policy.Subject
	l.tracker.Services(func(s *source.Service, _ source.UnitID) {
		if s.Announce != 0 && (match == nil || match(s)) {
			list = append(list, l.subject(s))
		}
	})
	refused := l.tracker.RefusedAnnouncers(match)
	l.mu.RUnlock()
	slices.SortFunc(list, func(a, b policy.Subject) int { return a.Key.Compare(b.Key) })
	sum := announcedSum{node: node, unavailable: l.unavailable(), unanswered: l.unanswered(), unheard: l.unheard(), at: make(map[policy.Announcement]*AnnouncedAddress)}
	for _, f := range families {
		f.addAnnounced(&sum, list)
		for _, s := range refused {
			sum.addRefused(f.fam, s)
		}
	}
	return sum.sorted()
}

// announcedOf is Announced by service, of those that an AnnouncedAddress names.
func (l *Loop) announcedOf(match func(*source.Service) bool) map[string][]AnnouncedAddress {
	by := make(map[string][]AnnouncedAddress)
	for _, a := range l.Announced(match) {
		for _, key := range a.Services {
			by[key] = append(by[key], a)
		}
	}
	return by
}

// unavailable says by which means nothing is announced, and why.
func (l *Loop) unavailable() map[source.Means]string {
	why := make(map[source.Means]string)
	for _, m := range source.EachMeans {
		if l.cfg.Announcer == nil {
			why[m] = "nothing announces by " + m.String()
		} else if text := l.cfg.Announcer.Unavailable(m); text != "" {
			why[m] = text
		}
	}
	return why
}

// unheard says of which families no router gets routes, and why.
func (l *Loop) unheard() map[policy.Family]string {
	if l.cfg.Announcer == nil {
		return nil
	}
	return map[policy.Family]string{policy.IPv4: l.cfg.Announcer.Unheard(policy.IPv4), policy.IPv6: l.cfg.Announcer.Unheard(policy.IPv6)}
}

func (l *Loop) unanswered() map[netip.Addr]string {
	if l.cfg.Announcer == nil {
		return nil
	}
	return l.cfg.Announcer.Unanswered()
}

// An announcedSum gathers what several services say of an address.
type announcedSum struct {
	node        *policy.Node
	unavailable map[source.Means]string
	unanswered  map[netip.Addr]string
	unheard     map[policy.Family]string
	at          map[policy.Announcement]*AnnouncedAddress // by address and means
}

// addAnnounced adds what a family announces of services.
func (f *family) addAnnounced(sum *announcedSum, services []policy.Subject) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, s := range services {
		r := f.resolved(s.Key)
		for _, n := range announcementsOf(s, sum.node, f.fam, r) {
			if n.Withheld == policy.NotWithheld {
				n.Withheld = f.withholds(s.Key, n)
			}
			sum.add(s, n, r, f.news.unserved)
		}
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

// withholds returns why what a service could announce is not, as far as it is the kernel or this
// host. The caller holds f.mu.
func (f *family) withholds(key source.Key, n policy.Announcement) policy.Withheld {
	switch r := f.resolved(key); {
	case f.announcing.withheld:
		return policy.HostDrained
	case slices.Contains(f.announcing.of[key], n):
		return policy.NotWithheld
	case f.holds(key) && lacking(r, n.Addr, f.news.unserved):
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
		row.Reason = inPart(s, sum.node, n.Addr, r)
	case first:
		row.Withheld, row.Reason, row.Place = why.String(), sum.reason(why, s, n, r, lacks), writtenAt(s.Service)
	}
}

// addRefused adds a service that is not in use.
func (sum *announcedSum) addRefused(fam policy.Family, s *source.Service) {
	for _, n := range policy.Announcements(policy.Subject{Service: s}, sum.node, fam, nil) {
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
		return whyWithheld(s, sum.node, n.Addr, r)
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
