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

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
	"svcproxy.dev/svcproxy/netutil/nft"
)

// An nftRule is a rule of nf_tables.
type nftRule struct {
	v6    bool
	exprs []nft.Expression
	sets  func(name string) *nftSet // of its table
	words string                    // of iptables; empty: it is not known to print the rule
}

// An expression is the attributes of one.
type expression []byte

func (e expression) number(typ uint16) uint32 { return nlmsg.Uint32(nlmsg.Find(e, typ)) }

func (e expression) text(typ uint16) string { return nlmsg.String(nlmsg.Find(e, typ)) }

func (e expression) data(typ uint16) []byte { return nlmsg.Find(e, typ, unix.NFTA_DATA_VALUE) }

func (e expression) has(typ uint16) bool { return nlmsg.Find(e, typ) != nil }

// A machine is the registers while a rule is evaluated and, if it tells, put into words.
type machine struct {
	registers value
	loaded    [registerBytes / 4]value // by where the register begins
	tells     bool
	words     []string
	sets      func(name string) *nftSet // nil: none can be read
	packet    *Packet
	match     Match
	done      Verdict
}

// Eval implements Rule.
func (r *nftRule) Eval(p *Packet) (Match, Verdict) {
	m := machine{registers: unknown(registerBytes), sets: r.sets, packet: p, match: Yes}
	for _, e := range r.exprs {
		if m.step(e.Name, e.Data); m.match == No {
			return No, Verdict{Marks: m.done.Marks, Rewrites: m.done.Rewrites}
		}
	}
	return m.match, m.done
}

// String returns the rule as iptables prints it, or much as nft does. It is for people: what has
// no simple words is named by its expression.
func (r *nftRule) String() string {
	if r.words != "" {
		return r.words
	}
	zero := netip.IPv4Unspecified()
	if r.v6 {
		zero = netip.IPv6Unspecified()
	}
	m := machine{registers: unknown(registerBytes), packet: &Packet{Src: zero, Dst: zero}, tells: true}
	for _, e := range r.exprs {
		m.step(e.Name, e.Data)
	}
	return clip(shorter.Replace(strings.Join(m.words, " ")))
}

// shorter leaves out what nft does not print of what it adds to a rule.
var shorter = strings.NewReplacer(
	"meta nfproto ipv4 ip ", "ip ", "meta nfproto ipv6 ip6 ", "ip6 ",
	"meta l4proto tcp th ", "tcp ", "meta l4proto udp th ", "udp ", "meta l4proto sctp th ", "sctp ",
)

func (m *machine) describe(words ...string) { m.words = append(m.words, words...) }

// compares says what a value is compared with.
func (m *machine) compares(v value, op uint32, data ...[]byte) {
	if m.tells {
		m.describe(v.compared(op, data...))
	}
}

// offset returns where a register begins: the first four have 16 bytes, from 8 on 4.
func offset(reg uint32) int {
	if reg >= 1 && reg <= 4 {
		return int(reg-1) * 16
	}
	return int((reg-unix.NFT_REG32_00)%16) * 4
}

func (m *machine) load(reg uint32, v value) {
	at := offset(reg)
	m.loaded[at/4] = v
	rest := -len(v.data) & 3 // what is left of a register is 0
	copy(m.registers.data[at:], append(slices.Clone(v.data), make([]byte, rest)...))
	copy(m.registers.known[at:], append(slices.Clone(v.known), bytes.Repeat([]byte{0xff}, rest)...))
}

// read returns a copy of what a register, and those that follow, hold.
func (m *machine) read(reg uint32, n int) value {
	v, part := m.loaded[offset(reg)/4], m.registers.slice(offset(reg), n)
	v.data, v.known = part.data, part.known
	return v
}

func (m *machine) require(ok Match) { m.match = min(m.match, ok) }

