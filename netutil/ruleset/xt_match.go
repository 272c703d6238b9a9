package ruleset

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// options are the options of iptables that are understood, each with one value.
var options = map[string]func(value string) func(*Packet) Match{
	"-s": func(v string) func(*Packet) Match { return inNet(v, func(p *Packet) netip.Addr { return p.Src }) },
	"-d": func(v string) func(*Packet) Match { return inNet(v, func(p *Packet) netip.Addr { return p.Dst }) },
	"-p": hasProtocol,
	"-i": func(v string) func(*Packet) Match {
		return onInterface(v, func(p *Packet) (string, bool) { return p.In, p.NoIn })
	},
	"-o": func(v string) func(*Packet) Match {
		return onInterface(v, func(p *Packet) (string, bool) { return p.Out, false })
	},
	"--dport":     func(v string) func(*Packet) Match { return hasPort(v, dstPort) },
	"--dports":    func(v string) func(*Packet) Match { return hasPort(v, dstPort) },
	"--sport":     func(v string) func(*Packet) Match { return hasPort(v, srcPort) },
	"--sports":    func(v string) func(*Packet) Match { return hasPort(v, srcPort) },
	"--ctstate":   inState,
	"--state":     inState,
	"--mark":      hasMark,
	"--comment":   func(string) func(*Packet) Match { return func(*Packet) Match { return Yes } },
	"--dst-type":  func(v string) func(*Packet) Match { return ofType(v, func(p *Packet) bool { return p.DstLocal }) },
	"--src-type":  func(v string) func(*Packet) Match { return ofType(v, func(p *Packet) bool { return p.SrcLocal }) },
	"--tcp-flags": func(string) func(*Packet) Match { return notUnderstood },
}

func dstPort(p *Packet) uint16 { return p.DstPort }
func srcPort(p *Packet) uint16 { return p.SrcPort }

func inNet(v string, of func(*Packet) netip.Addr) func(*Packet) Match {
	prefix, err := netip.ParsePrefix(v)
	if a, single := netip.ParseAddr(v); single == nil {
		prefix, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil {
		return notUnderstood
	}
	return func(p *Packet) Match { return matchIf(prefix.Contains(of(p))) }
}

func hasProtocol(v string) func(*Packet) Match {
	n, known := map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "ipv6-icmp": 58, "udplite": 136, "esp": 50, "ah": 51, "gre": 47}[v]
	if number, err := strconv.ParseUint(v, 10, 8); err == nil {
		n, known = uint8(number), true
	}
	switch {
	case v == "all":
		return func(*Packet) Match { return Yes }
	case !known:
		return notUnderstood
	}
	return func(p *Packet) Match { return matchIf(p.Protocol == n) }
}

func onInterface(v string, of func(*Packet) (name string, none bool)) func(*Packet) Match {
	stem, isPrefix := strings.CutSuffix(v, "+")
	return func(p *Packet) Match {
		name, none := of(p)
		switch {
		case none:
			return matchIf(v == "+")
		case name == "":
			return Maybe
		case isPrefix:
			return matchIf(strings.HasPrefix(name, stem))
		}
		return matchIf(name == v)
	}
}

// hasPort matches a list of ports and ranges, as in 80,8000:8100.
func hasPort(v string, of func(*Packet) uint16) func(*Packet) Match {
	var ranges [][2]uint64
	for part := range strings.SplitSeq(v, ",") {
		lo, hi, isRange := strings.Cut(part, ":")
		if !isRange {
			hi = lo
		}
		a, errA := strconv.ParseUint(lo, 10, 16)
		b, errB := strconv.ParseUint(hi, 10, 16)
		if errA != nil || errB != nil {
			return notUnderstood
		}
		ranges = append(ranges, [2]uint64{a, b})
	}
	return func(p *Packet) Match {
		port := uint64(of(p))
		if port == 0 {
			return Maybe
		}
		return matchIf(slices.ContainsFunc(ranges, func(r [2]uint64) bool { return r[0] <= port && port <= r[1] }))
	}
}

// inState matches the state of the first packet of a connection.
func inState(v string) func(*Packet) Match {
	states := strings.Split(v, ",")
	return func(p *Packet) Match {
		return matchIf(slices.Contains(states, "NEW") || p.DNAT && slices.Contains(states, "DNAT"))
	}
}

func hasMark(v string) func(*Packet) Match {
	want, mask, masked := strings.Cut(v, "/")
	if !masked {
		mask = "0xffffffff"
	}
	w, errW := strconv.ParseUint(want, 0, 32)
	m, errM := strconv.ParseUint(mask, 0, 32)
	if errW != nil || errM != nil {
		return notUnderstood
	}
	return func(p *Packet) Match {
		if p.AnyMark {
			return Maybe
		}
		return matchIf(uint64(p.Mark)&m == w)
	}
}

func ofType(v string, local func(*Packet) bool) func(*Packet) Match {
	switch v {
	case "LOCAL":
		return func(p *Packet) Match { return matchIf(local(p)) }
	case "UNICAST":
		return func(p *Packet) Match { return matchIf(!local(p)) }
	}
	return notUnderstood
}
