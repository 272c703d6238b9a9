package l2

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// A link is what tells a link from itself before it went down and came up.
type link struct {
	index int
	name  string
	mac   string // 6 bytes
	ups   uint32 // how often it got a carrier
}

// An attachment is a link on which an address is announced, or the reason why it is not there.
type attachment struct {
	link link // no name: on no link
	err  error
}

// A device is a link with what says whether neighbours can be told of something there.
type device struct {
	link
	ethernet bool // it has neighbours, and link-layer addresses of 6 bytes
	up       bool // by its administrator
	carrier  bool
}

// A holding is an address that a device has.
type holding struct {
	index     int // of the device
	tentative bool
	duplicate bool // another host has it, as duplicate address detection found
}

// A subnet is a network that a device is connected to.
type subnet struct {
	netip.Prefix
	index int
}

// A host is what was read of this host. Functions are asked where it takes more.
type host struct {
	devices map[int]*device
	held    map[netip.Addr][]holding
	subnets []subnet

	isLocal   func(netip.Addr) (bool, error)   // of IPv4, by the routes
	arpIgnore func(device string) (int, error) // net.ipv4.conf.DEVICE.arp_ignore, or that of all
}

// Values of arp_ignore (Linux, Documentation/networking/ip-sysctl.rst) other than those
// between 4 and 7, which are as 0.
const (
	arpOfLink   = 1 // answers for addresses of the link that is asked on
	arpOfSubnet = 2 // and only to those of the same subnet
	arpNotHost  = 3 // answers for addresses of all devices, but not for what local routes cover
	arpNothing  = 8
)

// attachments returns where an address is announced. It returns at least one.
func (h *host) attachments(a netip.Addr) []attachment {
	if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
		return nowhere("it is not an address that neighbours could use")
	}
	if on := h.onLinks(a); len(on) > 0 {
		return on
	}
	if a.Is6() {
		return nowhere("%s; %s", h.withoutLink(a), h.advice(a))
	}
	return h.behindLinks(a)
}

func nowhere(format string, args ...any) []attachment {
	return []attachment{{err: fmt.Errorf(format, args...)}}
}

// onLinks returns the Ethernet links that have an address; none: no such link has it.
func (h *host) onLinks(a netip.Addr) (on []attachment) {
	for _, held := range h.held[a] {
		d := h.devices[held.index]
		if d == nil || !d.ethernet {
			continue
		}
		err := errors.Join(d.usable(), held.usable())
		if err == nil && a.Is4() {
			err = h.answers(d, func(ignore int) bool { return ignore != arpNothing })
		}
		on = append(on, attachment{d.link, err})
	}
	return on
}

// usable returns why nothing can be announced on a device; nil: it can.
func (d *device) usable() error {
	switch {
	case !d.up:
		return fmt.Errorf("%s is down", d.name)
	case !d.carrier:
		return fmt.Errorf("%s has no carrier", d.name)
	}
	return nil
}

// usable returns why a device must not yet use an address; nil: it may.
func (h *holding) usable() error {
	switch {
	case h.duplicate:
		return errors.New("another host has it, as duplicate address detection found")
	case h.tentative:
		return errors.New("duplicate address detection has not ended")
	}
	return nil
}

// answers returns why the kernel does not answer ARP on a device; nil: it does.
func (h *host) answers(d *device, with func(ignore int) bool) error {
	ignore, err := h.arpIgnore(d.name)
	if err != nil {
		return fmt.Errorf("whether this host answers ARP for it is not known: %w", err)
	}
	if !with(ignore) {
		return fmt.Errorf("this host does not answer ARP for it on %s: net.ipv4.conf.%s.arp_ignore, or that of all, is %d", d.name, d.name, ignore)
	}
	return nil
}

// behindLinks returns the links whose network contains an IPv4 address that no Ethernet link has.
func (h *host) behindLinks(a netip.Addr) (on []attachment) {
	local, err := len(h.held[a]) > 0, error(nil)
	if !local {
		local, err = h.isLocal(a)
	}
	if err != nil {
		return nowhere("whether this host has it is not known: %w", err)
	}
	if !local {
		return nowhere("%s; %s", h.withoutLink(a), h.advice(a))
	}
	for _, d := range h.connected(a) {
		if err = d.usable(); err == nil {
			err = h.answers(d, func(ignore int) bool { return h.answersFor(a, ignore) })
		}
		on = append(on, attachment{d.link, err})
	}
	if len(on) == 0 {
		return nowhere("no link of this host is in its network: routers have to know that it is here")
	}
	return on
}

// answersFor reports whether the kernel answers ARP for a local address on links that do not have it.
func (h *host) answersFor(a netip.Addr, ignore int) bool {
	switch ignore {
	case arpOfLink, arpOfSubnet, arpNothing:
		return false
	case arpNotHost:
		return len(h.held[a]) > 0
	}
	return true
}

// connected returns the Ethernet links whose network contains an address, each once, by index.
func (h *host) connected(a netip.Addr) (list []*device) {
	for _, s := range h.subnets {
		d := h.devices[s.index]
		if s.Contains(a) && d != nil && d.ethernet && !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b *device) int { return a.index - b.index })
	return list
}

// withoutLink says why the kernel answers on no link for an address.
func (h *host) withoutLink(a netip.Addr) string {
	for _, held := range h.held[a] {
		if d := h.devices[held.index]; d != nil {
			return fmt.Sprintf("only %s has it, and this host answers for it on no other link", d.name)
		}
	}
	return "no link of this host has it, so this host does not answer for it"
}

// advice says how a link gets an address.
func (h *host) advice(a netip.Addr) string {
	dev := "LINK"
	if list := h.connected(a); len(list) > 0 {
		dev = list[0].name
	}
	return fmt.Sprintf("ip address add %s/%d dev %s", a, a.BitLen(), dev)
}
