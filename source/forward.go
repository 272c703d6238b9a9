package source

import (
	"fmt"
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

func (m ForwardMethod) String() string { return wordOf(m, "masquerade", "direct", "tunnel") }

// A TunnelType is how packets are wrapped on their way to an endpoint.
type TunnelType uint8

// The types of a tunnel. GUE is generic UDP encapsulation.
const (
	NoTunnel TunnelType = iota
	IPIP
	GUE
	GRE
)

func (t TunnelType) String() string { return wordOf(t, "", "ipip", "gue", "gre") }

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
func (m Masquerading) String() string { return wordOf(m, "", "auto", "all", "never") }
