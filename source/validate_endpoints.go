package source

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

func (v *validator) endpoints() {
	four, six := families(v.Service)
	for i := range v.Endpoints {
		if v.full() {
			return
		}
		e := &v.Endpoints[i]
		x := e.Extras()
		if x.Node != "" && !IsName(x.Node) {
			v.fault(At("endpoints", i, "node"), Excerpt(x.Node)+" is not the name of a node", wantName)
		}
		if x.Zone != "" && !IsName(x.Zone) {
			v.fault(At("endpoints", i, "zone"), Excerpt(x.Zone)+" is not the name of a zone", wantName)
		}
		v.endpointPorts(i, e)
		v.connectionLimits(i, &x)
		if e.Terminating && e.Ready && !v.PublishNotReady {
			v.warn(At("endpoints", i, "terminating"), "the endpoint is both ready and terminating, so it gets new connections", "write ready = false")
		}
		if !e.Addr.IsValid() {
			continue
		}
		v.endpointAddr(i, e)
		if e.Addr.Is4() && !four || e.Addr.Is6() && !six {
			v.fault(At("endpoints", i, "address"), fmt.Sprintf("endpoint %s is %s, and the service has no address of that family", e.Addr, family(e.Addr)),
				"nothing would be sent to it")
		}
	}
	v.endpointsTwice()
}

// families tells which families an endpoint may have: those of the addresses,
// or both when there is none or one could not be read.
func families(s *Service) (four, six bool) {
	none := true
	for _, list := range s.AddressLists() {
		for _, a := range list.Addrs {
			if !a.IsValid() {
				return true, true
			}
			none = false
			four = four || a.Is4()
			six = six || a.Is6()
		}
	}
	return four || none, six || none
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func (v *validator) endpointAddr(i int, e *Endpoint) {
	if why := Unusable(e.Addr); why != "" {
		hint := ""
		if e.Addr.IsLoopback() { // what people try
			hint = "the kernel drops what is redirected there from outside: write an address of an interface"
		}
		v.fault(At("endpoints", i, "address"), fmt.Sprintf("endpoint %s is %s", e.Addr, why), hint)
	}
	own, ok := v.where[e.Addr]
	if !ok {
		return
	}
	for _, p := range v.Ports { // a proxy on the address itself, under another port, is none of ours
		n := e.Port(p)
		if _, served := v.served[PortAddr{p.Protocol, portOnly(n)}]; served && n != 0 {
			v.fault(At("endpoints", i, "address"), fmt.Sprintf("endpoint %s is an address and port of its own service, %s", netip.AddrPortFrom(e.Addr, n), own), "")
			return
		}
	}
}

func (v *validator) endpointPorts(i int, e *Endpoint) {
	if len(e.Ports) == 0 || len(v.Ports) == 0 { // that there are no ports is said already
		return
	}
	for _, name := range slices.Sorted(maps.Keys(e.Ports)) {
		if v.full() {
			return
		}
		if !v.named[name] {
			v.fault(At("endpoints", i, "ports", name), "the service has no port named "+Excerpt(name), v.portHint(name))
		}
	}
}

// maxHints is how many names are compared with how many others for a hint: that
// takes a thousand times as long as to find that they are wrong.
const maxHints = 100

// portHint says which port was meant by a name that none has.
func (v *validator) portHint(name string) string {
	if len(v.Ports) > maxHints || len(v.problems) > maxHints {
		return ""
	}
	var names []string
	for _, p := range v.Ports {
		if IsLabel(p.Name) { // else it is at fault itself
			names = append(names, p.Name)
		}
	}
	if near := Nearest(name, names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if len(names) == len(v.Ports) && len(names) <= 10 {
		return "want " + Either(names)
	}
	return ""
}

// endpointsTwice finds endpoints that another one is already, for some port of
// the service: no kernel holds a target twice.
func (v *validator) endpointsTwice() {
	left := sharedAddresses(v.Endpoints)
	for _, p := range v.Ports {
		targets := make(map[netip.AddrPort]int, len(left))
		left = slices.DeleteFunc(left, func(i int) bool {
			t := netip.AddrPortFrom(v.Endpoints[i].Addr, v.Endpoints[i].Port(p))
			first, twice := seen(targets, t, i)
			if !twice || t.Port() == 0 {
				return false
			}
			what := t.String()
			if p.Name != "" {
				what += " of port " + Excerpt(p.Name)
			}
			v.fault(At("endpoints", i), fmt.Sprintf("endpoint %s is already endpoints[%d]", what, first), "")
			return true
		})
	}
}

// sharedAddresses returns the indexes of the endpoints whose address is not theirs alone.
func sharedAddresses(list []Endpoint) (shared []int) {
	count := make(map[netip.Addr]int, len(list))
	for i := range list {
		count[list[i].Addr]++
	}
	for i := range list {
		if a := list[i].Addr; a.IsValid() && count[a] > 1 {
			shared = append(shared, i)
		}
	}
	return shared
}

// connectionLimits finds limits that contradict each other: the kernel refuses them.
func (v *validator) connectionLimits(i int, x *Extras) {
	at := func() Path { return At("endpoints", i, "min_connections") }
	switch {
	case x.MinConnections > 0 && x.MaxConnections == 0:
		v.fault(at(), "min_connections without max_connections", "it says when an endpoint that was full gets connections again")
	case x.MinConnections > x.MaxConnections:
		v.fault(at(), fmt.Sprintf("min_connections %d is more than max_connections %d", x.MinConnections, x.MaxConnections), "")
	}
}
