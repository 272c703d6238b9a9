package trace

import (
	"fmt"
	"net/netip"
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
	if a, err := source.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("unknown source %q; want an address, a prefix, or %s", s, Any)
	}
	return p.Masked(), nil
}

func (f *Filter) parseDestination(s string) (err error) {
	rest, isAny := strings.CutPrefix(s, Any)
	isAny = isAny || s == ""
	if isAny {
		rest = "0.0.0.0" + rest
	}
	if _, protocol, has := strings.Cut(s, "/"); has {
		if _, err := source.ParseProtocol(protocol); err != nil {
			return fmt.Errorf("%w; want tcp, udp or sctp", err)
		}
	}
	if f.Destination, f.Port, f.Protocol, err = source.ParseDestination(rest); err != nil {
		return fmt.Errorf("unknown destination %q; want ADDRESS[:PORT][/PROTOCOL], [ADDRESS]:PORT for IPv6, or %s", s, Any)
	}
	if isAny {
		f.Destination = netip.Addr{}
	}
	return nil
}
