package source

import (
	"fmt"
	"net/netip"
)

// A ForwardMethod says how packets get to an endpoint.
type ForwardMethod uint8

// ForwardMasquerade: their destination is rewritten, and the source of the answers, which come
// back by way of this host. ForwardDirect: they are sent to the endpoint's link-layer address as
// they are. ForwardTunnel: they are sent in packets of a tunnel. To the latter two the endpoint
// answers the client itself, as it has the service's address too.
const (
	ForwardMasquerade ForwardMethod = iota
	ForwardDirect
	ForwardTunnel
)

func (m ForwardMethod) String() string { return [...]string{"masquerade", "direct", "tunnel"}[m] }

// A TunnelType is how packets are wrapped on their way to an endpoint.
type TunnelType uint8

// The types of a tunnel. GUE is generic UDP encapsulation.
const (
	NoTunnel TunnelType = iota
	IPIP
	GUE
	GRE
)

func (t TunnelType) String() string { return [...]string{"", "ipip", "gue", "gre"}[t] }

// GUEPort is the UDP port of GUE where none is written, as registered with IANA.
const GUEPort = 6080

// A Forwarding is the way of packets to endpoints. The zero value is masquerading.
type Forwarding struct {
	Method ForwardMethod
	Tunnel TunnelType // for ForwardTunnel only
	Port   uint16     // UDP port of the endpoints, for GUE only
}

// Answers reports whether endpoints answer clients themselves.
func (f Forwarding) Answers() bool { return f.Method != ForwardMasquerade }

// String returns the way as messages name it: masquerade, direct, tunnel ipip, tunnel gue 6080.
func (f Forwarding) String() string {
	text := f.Method.String()
	if f.Tunnel != NoTunnel {
		text += " " + f.Tunnel.String()
	}
	if f.Port != 0 {
		text += fmt.Sprintf(" %d", f.Port)
	}
	return text
}

// forwarding finds what cannot be together with the way of packets to endpoints.
func (v *validator) forwarding() {
	f := v.Forward
	if f.Tunnel != NoTunnel && f.Method != ForwardTunnel {
		v.fault(At("tunnel_type"), "tunnel_type without a tunnel", `it needs forward = "tunnel"`)
	}
	if f.Port != 0 && f.Tunnel != GUE {
		v.fault(At("tunnel_port"), "tunnel_port without a tunnel over UDP", `it needs forward = "tunnel" and tunnel_type = "gue"`)
	}
	if !f.Answers() {
		return
	}
	for i, p := range v.Ports {
		at := v.portAt(i)
		v.samePort(p.TargetPort, p, At("ports", at, "target_port"), fmt.Sprintf("ports[%d]", at))
		if p.NodePort != 0 {
			v.fault(At("ports", at, "node_port"), fmt.Sprintf("node_port %d with forward = %q", p.NodePort, f.Method),
				"endpoints have the addresses of the service, and not those of this host: leave it out")
		}
	}
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		if len(e.Ports) == 0 {
			continue
		}
		for _, p := range v.Ports {
			if n, other := e.Ports[p.Name]; other && !v.full() {
				v.samePort(n, p, At("endpoints", i), "endpoint "+e.text(n))
			}
		}
	}
}

func (e *Endpoint) text(port uint16) string { return netip.AddrPortFrom(e.Addr, port).String() }

// samePort notes a fault where packets to a port would have to get to another one; 0: to none.
func (v *validator) samePort(n uint16, p Port, at Path, what string) {
	if n == 0 || p.Port == 0 || n == p.Port {
		return
	}
	v.fault(at, fmt.Sprintf("%s has the port %d, and forward = %q leaves port %d as it is", what, n, v.Forward.Method, p.Port),
		"leave the other port out")
}

// A Masquerading says whose address is replaced by one of this host on the way to endpoints.
type Masquerading uint8

// MasqueradeAsSet: as the setting of the host says. MasqueradeAuto: every source of VIPs that is
// not local. MasqueradeAll: everyone. MasqueradeNever: no one, of other addresses and node ports
// either, where only host processes are.
const (
	MasqueradeAsSet Masquerading = iota
	MasqueradeAuto
	MasqueradeAll
	MasqueradeNever
)

// String returns the word as files write it; empty: as the setting says.
func (m Masquerading) String() string { return [...]string{"", "auto", "all", "never"}[m] }

// masquerading finds what cannot be together with the way of packets to endpoints.
func (v *validator) masquerading() {
	if m := v.Masquerade; v.Forward.Answers() && m != MasqueradeAsSet && m != MasqueradeNever {
		v.fault(At("masquerade"), fmt.Sprintf("masquerade = %q with forward = %q", m, v.Forward.Method),
			"endpoints answer clients themselves, so these keep their address: leave it out")
	}
}
