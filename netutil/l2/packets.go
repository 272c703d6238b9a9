package l2

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
)

// broadcast is the link-layer address of all on a link.
var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// gratuitousARP returns the ARP packets that announce an IPv4 address, without Ethernet's header.
//
// In the request, receivers do not read the target's link-layer address; it is that of
// broadcast, as arping -U and keepalived have it, because some devices ignore zeros. In the
// reply it must be the sender's: Linux ignores others.
func gratuitousARP(mac net.HardwareAddr, a netip.Addr) (packets [][]byte, err error) {
	for _, form := range []struct {
		op     arp.Operation
		target net.HardwareAddr
	}{{arp.OperationRequest, broadcast}, {arp.OperationReply, mac}} {
		p, err := arp.NewPacket(form.op, mac, a, form.target, a)
		if err != nil {
			return nil, fmt.Errorf("making an ARP packet: %w", err)
		}
		b, err := p.MarshalBinary()
		if err != nil {
			return nil, fmt.Errorf("making an ARP packet: %w", err)
		}
		packets = append(packets, b)
	}
	return packets, nil
}

// advertisement returns the ICMPv6 message that announces an IPv6 address. The kernel fills in its checksum.
func advertisement(mac net.HardwareAddr, a netip.Addr, router bool) ([]byte, error) {
	b, err := ndp.MarshalMessage(&ndp.NeighborAdvertisement{
		Router:        router,
		Override:      true,
		TargetAddress: a,
		Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: mac}},
	})
	if err != nil {
		return nil, fmt.Errorf("making a neighbour advertisement: %w", err)
	}
	return b, nil
}
