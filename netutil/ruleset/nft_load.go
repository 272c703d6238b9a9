package ruleset

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// payload loads part of a header, or notes that a field that is known is overwritten.
func (m *machine) payload(e expression) {
	base, at, n := e.number(unix.NFTA_PAYLOAD_BASE), int(e.number(unix.NFTA_PAYLOAD_OFFSET)), int(e.number(unix.NFTA_PAYLOAD_LEN))
	header, name := unknown(40), ""
	for _, f := range m.packet.fields() {
		if f.base == base {
			copy(header.data[f.at:], f.data)
			copy(header.known[f.at:], known(f.data).known)
		}
		if f.base == base && f.at == at {
			name = f.name
		}
	}
	o := operand{name: name}
	if m.tells && name == "" {
		o.name = fmt.Sprintf("@%d,%d,%d", base, at*8, n*8)
	}
	if !e.has(unix.NFTA_PAYLOAD_SREG) {
		m.load(e.number(unix.NFTA_PAYLOAD_DREG), header.slice(at, n), o)
		return
	}
	from := e.number(unix.NFTA_PAYLOAD_SREG)
	m.describe(o.name, "set", m.names[offset(from)].text())
	m.done.Rewrites = m.done.Rewrites || m.packet.changes(base, at, m.read(from, n))
}

// changes reports whether a field may get another value by what is written at a place of a header: some rules write
// what is beside the field that they name, too.
func (p *Packet) changes(base uint32, at int, v value) bool {
	for _, f := range p.fields() {
		for i := range v.data {
			j := at + i - f.at
			if f.base != base || j < 0 || j >= f.size {
				continue
			}
			if f.data == nil || v.known[i] != 0xff || v.data[i] != f.data[j] {
				return true
			}
		}
	}
	return false
}

// A field is a part of a packet's headers.
type field struct {
	base uint32
	at   int
	name string
	size int
	data []byte // nil: not known
}

// fields are those of which something may be known.
func (p *Packet) fields() []field {
	family, protocol, src, dst := "ip ", 9, 12, 16 // struct iphdr
	if p.Src.Is6() {
		family, protocol, src, dst = "ip6 ", 6, 8, 24 // struct ipv6hdr
	}
	port := func(n uint16) []byte {
		if n == 0 {
			return nil
		}
		return binary.BigEndian.AppendUint16(nil, n)
	}
	const network, transport = unix.NFT_PAYLOAD_NETWORK_HEADER, unix.NFT_PAYLOAD_TRANSPORT_HEADER
	return []field{
		{network, protocol, family + "protocol", 1, []byte{p.Protocol}},
		{network, src, family + "saddr", p.Src.BitLen() / 8, p.Src.AsSlice()}, {network, dst, family + "daddr", p.Src.BitLen() / 8, p.Dst.AsSlice()},
		{transport, 0, "th sport", 2, port(p.SrcPort)}, {transport, 2, "th dport", 2, port(p.DstPort)},
	}
}

// meta loads a packet's surroundings, or writes them.
func (m *machine) meta(e expression) {
	p, key := m.packet, e.number(unix.NFTA_META_KEY)
	family, name, v := byte(unix.NFPROTO_IPV4), "", unknown(16)
	if p.Src.Is6() {
		family = unix.NFPROTO_IPV6
	}
	switch key {
	case unix.NFT_META_L4PROTO:
		name, v = "l4proto", known([]byte{p.Protocol})
	case unix.NFT_META_NFPROTO:
		name, v = "nfproto", known([]byte{family})
	case unix.NFT_META_PROTOCOL:
		name, v = "protocol", known(map[bool][]byte{false: {0x08, 0x00}, true: {0x86, 0xdd}}[p.Src.Is6()])
	case unix.NFT_META_IIFNAME:
		name, v = "iifname", interfaceName(p.In, p.NoIn)
	case unix.NFT_META_OIFNAME:
		name, v = "oifname", interfaceName(p.Out, false)
	case unix.NFT_META_IIF:
		name, v = "iif", number(p.InIndex, p.InIndex != 0 || p.NoIn)
	case unix.NFT_META_OIF:
		name, v = "oif", number(p.OutIndex, p.OutIndex != 0)
	case unix.NFT_META_MARK:
		name, v = "mark", number(p.Mark, !p.AnyMark && !m.done.Marks)
	}
	o := operand{name: "meta " + cmp.Or(name, strconv.Itoa(int(key)))}
	if !e.has(unix.NFTA_META_SREG) {
		m.load(e.number(unix.NFTA_META_DREG), v, o)
		return
	}
	m.describe(o.name, "set", m.names[offset(e.number(unix.NFTA_META_SREG))].text())
	m.done.Marks = m.done.Marks || key == unix.NFT_META_MARK
}

func interfaceName(name string, none bool) value {
	if name == "" && !none {
		return unknown(unix.IFNAMSIZ)
	}
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return known(b)
}

func number(n uint32, isKnown bool) value {
	if !isKnown {
		return unknown(4)
	}
	return known(binary.NativeEndian.AppendUint32(nil, n))
}

// Bits of a connection's state and status, <linux/netfilter/nf_conntrack_common.h>.
const (
	stateNew      = 1 << 3
	statusDNAT    = 1 << 5
	statusReplied = 1<<1 | 1<<2 | 1<<3 // seen-reply, assured, confirmed
)

