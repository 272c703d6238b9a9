package source

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Protocols are those of services.
var Protocols = []Protocol{TCP, UDP, SCTP}

// ParseProtocol reads the name of one of Protocols.
func ParseProtocol(s string) (Protocol, error) {
	for _, p := range Protocols {
		if s == p.String() {
			return p, nil
		}
	}
	return 0, fmt.Errorf("unknown protocol %q", s)
}

// ParseAddr reads an address without a zone. One of IPv4 may be written as one of IPv6.
func ParseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err == nil && a.Zone() != "" {
		return a, fmt.Errorf("addresses with a zone are none of services")
	}
	return a.Unmap(), err
}

// ParseDestination reads ADDRESS[:PORT][/PROTOCOL]. An address of IPv6 with a port stands in brackets. What is
// left out is 0.
func ParseDestination(s string) (a netip.Addr, port uint16, p Protocol, err error) {
	host, protocol, has := strings.Cut(s, "/")
	if has {
		if p, err = ParseProtocol(protocol); err != nil {
			return a, 0, 0, err
		}
	}
	if a, err = ParseAddr(strings.Trim(host, "[]")); err == nil {
		return a, 0, p, nil
	}
	i := max(strings.LastIndexByte(host, ':'), 0)
	if a, err = ParseAddr(strings.Trim(host[:i], "[]")); err != nil {
		return a, 0, 0, fmt.Errorf("no IP address")
	}
	n, err := strconv.ParseUint(host[i+1:], 10, 16)
	if err != nil || n == 0 {
		return a, 0, 0, fmt.Errorf("%q is no port", host[i+1:])
	}
	return a, uint16(n), p, nil
}
