package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// Any is an argument that stands for every source or destination.
const Any = "any"

// A Filter says which connections to show.
type Filter struct {
	Source      netip.Prefix    // zero: any
	Destination netip.Addr      // zero: all addresses of services
	Port        uint16          // 0: any
	Protocol    source.Protocol // 0: any
}

// protocols are those of services.
var protocols = []source.Protocol{source.TCP, source.UDP, source.SCTP}

// ParseFilter reads [SRC] [DST[:PORT][/PROTO]]. One argument is the destination, unless
// it is an address or prefix without port or protocol that isService does not know.
func ParseFilter(args []string, isService func(netip.Addr) bool) (Filter, error) {
	var src, dst string
	switch {
	case len(args) > 1:
		src, dst = args[0], args[1]
	case len(args) == 1:
		dst = args[0]
		if p, err := parseSource(dst); err == nil && p.IsValid() && (strings.Contains(dst, "/") || !isService(p.Addr())) {
			src, dst = dst, ""
		}
	}
	var f Filter
	err := f.parseDestination(dst)
	if err == nil {
		f.Source, err = parseSource(src)
	}
	if err == nil && f.Source.IsValid() && f.Destination.IsValid() && f.Source.Addr().Is4() != f.Destination.Is4() {
		err = fmt.Errorf("source %s and destination %s are of two address families", src, dst)
	}
	return f, err
}

func parseSource(s string) (netip.Prefix, error) {
	if s == "" || s == Any {
		return netip.Prefix{}, nil
	}
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("unknown source %q; want an address, a prefix, or %s", s, Any)
	}
	return p.Masked(), nil
}

func (f *Filter) parseDestination(s string) error {
	bad := fmt.Errorf("unknown destination %q; want ADDRESS[:PORT][/PROTOCOL], [ADDRESS]:PORT for IPv6, or %s", s, Any)
	addr, proto, _ := strings.Cut(s, "/")
	if addr != s {
		i := slices.IndexFunc(protocols, func(p source.Protocol) bool { return p.String() == proto })
		if i < 0 {
			return fmt.Errorf("unknown protocol %q; want tcp, udp or sctp", proto)
		}
		f.Protocol = protocols[i]
	}
	if rest, port, ok := strings.Cut(addr, Any+":"); ok && rest == "" { // any:80
		return f.parsePort(port, bad)
	}
	if addr == "" && proto == "" || addr == Any {
		return nil
	}
	if a, err := netip.ParseAddr(strings.Trim(addr, "[]")); err == nil && a.Zone() == "" {
		f.Destination = a.Unmap()
		return nil
	}
	i := strings.LastIndexByte(addr, ':')
	if i < 0 {
		return bad
	}
	a, err := netip.ParseAddr(strings.Trim(addr[:i], "[]"))
	if err != nil || a.Zone() != "" || a.Is6() && addr[0] != '[' {
		return bad
	}
	f.Destination = a.Unmap()
	return f.parsePort(addr[i+1:], bad)
}

func (f *Filter) parsePort(s string, bad error) error {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return bad
	}
	f.Port = uint16(n)
	return nil
}
