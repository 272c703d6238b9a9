package haproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// A bindGroup is addresses that have the same ports. Without addresses it is all of the host.
type bindGroup struct {
	addrs []netip.Addr
	ports []uint16
}

// binds returns where a section listens, in groups.
func (h *haproxy) binds(s *section) (groups []bindGroup) {
	ports := map[netip.Addr][]uint16{}
	var order []netip.Addr
	for _, l := range s.all("bind") {
		if slices.Contains(l.Words, "ssl") {
			h.Note(l.At, "bind "+source.Excerpt(l.Arg(1))+" with ssl is left out: TLS is ended by endpoints only", "give the certificate to the endpoints, or keep HAProxy as an endpoint")
			continue
		}
		h.noteBindParams(l)
		for part := range strings.SplitSeq(l.Arg(1), ",") {
			a, list, err := bindAddr(part)
			if err != nil {
				h.Note(l.At, "bind "+source.Excerpt(part)+" is left out: "+err.Error(), "")
				continue
			}
			h.Grow(len(list))
			if !a.IsValid() && slices.Contains(l.Words, "v6only") {
				h.Note(l.At, "v6only of bind is left out: a node port is for IPv4 too", "write vips in place of node_port, or let node_port_addresses have none of IPv4")
			}
			if _, known := ports[a]; !known {
				order = append(order, a)
			}
			ports[a] = append(ports[a], list...)
		}
	}
	same := map[string]int{} // groups by their ports
	for _, a := range order {
		list := slices.Compact(slices.Sorted(slices.Values(ports[a])))
		key := fmt.Sprint(a.IsValid(), list)
		i, known := same[key]
		if !known {
			i, groups = len(groups), append(groups, bindGroup{ports: list})
			same[key] = i
		}
		if a.IsValid() {
			groups[i].addrs = append(groups[i].addrs, a)
		}
	}
	return groups
}

// bindFlags and bindKeys are parameters of bind that have no meaning where packets are forwarded, without a value and with one.
var (
	bindFlags = reader.WordSet("defer-accept tfo v4v6 v6only transparent")
	bindKeys  = reader.WordSet("name process thread user group mode uid gid id level nice mss tcp-ut shards backlog severity-output")
)

// noteBindParams notes the other parameters of a bind. A word behind an unknown parameter may be its value: it is noted too.
func (h *haproxy) noteBindParams(l reader.Line) {
	for i := 2; i < len(l.Words); i++ {
		switch word := l.Words[i]; {
		case bindKeys[word]:
			i++
		case bindFlags[word]:
		case word == "maxconn" || word == "interface" || word == "namespace":
			h.Note(l.At, source.Excerpt(word+" "+l.Arg(i+1))+" of bind is left out", hints[word])
			i++
		default:
			h.Note(l.At, source.Excerpt(word)+" of bind is left out", "")
		}
	}
}

// bindAddr reads ADDRESS:PORT or ADDRESS:PORT-PORT, without address or with * for all. No address
// means all of them.
func bindAddr(text string) (a netip.Addr, ports []uint16, err error) {
	if kind, rest, found := strings.Cut(text, "@"); found {
		if kind != "ipv4" && kind != "ipv6" {
			return a, nil, fmt.Errorf("it is no address of IP")
		}
		text = rest
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return a, nil, fmt.Errorf("it has no port")
	}
	if host := strings.Trim(text[:i], "[]"); host != "" && host != "*" {
		if a, err = netip.ParseAddr(host); err != nil {
			return a, nil, fmt.Errorf("%s is no address", source.Excerpt(host))
		}
		if a.IsUnspecified() {
			a = netip.Addr{}
		}
	}
	ports, err = reader.PortRange(text[i+1:], "-")
	return a, ports, err
}