// statements are expressions that do the same whatever they hold.
var statements = map[string]Verdict{
	"log": {}, "masq": {}, "flow_offload": {}, "dup": {},
	"reject": {Kind: Reject}, "queue": {Kind: Queue}, "notrack": {Kind: NoTrack},
	"redir": {Kind: Translate, To: "this host"}, "tproxy": {Kind: Translate, To: "a process of this host"},
}

// step evaluates one expression. An expression that it does not know may match, and may load any value.
func (m *machine) step(name string, e expression) {
	switch name {
	case "counter":
	case "payload":
		m.payload(e)
	case "meta":
		m.meta(e)
	case "ct":
		m.ct(e)
	case "fib":
		m.fib(e)
	case "bitwise":
		m.bitwise(e)
	case "cmp":
		op, data := e.number(unix.NFTA_CMP_OP), e.data(unix.NFTA_CMP_DATA)
		v := m.read(e.number(unix.NFTA_CMP_SREG), len(data))
		m.compares(v, op, data)
		m.require(v.compare(op, data))
	case "byteorder":
		m.swap(e)
	case "numgen":
		m.load(e.number(unix.NFTA_NG_DREG), unknown(4).named(name))
	case "hash":
		m.load(e.number(unix.NFTA_HASH_DREG), unknown(4).named(name))
	case "range":
		m.inRange(e)
	case "lookup":
		m.lookup(e)
	case "immediate":
		m.immediate(e)
	case "nat":
		m.nat(e)
	case "target": // of iptables
		m.describe("xt target " + quoted(e.text(unix.NFTA_TARGET_NAME)))
		m.decide(targets[e.text(unix.NFTA_TARGET_NAME)])
	default:
		v, simple := statements[name]
		m.describe(quoted(name))
		m.decide(v)
		if !simple && !(name == "objref" && e.number(unix.NFTA_OBJREF_IMM_TYPE) == unix.NFT_OBJECT_COUNTER) {
			m.require(Maybe)
			m.registers, m.loaded = unknown(registerBytes), [registerBytes / 4]value{}
		}
	}
}

// decide notes what the rule does. What it did before is not undone where it then lets the
// packet pass.
func (m *machine) decide(v Verdict) {
	if v.passes() && (m.done.Kind == Translate || m.done.Kind == NoTrack) {
		return
	}
	v.Marks, v.Rewrites = v.Marks || m.done.Marks, m.done.Rewrites
	m.done = v
}

// verdicts are those of nf_tables; any other one is continue.
var verdicts = map[int32]struct {
	kind Kind
	word string
}{
	0: {Drop, "drop"}, 1: {Accept, "accept"}, 3: {Queue, "queue"}, // NF_DROP, NF_ACCEPT, NF_QUEUE
	unix.NFT_JUMP: {Jump, "jump"}, unix.NFT_GOTO: {GoTo, "goto"}, unix.NFT_RETURN: {Return, "return"}, unix.NFT_CONTINUE: {Continue, "continue"},
}

// verdictIn decodes NFTA_DATA_VERDICT, also in words.
func verdictIn(data expression) (Verdict, string) {
	known := verdicts[int32(data.number(unix.NFTA_VERDICT_CODE))]
	v := Verdict{Kind: known.kind}
	switch {
	case !data.has(unix.NFTA_VERDICT_CODE):
		return Verdict{}, ""
	case !v.leads():
		return v, cmp.Or(known.word, "continue")
	}
	v.Chain = data.text(unix.NFTA_VERDICT_CHAIN)
	return v, known.word + " " + quoted(v.Chain)
}

func (m *machine) immediate(e expression) {
	to, data := e.number(unix.NFTA_IMMEDIATE_DREG), e.data(unix.NFTA_IMMEDIATE_DATA)
	if to != unix.NFT_REG_VERDICT {
		m.load(to, known(data).named(constant(data)))
		return
	}
	v, word := verdictIn(nlmsg.Find(e, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT))
	m.describe(word)
	m.decide(v)
}

