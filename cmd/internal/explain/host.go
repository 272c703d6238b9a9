package explain

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/ruleset"
	"svcproxy.dev/svcproxy/netutil/sysctl"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// ThisHost is the host that this process runs on, in its network namespace.
type ThisHost struct{ Mode modes.Mode }

// maxFlows is how many connections are read at most.
const maxFlows = 4

// Route implements Host.
func (ThisHost) Route(to netip.Addr, mark uint32) (Route, error) {
	list, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Mark: mark})
	if err != nil {
		return Route{}, err
	}
	if len(list) == 0 {
		return Route{}, errors.New("the kernel has none")
	}
	r := list[0]
	out := Route{Index: uint32(r.LinkIndex), Local: r.Type == unix.RTN_LOCAL}
	out.Via, _ = netip.AddrFromSlice(r.Gw)
	out.Source, _ = netip.AddrFromSlice(r.Src)
	out.Via, out.Source = out.Via.Unmap(), out.Source.Unmap()
	l, err := net.InterfaceByIndex(r.LinkIndex)
	if err != nil {
		return out, fmt.Errorf("its interface: %w", err)
	}
	out.Interface = l.Name
	return out, nil
}

// Router returns by way of which router this host reaches an address; not valid: by none.
func Router(a netip.Addr) (netip.Addr, error) {
	r, err := ThisHost{}.Route(a, 0)
	return r.Via, err
}

// Sysctl implements Host.
func (ThisHost) Sysctl(name string) (string, error) { return sysctl.Get(name) }

// Interfaces implements Host.
func (ThisHost) Interfaces() (names []string, err error) {
	list, err := net.Interfaces()
	for _, l := range list {
		if l.Flags&net.FlagUp != 0 && l.Flags&net.FlagLoopback == 0 && l.Name != links.Own {
			names = append(names, l.Name)
		}
	}
	return names, err
}

// Link implements Host.
func (ThisHost) Link(name string) (l []netip.Prefix, err error) {
	dev, err := netlink.LinkByName(name)
	if err != nil {
		return l, err
	}
	list, err := netlink.AddrList(dev, netlink.FAMILY_ALL)
	if err != nil {
		return l, err
	}
	if dev.Attrs().Flags&net.FlagBroadcast == 0 {
		return nil, nil
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.IPNet.String()); err == nil && !(dev.Type() == "bridge" && filtersBridge(name, p.Addr())) {
			l = append(l, p)
		}
	}
	return l, nil
}

// filtersBridge reports whether frames of a family that a bridge forwards pass the rules of IP: br_netfilter
// is loaded, and set so for all bridges of the namespace or for this one.
func filtersBridge(name string, family netip.Addr) bool {
	all, one := "bridge-nf-call-iptables", "nf_call_iptables"
	if family.Is6() {
		all, one = "bridge-nf-call-ip6tables", "nf_call_ip6tables"
	}
	if v, err := sysctl.Get("net/bridge/" + all); err == nil && v != "0" {
		return true
	}
	v, err := os.ReadFile(filepath.Join("/sys/class/net", name, "bridge", one))
	return err == nil && strings.TrimSpace(string(v)) != "0"
}

// Rules implements Host.
func (h ThisHost) Rules(ctx context.Context, fam policy.Family) *ruleset.Ruleset {
	return ruleset.Read(ctx, ruleset.Options{IPv6: fam == policy.IPv6, OwnTable: "svcproxy", Prefix: layout.Prefix, MaxRules: maxRules})
}

// Objects implements Host.
func (h ThisHost) Objects(ctx context.Context, st *policy.State) ([]proxier.Object, error) {
	return h.Mode.Objects(ctx, st)
}

// Connections implements Host.
func (ThisHost) Connections(ctx context.Context, q Question) (list []conntrack.Connection, err error) {
	f := conntrack.Filter{Protocol: uint8(q.Protocol), Src: netip.AddrPortFrom(q.Source, 0), Dst: netip.AddrPortFrom(q.Dest, q.Port)}
	err = conntrack.List(ctx, q.Dest.Is6(), f, func(c *conntrack.Connection) error {
		if len(list) == maxFlows {
			return errEnough
		}
		list = append(list, *c)
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return list, err
}

var errEnough = errors.New("enough was found")

// Remembered implements Host.
func (h ThisHost) Remembered(ctx context.Context, p *policy.Pool, client netip.Addr) (*proxier.Remembered, error) {
	if h.Mode.Remembered == nil {
		return nil, nil
	}
	return h.Mode.Remembered(ctx, p, client)
}
