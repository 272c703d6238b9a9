package ipvs

import (
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/source"
)

// wayOf returns how packets get to the destinations of a service.
func wayOf(f source.Forwarding) lvs.Forwarding {
	switch f.Method {
	case source.ForwardDirect:
		return lvs.Forwarding{Method: lvs.Direct}
	case source.ForwardTunnel:
		types := map[source.TunnelType]lvs.TunnelType{source.IPIP: lvs.IPIP, source.GUE: lvs.GUE, source.GRE: lvs.GRE}
		return lvs.Forwarding{Method: lvs.Tunnel, Type: types[f.Tunnel], Port: f.Port}
	}
	return lvs.Forwarding{}
}

// is reports whether an existing destination is as desired.
func (d dest) is(want dest) bool {
	return d.AddrPort == want.AddrPort && d.weight == want.weight && d.way == want.way && d.limits == want.limits && !d.foreignOptions
}

// draining returns what is left of a destination that drains. Its connections keep their way.
func (d dest) draining() dest { return dest{AddrPort: d.AddrPort, way: d.way, limits: d.limits} }

// forKernel returns a desired destination as it is written.
func (d dest) forKernel() lvs.Destination {
	return lvs.Destination{AddrPort: d.AddrPort, Weight: d.weight, Forwarding: d.way, Limits: d.limits}
}