// payload loads part of a header, or notes that a field may get another value by what is written there: some rules
// write what is beside the field that they name, too.
func (m *machine) payload(e expression) {
	base, at, n := e.number(unix.NFTA_PAYLOAD_BASE), int(e.number(unix.NFTA_PAYLOAD_OFFSET)), int(e.number(unix.NFTA_PAYLOAD_LEN))
	header, name, written := unknown(40), "", value{}
	if e.has(unix.NFTA_PAYLOAD_SREG) {
		written = m.read(e.number(unix.NFTA_PAYLOAD_SREG), n)
	}
	for _, f := range m.packet.fields() {
		if f.base != base {
			continue
		}
		copy(header.data[f.at:], f.data)
		copy(header.known[f.at:], known(f.data).known)
		if f.at == at {
			name = f.name
		}
		for i := max(at, f.at); i < min(at+len(written.data), f.at+f.size); i++ {
			same := f.data != nil && written.known[i-at] == 0xff && written.data[i-at] == f.data[i-f.at]
			m.done.Rewrites = m.done.Rewrites || !same
		}
	}
	if m.tells && name == "" {
		name = fmt.Sprintf("@%d,%d,%d", base, at*8, n*8)
	}
	if written.data != nil {
		m.describe(name, "set", written.text())
		return
	}
	m.load(e.number(unix.NFTA_PAYLOAD_DREG), header.slice(at, n).named(name))
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
	family, etherType := byte(unix.NFPROTO_IPV4), []byte{0x08, 0x00}
	if p.Src.Is6() {
		family, etherType = unix.NFPROTO_IPV6, []byte{0x86, 0xdd}
	}
	name, v := strconv.Itoa(int(key)), unknown(16)
	switch key {
	case unix.NFT_META_L4PROTO:
		name, v = "l4proto", known([]byte{p.Protocol})
	case unix.NFT_META_NFPROTO:
		name, v = "nfproto", known([]byte{family})
	case unix.NFT_META_PROTOCOL:
		name, v = "protocol", known(etherType)
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
	if name = "meta " + name; !e.has(unix.NFTA_META_SREG) {
		m.load(e.number(unix.NFTA_META_DREG), v.named(name))
		return
	}
	m.describe(name, "set", m.read(e.number(unix.NFTA_META_SREG), 0).text())
	m.done.Marks = m.done.Marks || key == unix.NFT_META_MARK
}

// Bits of a connection's state and status, <linux/netfilter/nf_conntrack_common.h>.
const (
	stateNew      = 1 << 3
	statusDNAT    = 1 << 5
	statusReplied = 1<<1 | 1<<2 | 1<<3 // seen-reply, assured, confirmed
)

// ct loads what is known of the packet's connection, of which it is the first.
func (m *machine) ct(e expression) {
	if !e.has(unix.NFTA_CT_DREG) {
		return // it writes there
	}
	key := e.number(unix.NFTA_CT_KEY)
	name, v := strconv.Itoa(int(key)), unknown(16)
	switch key {
	case unix.NFT_CT_STATE:
		name, v = "state", number(stateNew, true)
	case unix.NFT_CT_MARK:
		name = "mark"
	case unix.NFT_CT_DIRECTION:
		name, v = "direction", known([]byte{0})
	case unix.NFT_CT_STATUS:
		name, v = "status", number(0, true)
		if m.packet.DNAT {
			v = number(statusDNAT, true)
		}
		binary.NativeEndian.PutUint32(v.known, statusDNAT|statusReplied)
	}
	m.load(e.number(unix.NFTA_CT_DREG), v.named("ct "+name))
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
	m.load(e.number(unix.NFTA_FIB_DREG), v.named(name))
}

func (m *machine) bitwise(e expression) {
	mask, xor := e.data(unix.NFTA_BITWISE_MASK), e.data(unix.NFTA_BITWISE_XOR)
	v := m.read(e.number(unix.NFTA_BITWISE_SREG), int(e.number(unix.NFTA_BITWISE_LEN)))
	out := unknown(len(v.data)).named(v.name) // of a shift, which has no mask
	out.mask = mask
	for i := range min(len(v.data), len(mask), len(xor)) {
		out.data[i], out.known[i] = v.data[i]&mask[i]^xor[i], v.known[i]|^mask[i]
	}
	m.load(e.number(unix.NFTA_BITWISE_DREG), out)
}

// swap loads numbers in the other order of bytes.
func (m *machine) swap(e expression) {
	size := int(e.number(unix.NFTA_BYTEORDER_SIZE))
	v := m.read(e.number(unix.NFTA_BYTEORDER_SREG), int(e.number(unix.NFTA_BYTEORDER_LEN)))
	for at := 0; size > 0 && at+size <= len(v.data); at += size {
		slices.Reverse(v.data[at : at+size])
		slices.Reverse(v.known[at : at+size])
	}
	v.swapped = !v.swapped
	m.load(e.number(unix.NFTA_BYTEORDER_DREG), v)
}

func (m *machine) inRange(e expression) {
	op, from, to := e.number(unix.NFTA_RANGE_OP), e.data(unix.NFTA_RANGE_FROM_DATA), e.data(unix.NFTA_RANGE_TO_DATA)
	v := m.read(e.number(unix.NFTA_RANGE_SREG), len(from))
	m.compares(v, op, from, to)
	in := min(v.compare(unix.NFT_CMP_GTE, from), v.compare(unix.NFT_CMP_LTE, to))
	if op == unix.NFT_RANGE_NEQ {
		in = in.not()
	}
	m.require(in)
}

// lookup looks a key up in a set or a map.
func (m *machine) lookup(e expression) {
	from, to, name, flags := e.number(unix.NFTA_LOOKUP_SREG), e.number(unix.NFTA_LOOKUP_DREG), e.text(unix.NFTA_LOOKUP_SET), e.number(unix.NFTA_LOOKUP_FLAGS)
	m.describe(m.read(from, 0).text(), operators[flags&unix.NFT_LOOKUP_F_INV]+"@"+quoted(name))
	found, data := Maybe, []byte(nil)
	if m.sets != nil {
		if set := m.sets(name); set != nil {
			found, data = set.find(m.read(from, set.keyLen))
		}
	}
	if flags&unix.NFT_LOOKUP_F_INV != 0 {
		found = found.not()
	}
	m.require(found)
	switch {
	case !e.has(unix.NFTA_LOOKUP_DREG):
	case to != unix.NFT_REG_VERDICT && found == Yes:
		m.load(to, known(data))
	case to != unix.NFT_REG_VERDICT:
		m.load(to, unknown(16))
	case found == Maybe: // of which element nobody knows
		m.decide(Verdict{Kind: Unfollowed})
	default:
		v, _ := verdictIn(data)
		m.decide(v)
	}
}

// nat notes where a rule sends packets, as far as it is known.
func (m *machine) nat(e expression) {
	addr, port := e.number(unix.NFTA_NAT_REG_ADDR_MIN), e.number(unix.NFTA_NAT_REG_PROTO_MIN)
	what, to := "snat to", "another address"
	toAddr, toPort := m.read(addr, m.packet.Dst.BitLen()/8), m.read(port, 2)
	if addr == 0 {
		to = m.packet.Dst.String()
	} else if toAddr.complete() {
		to = constant(toAddr.data)
	}
	if port != 0 && toPort.complete() {
		to = net.JoinHostPort(to, constant(toPort.data))
	}
	if e.number(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT {
		what = "dnat to"
		m.decide(Verdict{Kind: Translate, To: to})
	}
	if m.describe(what, toAddr.text()); port != 0 {
		m.describe("port", toPort.text())
	}
}
