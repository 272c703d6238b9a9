package report

import (
	"fmt"
	"net/netip"
	"sync"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// An Object is something whose state can be watched.
type Object struct {
	Kind    string `json:"kind"`              // one of those below, or another that a caller watches
	Service string `json:"service,omitempty"` // of an endpoint or an address
	Name    string `json:"name"`              // as EndpointStatus, FrontendStatus and AnnouncedAddress have it
}

// The kinds of an Object.
const (
	EndpointObject     = "endpoint"     // its states are EndpointStates
	AddressObject      = "address"      // of a service, with a port; its states are the actions of a FrontendStatus, or "all down"
	AnnouncementObject = "announcement" // an address and by which means; "announced" or why it is withheld
)

// EachState calls visit with the state of each endpoint, address and announcement. why is why it is so, empty where that is
// not known, and costs more than the state. Two endpoints of a service may have one name.
func EachState(s *Snapshot, visit func(o Object, state string, why func() string)) {
	for _, u := range used(s, nil) {
		service, tiers := u.Key.String(), u.TiersInUse()
		details := sync.OnceValue(func() map[netip.AddrPort]policy.Detail { return s.details(u.Subject) })
		for i := range u.Endpoints {
			e := &u.Endpoints[i]
			state := u.Shown(e, tiers)
			visit(Object{EndpointObject, service, endpointName(*e)}, state.String(), func() string {
				known := details()[u.EndpointAt(e)]
				switch {
				case state == policy.Draining && known.Drain != nil:
					return known.Drain.Reason
				case state == policy.Down:
					return known.Error
				}
				return ""
			})
		}
		for _, r := range u.families {
			for _, f := range r.AllFrontends() {
				state, _ := r.action(f)
				if state == policy.Balance.String() && len(u.Conditions) > 0 && u.AllFailAt(f) != "" {
					state = allDown
				}
				visit(Object{AddressObject, service, frontendName(f)}, state, func() string { return u.frontendStatus(r, f, s.Node).Reason })
			}
		}
	}
	for _, a := range Announced(s, nil) {
		state := "announced"
		if !a.Announced {
			state = a.Withheld
		}
		visit(Object{AnnouncementObject, "", a.Address.String() + " " + a.Means}, state, func() string { return a.Reason })
	}
}

// allDown is the state of an address that balances between endpoints all of which fail their check.
const allDown = "all down"

// frontendName returns the address of a frontend: "10.96.0.10:80/tcp"; "ipv4:30080/tcp" for a node port.
func frontendName(f *policy.Frontend) string {
	addr := netip.AddrPortFrom(f.Key.Addr, f.Key.Port).String()
	if f.Key.Kind == policy.NodePort {
		addr = fmt.Sprintf("%s:%d", policy.FamilyOf(f.Key.Addr), f.Key.Port)
	}
	return addr + "/" + f.Key.Protocol.String()
}
