package report

import (
	"fmt"
	"strings"
	"time"

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

// Serves reports whether an address serves as it should.
func (f *FrontendStatus) Serves() bool {
	return f.Action == policy.Balance.String() && f.AllFailed == ""
}

// Trouble says in a word or two what becomes of packets to an address that does not serve as it should.
func (f *FrontendStatus) Trouble() string {
	switch f.Action {
	case policy.Balance.String(): // by endpoints that fail their check
		return "ALL DOWN"
	case policy.Reject.String():
		return "REJECTS"
	case policy.Drop.String():
		return "DROPS"
	}
	return strings.ToUpper(f.Action)
}

// Key returns the name of the service.
func (s *ServiceStatus) Key() source.Key { return source.Key{Namespace: s.Namespace, Name: s.Name} }

// StatusOf returns what a Loop holds, of the services that match accepts (nil: of all), and how
// its syncs go.
func StatusOf(s *Snapshot, match func(*source.Service) bool) Status {
	st := Status{Families: familyStatuses(s), Refusals: s.Refused}
	announced, suspect := announcedOf(s, match), doubtsOf(s, match)
	for _, u := range usedByName(s, match) {
		svc := u.status(s)
		svc.Warnings = append(svc.Warnings, suspect[u.Key]...)
		svc.Announced = announced[u.Key.String()]
		st.Services = append(st.Services, svc)
	}
	return st
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

func (u *usedService) status(s *Snapshot) ServiceStatus {
	st := ServiceStatus{
		Namespace: u.Namespace, Name: u.Name, Unit: u.unit, Place: writtenAt(u.Service), Description: u.Description, Labels: u.Labels,
		Disabled: u.Disabled, Endpoints: u.endpointStatuses(s.Node, s.details(u.Subject)),
	}
	for _, r := range u.families {
		if r.Resolved == nil {
			continue
		}
		n := 0
		for _, fe := range r.Frontends {
			n += toInt(r.holdsFrontend(r.Key, fe))
			fs := u.frontendStatus(r, fe, s.Node)
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
	return st
}

// frontendStatus returns what becomes of packets to a frontend.
func (u *usedService) frontendStatus(r inFamily, f *policy.Frontend, node *policy.Node) FrontendStatus {
	st := FrontendStatus{Address: frontendName(f), Kind: f.Key.Kind.String(), Restricted: f.Restricted}
	st.Action, st.Targets = r.action(f)
	if way := f.Outside.Pool.Forward; way.Answers() {
		st.Forward = way.String()
	}
	st.Reason, st.AllFailed = u.WhyNot(node, f, st.Action)
	if st.Action == unservedWhole || st.Action == unservedInPart {
		st.Reason = whyUnserved(f, r.Unserved)
	}
	return st
}