// flags are the names of such bits.
var flags = map[string][]string{
	"ct state":  {"invalid", "established", "related", "new", "", "", "untracked"},
	"ct status": {"expected", "seen-reply", "assured", "confirmed", "snat", "dnat"},
}

// ct loads what is known of the packet's connection, of which it is the first.
func (m *machine) ct(e expression) {
	key := e.number(unix.NFTA_CT_KEY)
	name, v := "ct "+strconv.Itoa(int(key)), unknown(16)
	switch key {
	case unix.NFT_CT_STATE:
		name, v = "ct state", number(stateNew, true)
	case unix.NFT_CT_MARK:
		name = "ct mark"
	case unix.NFT_CT_DIRECTION:
		name, v = "ct direction", known([]byte{0})
	case unix.NFT_CT_STATUS:
		name, v = "ct status", number(0, true)
		if m.packet.DNAT {
			v = number(statusDNAT, true)
		}
		binary.NativeEndian.PutUint32(v.known, statusDNAT|statusReplied)
	}
	m.load(e.number(unix.NFTA_CT_DREG), v, operand{name: name})
}

// fib loads the type of an address.
func (m *machine) fib(e expression) {
	v, flags, isLocal, name := unknown(16), e.number(unix.NFTA_FIB_FLAGS), m.packet.DstLocal, "fib daddr type"
	if flags&unix.NFTA_FIB_F_SADDR != 0 {
		isLocal, name = m.packet.SrcLocal, "fib saddr type"
	}
	if e.number(unix.NFTA_FIB_RESULT) == unix.NFT_FIB_RESULT_ADDRTYPE && flags&(unix.NFTA_FIB_F_IIF|unix.NFTA_FIB_F_OIF) == 0 {
		v = number(map[bool]uint32{true: unix.RTN_LOCAL, false: unix.RTN_UNICAST}[isLocal], true)
	}
	m.load(e.number(unix.NFTA_FIB_DREG), v, operand{name: name})
}

// An operand is what was loaded into a register, in words.
type operand struct {
	name    string
	mask    []byte
	swapped bool // numbers are in the order of the network, to be compared by size
}

func (o operand) text() string { return cmp.Or(o.name, "?") }

// value prints a value of the operand.
func (o operand) value(b []byte) string {
	if o.swapped {
		b = slices.Clone(b)
		slices.Reverse(b)
	}
	protocol := map[string]string{"6": "tcp", "17": "udp", "132": "sctp", "1": "icmp"}
	switch family, part, _ := strings.Cut(o.name, " "); {
	case part == "saddr" || part == "daddr":
		return address(b, map[string]int{"ip": 4, "ip6": 16}[family])
	case part == "sport" || part == "dport":
		return constant(b[:min(len(b), 2)]) // nft may load both at once
	case (part == "l4proto" || part == "protocol" && family != "meta") && len(b) == 1:
		number := strconv.Itoa(int(b[0]))
		return cmp.Or(protocol[number], number)
	case part == "nfproto":
		return map[string]string{"\x02": "ipv4", "\x0a": "ipv6"}[string(b)]
	case family == "fib" && bytes.Equal(b, number(unix.RTN_LOCAL, true).data):
		return "local"
	case strings.HasSuffix(part, "name"):
		return strconv.Quote(string(bytes.TrimRight(b, "\x00")))
	case flags[o.name] != nil && len(b) == 4:
		var set []string
		for i, name := range flags[o.name] {
			if binary.NativeEndian.Uint32(b)&(1<<i) != 0 {
				set = append(set, name)
			}
		}
		return strings.Join(set, ",")
	case part != "" && len(b) == 4:
		return fmt.Sprintf("0x%x", binary.NativeEndian.Uint32(b))
	}
	return fmt.Sprintf("0x%x", b)
}

var operators = map[uint32]string{unix.NFT_CMP_NEQ: "!= ", unix.NFT_CMP_LT: "< ", unix.NFT_CMP_LTE: "<= ", unix.NFT_CMP_GT: "> ", unix.NFT_CMP_GTE: ">= "}

// compared says what an operand is compared with: a value, or two with what is in between. A comparison of some
// flags with 0 asks whether any of them is set.
func (o operand) compared(op uint32, data ...[]byte) string {
	text, mask := o.text()+" "+operators[op]+o.value(data[0]), fmt.Sprintf("0x%x", o.mask)
	switch ones, bits := net.IPMask(o.mask).Size(); {
	case len(data) > 1:
		return text + "-" + o.value(data[1])
	case len(o.mask) == 0:
		return text
	case flags[o.name] != nil && op <= unix.NFT_CMP_NEQ && bytes.Count(data[0], []byte{0}) == len(data[0]):
		return o.name + " " + operators[1-op] + o.value(o.mask)
	case bits > 0:
		mask = strconv.Itoa(ones)
	}
	return text + "/" + mask
}

// address prints an address of a size, or the beginning of one as a prefix.
func address(b []byte, size int) string {
	full := make([]byte, size)
	copy(full, b)
	a, _ := netip.AddrFromSlice(full)
	if len(b) < size {
		return netip.PrefixFrom(a, len(b)*8).String()
	}
	return a.String()
}

// constant prints what a rule has as one: an address, a port or a number.
func constant(b []byte) string {
	switch len(b) {
	case 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	case 4, 16:
		return address(b, len(b))
	}
	return fmt.Sprintf("0x%x", b)
}

// quoted makes a name of another program safe to print.
func quoted(name string) string {
	q := strconv.Quote(name)
	return q[1 : len(q)-1]
}
