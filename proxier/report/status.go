package report

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Status is the status of a Loop.
type Status struct {
	Families []FamilyStatus   `json:"families"`
	Services []ServiceStatus  `json:"services"` // sorted by name
	Refusals []claims.Refusal `json:"refusals,omitempty"`
}

// A FamilyStatus is the status of the syncs of one family.
type FamilyStatus struct {
	Family       string        `json:"family"`
	LastSync     time.Time     `json:"last_sync"`       // that succeeded; zero: none yet
	Took         time.Duration `json:"took_ns"`         // the last that succeeded
	Error        string        `json:"error,omitempty"` // of the last sync, if it failed
	FailingSince time.Time     `json:"failing_since,omitzero"`
	Unserved     string        `json:"unserved,omitempty"` // virtual servers that could not be made, and why
	Waiting      string        `json:"waiting,omitempty"`  // for which sources, before anything is programmed

	Stalled      string    `json:"stalled,omitempty"` // work that makes no progress, and what it waits for
	StalledSince time.Time `json:"stalled_since,omitzero"`
}

// A ServiceStatus is one service as it is used, over both families.
type ServiceStatus struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	Unit        string            `json:"unit"`            // the file or object it is from
	Place       string            `json:"place,omitempty"` // where in it, as "web.toml:1:1"
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Frontends   []FrontendStatus  `json:"frontends"`
	Endpoints   []EndpointStatus  `json:"endpoints"`
	Disabled    bool              `json:"disabled,omitempty"` // by its file: it has no frontends
	Warnings    []string          `json:"warnings,omitempty"`

	Announced []AnnouncedAddress `json:"announced,omitempty"` // its addresses that are to be announced

	Traffic *TrafficStatus `json:"traffic,omitempty"` // nil: it is not counted
}

// A TrafficStatus is what goes on between clients and a service.
type TrafficStatus struct {
	ConnectionRate float64 `json:"connections_per_second"`
	Active         uint64  `json:"active"` // connections
}

// A FrontendStatus is one address and port of a service.
type FrontendStatus struct {
	Address string `json:"address"` // "10.96.0.10:80/tcp"; "ipv4:30080/tcp" for a node port
	Kind    string `json:"kind"`
	Action  string `json:"action"`           // of everyone outside; "pending" while the kernel is not known to hold it, "unserved" or "in part" where it cannot
	Targets int    `json:"targets"`          // that get new connections
	Reason  string `json:"reason,omitempty"` // why it does not balance, or not all, or by endpoints that fail; empty for a change that is on its way to the kernel

	AllFailed string `json:"all_failed,omitempty"` // no endpoint that it could use passes its check: "use_all" (those that fail are used) or "refuse"

	Endpoints int `json:"endpoints,omitempty"` // of the service in this family, usable or not

	Restricted bool `json:"restricted,omitempty"` // not everybody may use it: source_ranges, load_balancer_source_ranges

	Forward string `json:"forward,omitempty"` // "direct", "tunnel ipip", ... where endpoints are to answer clients themselves
}

