package links

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// replyTimeout limits the wait for the reply to one request. The kernel replies at once.
const replyTimeout = 10 * time.Second

// infiniteLifetime is INFINITY_LIFE_TIME of <net/addrconf.h>.
const infiniteLifetime = 0xffffffff

// A Dummy is the device Own of the network namespace in which it was opened. It
// is down and answers no ARP, yet its addresses are local to the host. One goroutine
// at a time may use it.
type Dummy struct {
	h     *netlink.Handle
	index int // 0: not known to exist
}

// OpenDummy opens a socket. It creates no device.
func OpenDummy() (*Dummy, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	if err := h.SetSocketTimeout(replyTimeout); err != nil {
		h.Close()
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return &Dummy{h: h}, nil
}

// Close closes the socket. The device stays.
func (d *Dummy) Close() { d.h.Close() }

// Probe returns nil if the kernel supports dummy devices. It creates none: the kernel
// rejects an invalid name only if it knows the type.
func (d *Dummy) Probe() error {
	err := d.h.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "."}})
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return fmt.Errorf("trying dummy devices: %w", unsupported(err))
}

// unsupported explains the errno of creating a device.
func unsupported(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return errors.New("the kernel has none: its module dummy is missing or not loaded")
	}
	return err
}

// Find reports whether the device exists.
func (d *Dummy) Find() (bool, error) {
	d.index = 0
	l, err := d.h.LinkByName(Own)
	var none netlink.LinkNotFoundError
	switch {
	case errors.As(err, &none):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("looking for device %s: %w", Own, err)
	case l.Type() != "dummy":
		return false, fmt.Errorf("device %s is of type %s, so it is not ours: rename it", Own, l.Type())
	}
	d.index = l.Attrs().Index
	return true, nil
}

// Make creates the device, unless it exists.
func (d *Dummy) Make() error {
	err := d.h.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: Own}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("creating dummy device %s: %w", Own, unsupported(err))
	}
	there, err := d.Find()
	if err == nil && !there {
		err = fmt.Errorf("device %s was removed right after it was created", Own)
	}
	return err
}

// Remove removes the device with all its addresses, if it exists.
func (d *Dummy) Remove() error {
	there, err := d.Find()
	if err != nil || !there {
		return err
	}
	err = d.h.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: d.index}})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("removing device %s: %w", Own, err)
	}
	d.index = 0
	return nil
}

// Addrs returns the addresses of the device of one family, in no order; none
// if Find did not find it. Link-local ones, which the kernel adds, are left out.
func (d *Dummy) Addrs(v6 bool) ([]netip.Addr, error) {
	if d.index == 0 {
		return nil, nil
	}
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	device := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: Own, Index: d.index}}
	list, err := Retry(func() ([]netlink.Addr, error) { return d.h.AddrList(device, family) })
	if err != nil {
		return nil, fmt.Errorf("listing addresses of %s: %w", Own, err)
	}
	var out []netip.Addr
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); ok && !ip.IsLinkLocalUnicast() {
			out = append(out, ip)
		}
	}
	return out, nil
}

// Bind adds an address to the device, unless it has it.
func (d *Dummy) Bind(a netip.Addr) error {
	err := d.h.AddrAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: d.index}}, addrFor(a))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding address %s to %s: %w", a, Own, err)
	}
	return nil
}

// Unbind removes an address from the device, if it has it.
func (d *Dummy) Unbind(a netip.Addr) error {
	err := d.h.AddrDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: d.index}}, addrFor(a))
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("removing address %s from %s: %w", a, Own, err)
	}
	return nil
}

// addrFor returns an address as the device has it: with a full-length prefix, without
// duplicate address detection, and deprecated, so that IPv6 does not choose it as the
// source of unrelated packets.
func addrFor(a netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	if a.Is6() {
		addr.Flags, addr.ValidLft, addr.PreferedLft = unix.IFA_F_NODAD, infiniteLifetime, 0
	}
	return addr
}
