package bgp

import (
	"errors"
	"fmt"
	"net/netip"
)

// A Route is announced to all peers, with this host as next hop.
type Route struct {
	Prefix netip.Prefix // normally one address, /32 or /128; without host bits or a zone

	// Shutdown marks the route with the community GracefulShutdown, and to peers of our own AS with the
	// local preference 0 besides: routers choose any other one they have, while they still forward by this one.
	Shutdown bool
}

// A routes is a set of routes: what is announced, and whether with Shutdown.
type routes map[netip.Prefix]bool

// newRoutes returns the set of a list, or all that is wrong with it.
func newRoutes(list []Route) (routes, error) {
	set := make(routes, len(list))
	var errs []error
	for _, r := range list {
		p := r.Prefix
		switch _, twice := set[p]; {
		case !p.IsValid() || p != p.Masked() || p.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("route %v: want a prefix without host bits, as 192.0.2.1/32", p))
		case p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast():
			errs = append(errs, fmt.Errorf("route %v: not an address that a router forwards to", p))
		case twice:
			errs = append(errs, fmt.Errorf("route %v is there twice", p))
		default:
			set[p] = r.Shutdown
		}
	}
	return set, errors.Join(errs...)
}

// diff returns what to announce, newly or with other attributes, and what to withdraw, so that have becomes want.
func diff(have, want routes) (announce, withdraw routes) {
	announce, withdraw = routes{}, routes{}
	for p, shutdown := range want {
		if was, ok := have[p]; !ok || was != shutdown {
			announce[p] = shutdown
		}
	}
	for p := range have {
		if _, ok := want[p]; !ok {
			withdraw[p] = false
		}
	}
	return announce, withdraw
}