// StatusOf returns what a Loop holds, of the services that match accepts (nil: of all), and how
// its syncs go.
func StatusOf(s *Snapshot, match func(*source.Service) bool) Status {
	st := Status{Families: familyStatuses(s), Refusals: s.Refused}
	announced := announcedOf(s, match)
	suspect := make(map[source.Key][]string)
	for _, d := range Doubts(s, match) {
		suspect[d.Key] = append(suspect[d.Key], d.String())
	}
	for _, u := range used(s, match) {
		u.details = s.details(u.Subject)
		svc := u.status(s.Node)
		svc.Warnings = append(svc.Warnings, suspect[u.Key]...)
		svc.Announced = announced[u.Key.String()]
		st.Services = append(st.Services, svc)
	}
	slices.SortFunc(st.Services, func(a, b ServiceStatus) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return st
}

// A usedService is a service as the families resolved it.
type usedService struct {
	policy.Subject
	unit     string
	resolved []inFamily
	details  map[netip.AddrPort]policy.Detail // by source.Service.EndpointAt
}

// inFamily is a service in one family.
type inFamily struct {
	*policy.Resolved
	*Family
}

func (r *inFamily) held(fe *policy.Frontend) bool { return r.holdsFrontend(r.Key, fe) }

// used returns the services that match accepts; nil: all.
func used(s *Snapshot, match func(*source.Service) bool) (list []usedService) {
	at := make(map[source.Key]int)
	for _, svc := range s.Services {
		if match == nil || match(svc.Service) {
			at[svc.Key] = len(list)
			list = append(list, usedService{Subject: svc.Subject, unit: svc.Unit.Name})
		}
	}
	for i := range s.Syncs {
		f := &s.Syncs[i]
		for key, r := range f.resolved(at) {
			list[at[key]].resolved = append(list[at[key]].resolved, inFamily{r, f})
		}
	}
	return list
}

// familyStatuses returns how the syncs of all families go.
func familyStatuses(s *Snapshot) (list []FamilyStatus) {
	for i := range s.Syncs {
		f := &s.Syncs[i]
		st := FamilyStatus{
			Family: f.Family.String(), LastSync: f.LastSync, Took: f.Took, FailingSince: f.FailingSince,
			Unserved: UnservedText(f.Unserved), Waiting: strings.Join(s.Waiting, ", "),
		}
		if f.Err != nil {
			st.Error = f.Err.Error()
		}
		if len(f.Stalls) > 0 {
			st.Stalled, st.StalledSince = f.Stalls[0].String(), f.Stalls[0].Since
		}
		list = append(list, st)
	}
	return list
}

func (u *usedService) status(node *policy.Node) ServiceStatus {
	st := ServiceStatus{Namespace: u.Namespace, Name: u.Name, Unit: u.unit, Place: writtenAt(u.Service), Description: u.Description, Labels: u.Labels, Disabled: u.Disabled}
	for _, r := range u.resolved {
		n := 0
		for _, fe := range r.Frontends {
			held := r.held(fe)
			n += toInt(held)
			fs := frontendStatus(fe, held, r.Unserved, u.Subject, node)
			if fs.Action == pending && r.Err != nil {
				fs.Reason = "syncs fail, and what the kernel holds is not known"
			}
			fs.Endpoints = u.EndpointsOf(policy.FamilyOf(fe.Key.Addr))
			st.Frontends = append(st.Frontends, fs)
		}
		st.Warnings = append(st.Warnings, r.Warnings...)
		if r.Unfinished[r.Key].Grows {
			st.Warnings = append(st.Warnings, fmt.Sprintf("it is large: %d of %d frontends are in the kernel (%s)", n, len(r.Frontends), r.Family.Family))
		}
	}
	st.Endpoints = u.endpointStatuses(node)
	return st
}

// pending is the action of a frontend while the kernel is not known to hold it.
const pending = "pending"

// actionOf returns what the kernel does with what is sent to f.
func actionOf(f *policy.Frontend, held bool, unserved *proxier.PartialError) (action string, targets int) {
	if action, targets = kernelAction(f, unserved); !held {
		action = pending
	}
	return action, targets
}

// frontendStatus returns what becomes of packets to f, a frontend of svc; that may have no Service, if it is gone.
func frontendStatus(f *policy.Frontend, held bool, unserved *proxier.PartialError, svc policy.Subject, node *policy.Node) FrontendStatus {
	addr := netip.AddrPortFrom(f.Key.Addr, f.Key.Port).String()
	if f.Key.Kind == policy.NodePort {
		addr = fmt.Sprintf("%s:%d", policy.FamilyOf(f.Key.Addr), f.Key.Port)
	}
	st := FrontendStatus{Address: addr + "/" + f.Key.Protocol.String(), Kind: f.Key.Kind.String(), Restricted: f.Restricted}
	st.Action, st.Targets = actionOf(f, held, unserved)
	if way := f.Outside.Pool.Forward; way.Answers() {
		st.Forward = way.String()
	}
	if svc.Service != nil {
		st.Reason, st.AllFailed = svc.WhyNot(node, f, st.Action)
	}
	if st.Action == unservedWhole || st.Action == unservedInPart {
		st.Reason = whyUnserved(f, unserved)
	}
	return st
}
