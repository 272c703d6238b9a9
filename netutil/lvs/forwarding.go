package lvs

import (
	"fmt"
)

// A Method is how packets get to a destination, by its number in <linux/ip_vs.h>.
type Method uint8

// Masquerading rewrites their destination, and the source of the replies. Direct sends them as they
// are to the link-layer address of the destination, Tunnel in other packets: the destination has
// the address of the virtual server too, and replies to clients itself.
const (
	Masquerading Method = 0
	Tunnel       Method = 2
	Direct       Method = 3
)

// A TunnelType is what packets are wrapped in, by its number in <linux/ip_vs.h>.
type TunnelType uint8

// The types of a tunnel: IP in IP; generic UDP encapsulation and GRE since Linux 5.3.
const (
	IPIP TunnelType = 0
	GUE  TunnelType = 1
	GRE  TunnelType = 2
)

// A Forwarding is how packets get to a destination. The zero value is by masquerading.
type Forwarding struct {
	Method Method
	Type   TunnelType // of Tunnel
	Port   uint16     // UDP port of the destination, of GUE; not 0 there
}

// Text returns the words of ipvsadm for a destination of some weight that packets get to in this way.
func (f Forwarding) Text(weight uint32) string {
	method, more := "-m", ""
	switch {
	case f.Method == Direct:
		method = "-g"
	case f.Method == Tunnel && f.Type == IPIP:
		method, more = "-i", " --tun-type ipip"
	case f.Method == Tunnel && f.Type == GRE:
		method, more = "-i", " --tun-type gre --tun-nocsum"
	case f.Method == Tunnel:
		method, more = "-i", fmt.Sprintf(" --tun-type gue --tun-port %d --tun-nocsum", f.Port)
	}
	return fmt.Sprintf("%s -w %d%s", method, weight, more)
}
