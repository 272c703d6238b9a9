package l2

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/sysctl"
)

// macLen is the length of a link-layer address of Ethernet, in bytes.
const macLen = 6

// readHost reads the links and addresses of the network namespace of this thread.
func readHost() (*host, error) {
	devices, err := links.Retry(listDevices)
	if err != nil {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	h := &host{devices: devices, held: map[netip.Addr][]holding{}, isLocal: isLocal, arpIgnore: arpIgnore()}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := links.Retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, family) })
		if err != nil {
			return nil, fmt.Errorf("listing addresses: %w", err)
		}
		for i := range list {
			h.add(&list[i])
		}
	}
	return h, nil
}

// add notes an address, and the network that it is in.
func (h *host) add(a *netlink.Addr) {
	ip, ok := netip.AddrFromSlice(a.IP)
	if !ok {
		return
	}
	ip = ip.Unmap()
	h.held[ip] = append(h.held[ip], holding{
		index:     a.LinkIndex,
		tentative: a.Flags&unix.IFA_F_TENTATIVE != 0,
		duplicate: a.Flags&unix.IFA_F_DADFAILED != 0,
	})
	if ones, bits := a.Mask.Size(); bits == ip.BitLen() && ones < bits {
		h.subnets = append(h.subnets, subnet{netip.PrefixFrom(ip, ones).Masked(), a.LinkIndex})
	}
}

// listDevices lists links by index. It is the library's LinkList with one attribute more.
func listDevices() (map[int]*device, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	devices := make(map[int]*device, len(msgs))
	for _, m := range msgs {
		d, err := decodeDevice(m)
		if err != nil {
			return nil, err
		}
		devices[d.index] = d
	}
	return devices, nil
}

func decodeDevice(m []byte) (*device, error) {
	l, err := netlink.LinkDeserialize(nil, m)
	if err != nil {
		return nil, err
	}
	a := l.Attrs()
	return &device{
		link:     link{a.Index, a.Name, string(a.HardwareAddr), carrierUps(m)},
		ethernet: isEthernet(a),
		up:       a.RawFlags&unix.IFF_UP != 0,
		carrier:  a.RawFlags&unix.IFF_LOWER_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0,
	}, nil
}

// isEthernet reports whether neighbours on a link ask for addresses by ARP and neighbour discovery, with Ethernet's addresses.
func isEthernet(a *netlink.LinkAttrs) bool {
	const without = unix.IFF_LOOPBACK | unix.IFF_NOARP | unix.IFF_POINTOPOINT
	return a.RawFlags&without == 0 && a.RawFlags&unix.IFF_BROADCAST != 0 && a.EncapType == "ether" && len(a.HardwareAddr) == macLen
}

// carrierUps returns how often a link got a carrier: a link that was down between two looks
// differs by it. Linux before 4.16 does not say it: 0.
func carrierUps(m []byte) uint32 {
	return nlmsg.NativeUint32(nlmsg.Find(m[unix.SizeofIfInfomsg:], unix.IFLA_CARRIER_UP_COUNT))
}

// isLocal reports whether packets to an IPv4 address are for this host, by its routes.
func isLocal(a netip.Addr) (bool, error) {
	list, err := netlink.RouteGet(a.AsSlice())
	var unroutable = []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL} // the last two: prohibit, blackhole
	if slices.ContainsFunc(unroutable, func(e error) bool { return errors.Is(err, e) }) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for the route to %s: %w", a, err)
	}
	return slices.ContainsFunc(list, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL }), nil
}

// arpIgnore returns a function that reads the setting of a device as the kernel uses it: its
// own or that of all, whichever is higher. It reads each once.
func arpIgnore() func(device string) (int, error) {
	known := map[string]int{}
	read := func(device string) (int, error) {
		if v, ok := known[device]; ok {
			return v, nil
		}
		text, err := sysctl.Get("net/ipv4/conf/" + device + "/arp_ignore")
		if err != nil {
			return 0, err
		}
		v, err := strconv.Atoi(text)
		if err != nil {
			return 0, fmt.Errorf("reading sysctl net/ipv4/conf/%s/arp_ignore: %w", device, err)
		}
		known[device] = v
		return v, nil
	}
	return func(device string) (int, error) {
		all, err := read("all")
		if err != nil {
			return 0, err
		}
		own, err := read(device)
		return max(all, own), err
	}
}
