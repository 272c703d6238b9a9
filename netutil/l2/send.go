package l2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/sysctl"
)

// sendTimeout limits the wait for room in the socket of IPv6. ARP packets do not wait.
const sendTimeout = time.Second

// A kernel is the network of this host. Its sockets are opened when they are first needed,
// and again after an error. They receive nothing.
type kernel struct {
	arp *packetSocket
	nd  *ipv6.PacketConn
}

func (k *kernel) read() (*host, error) { return readHost() }

func (k *kernel) close() {
	if k.arp != nil {
		k.arp.close()
	}
	if k.nd != nil {
		k.nd.Close()
	}
	k.arp, k.nd = nil, nil
}

func (k *kernel) announce(on link, a netip.Addr) (err error) {
	if a.Is4() {
		err = k.announceARP(on, a)
	} else {
		err = k.announceND(on, a)
	}
	if err != nil {
		k.close()
		return fmt.Errorf("announcing %s on %s: %w", a, on.name, err)
	}
	return nil
}

func (k *kernel) announceARP(on link, a netip.Addr) error {
	packets, err := gratuitousARP(net.HardwareAddr(on.mac), a)
	if err != nil {
		return err
	}
	if err := k.openARP(); err != nil {
		return err
	}
	for _, p := range packets {
		if err := k.arp.broadcast(on.index, p); err != nil {
			return fmt.Errorf("sending an ARP packet: %w", err)
		}
	}
	return nil
}

// announceND sends from the address itself, as the kernel does: it rejects one that the link does not have (any more).
func (k *kernel) announceND(on link, a netip.Addr) error {
	router, err := sysctl.Get("net/ipv6/conf/" + on.name + "/forwarding")
	if err != nil {
		return err
	}
	b, err := advertisement(net.HardwareAddr(on.mac), a, router != "0")
	if err != nil {
		return err
	}
	if err := k.openND(); err != nil {
		return err
	}
	if err := k.nd.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return fmt.Errorf("sending a neighbour advertisement: %w", err)
	}
	from := &ipv6.ControlMessage{HopLimit: ndp.HopLimit, Src: a.AsSlice(), IfIndex: on.index}
	if _, err := k.nd.WriteTo(b, from, &net.IPAddr{IP: net.IPv6linklocalallnodes}); err != nil {
		return fmt.Errorf("sending a neighbour advertisement: %w", err)
	}
	return nil
}

func (k *kernel) openARP() error {
	if k.arp != nil {
		return nil
	}
	// Of no protocol, it receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("opening a packet socket: %w", explain(err, "AF_PACKET"))
	}
	k.arp = &packetSocket{fd}
	return nil
}

func (k *kernel) openND() error {
	if k.nd != nil {
		return nil
	}
	c, err := icmp.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		return fmt.Errorf("opening a raw socket of ICMPv6: %w", explain(err, "AF_INET6"))
	}
	p := c.IPv6PacketConn()
	var nothing ipv6.ICMPFilter
	nothing.SetAll(true)
	if err := errors.Join(p.SetICMPFilter(&nothing), p.SetMulticastLoopback(false)); err != nil {
		c.Close()
		return fmt.Errorf("opening a raw socket of ICMPv6: %w", err)
	}
	k.nd = p
	return nil
}

// explain says what a process lacks that may not open a socket.
func explain(err error, family string) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("it takes root or CAP_NET_RAW: %w", err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("the kernel has no %s, or the unit does not allow it (RestrictAddressFamilies=%s does): %w", family, family, err)
	}
	return err
}

// A packetSocket sends on all links and receives nothing. One of mdlayher/packet is of one
// link and one protocol, and the kernel would copy every ARP packet of the link to it.
type packetSocket struct{ fd int }

func (s *packetSocket) close() { unix.Close(s.fd) }

// broadcast sends an ARP packet to all on a link.
func (s *packetSocket) broadcast(index int, packet []byte) error {
	to := &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ARP), Ifindex: index, Halen: macLen}
	copy(to.Addr[:], broadcast)
	return unix.Sendto(s.fd, packet, 0, to)
}

// networkOrder returns a number whose bytes in memory are those of n in network order.
func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}
