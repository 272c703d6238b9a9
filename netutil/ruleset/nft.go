package ruleset

import (
	"bytes"
	"cmp"
	"net"
	"net/netip"
	"slices"
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

// registerBytes is how many bytes the registers of nf_tables have.
const registerBytes = 16 * 4

// A machine is the registers while a rule is evaluated and, if it tells, put into words.
type machine struct {
	registers value
	names     [registerBytes]operand // by where the register begins
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

// compares says what a register is compared with.
func (m *machine) compares(reg, op uint32, data ...[]byte) {
	if m.tells {
		m.describe(m.names[offset(reg)].compared(op, data...))
	}
}

// offset returns where a register begins: the first four have 16 bytes, from 8 on 4.
func offset(reg uint32) int {
	if reg >= 1 && reg <= 4 {
		return int(reg-1) * 16
	}
	return int((reg-unix.NFT_REG32_00)%16) * 4
}

func (m *machine) load(reg uint32, v value, o operand) {
	at := offset(reg)
	m.names[at] = o
	rest := -len(v.data) & 3 // what is left of a register is 0
	copy(m.registers.data[at:], append(slices.Clone(v.data), make([]byte, rest)...))
	copy(m.registers.known[at:], append(slices.Clone(v.known), bytes.Repeat([]byte{0xff}, rest)...))
}

func (m *machine) read(reg uint32, n int) value { return m.registers.slice(offset(reg), n) }

func (m *machine) require(ok Match) { m.match = min(m.match, ok) }

// statements are expressions that do the same whatever they hold.
var statements = map[string]Verdict{
	"counter": {}, "log": {}, "masq": {}, "flow_offload": {}, "dup": {},
	"reject": {Kind: Reject}, "queue": {Kind: Queue}, "notrack": {Kind: NoTrack},
	"redir": {Kind: Translate, To: "this host"}, "tproxy": {Kind: Translate, To: "a process of this host"},
}

// step evaluates one expression. An expression that it does not know may match, and may load any value.
func (m *machine) step(name string, e expression) {
	switch v, simple := statements[name]; {
	case name == "counter":
	case name == "payload":
		m.payload(e)
	case name == "meta":
		m.meta(e)
	case name == "ct" && e.has(unix.NFTA_CT_DREG):
		m.ct(e)
	case name == "ct": // it writes there
	case name == "fib":
		m.fib(e)
	case name == "bitwise":
		m.bitwise(e)
	case name == "cmp":
		reg, op, data := e.number(unix.NFTA_CMP_SREG), e.number(unix.NFTA_CMP_OP), e.data(unix.NFTA_CMP_DATA)
		m.compares(reg, op, data)
		m.require(m.read(reg, len(data)).compare(op, data))
	case name == "byteorder":
		m.swap(e)
	case name == "numgen":
		m.load(e.number(unix.NFTA_NG_DREG), unknown(4), operand{name: name})
	case name == "hash":
		m.load(e.number(unix.NFTA_HASH_DREG), unknown(4), operand{name: name})
	case name == "range":
		m.inRange(e)
	case name == "lookup":
		m.lookup(e)
	case name == "immediate":
		m.immediate(e)
	case name == "nat":
		m.nat(e)
	case name == "target": // of iptables
		m.describe("xt target " + quoted(e.text(unix.NFTA_TARGET_NAME)))
		m.decide(targets[e.text(unix.NFTA_TARGET_NAME)])
	default:
		m.describe(quoted(name))
		m.decide(v)
		if !simple && !(name == "objref" && e.number(unix.NFTA_OBJREF_IMM_TYPE) == unix.NFT_OBJECT_COUNTER) {
			m.require(Maybe)
			m.registers, m.names = unknown(registerBytes), [registerBytes]operand{}
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
		m.load(to, known(data), operand{name: constant(data)})
		return
	}
	v, word := verdictIn(nlmsg.Find(e, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT))
	m.describe(word)
	m.decide(v)
}

func (m *machine) bitwise(e expression) {
	from, mask, xor := e.number(unix.NFTA_BITWISE_SREG), e.data(unix.NFTA_BITWISE_MASK), e.data(unix.NFTA_BITWISE_XOR)
	v := m.read(from, int(e.number(unix.NFTA_BITWISE_LEN)))
	out := unknown(len(v.data)) // of a shift, which has no mask
	for i := range min(len(v.data), len(mask), len(xor)) {
		out.data[i], out.known[i] = v.data[i]&mask[i]^xor[i], v.known[i]|^mask[i]
	}
	m.load(e.number(unix.NFTA_BITWISE_DREG), out, operand{name: m.names[offset(from)].name, mask: mask})
}

// swap loads numbers in the other order of bytes.
func (m *machine) swap(e expression) {
	from, size := e.number(unix.NFTA_BYTEORDER_SREG), int(e.number(unix.NFTA_BYTEORDER_SIZE))
	v := m.read(from, int(e.number(unix.NFTA_BYTEORDER_LEN)))
	for at := 0; size > 0 && at+size <= len(v.data); at += size {
		slices.Reverse(v.data[at : at+size])
		slices.Reverse(v.known[at : at+size])
	}
	o := m.names[offset(from)]
	o.swapped = !o.swapped
	m.load(e.number(unix.NFTA_BYTEORDER_DREG), v, o)
}

func (m *machine) inRange(e expression) {
	reg, op, from, to := e.number(unix.NFTA_RANGE_SREG), e.number(unix.NFTA_RANGE_OP), e.data(unix.NFTA_RANGE_FROM_DATA), e.data(unix.NFTA_RANGE_TO_DATA)
	m.compares(reg, op, from, to)
	v := m.read(reg, len(from))
	in := min(v.compare(unix.NFT_CMP_GTE, from), v.compare(unix.NFT_CMP_LTE, to))
	if op == unix.NFT_RANGE_NEQ {
		in = in.not()
	}
	m.require(in)
}

// lookup looks a key up in a set or a map.
func (m *machine) lookup(e expression) {
	from, to, name, flags := e.number(unix.NFTA_LOOKUP_SREG), e.number(unix.NFTA_LOOKUP_DREG), e.text(unix.NFTA_LOOKUP_SET), e.number(unix.NFTA_LOOKUP_FLAGS)
	m.describe(m.names[offset(from)].text(), operators[flags&unix.NFT_LOOKUP_F_INV]+"@"+quoted(name))
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
		m.load(to, known(data), operand{})
	case to != unix.NFT_REG_VERDICT:
		m.load(to, unknown(16), operand{})
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
	if v := m.read(addr, m.packet.Dst.BitLen()/8); addr != 0 && v.complete() {
		to = constant(v.data)
	} else if addr == 0 {
		to = m.packet.Dst.String()
	}
	if v := m.read(port, 2); port != 0 && v.complete() {
		to = net.JoinHostPort(to, constant(v.data))
	}
	if e.number(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT {
		what = "dnat to"
		m.decide(Verdict{Kind: Translate, To: to})
	}
	m.describe(what, m.names[offset(addr)].text())
	if port != 0 {
		m.describe("port", m.names[offset(port)].text())
	}
}

// A value is bytes, some bits of which may not be known.
type value struct{ data, known []byte }

func unknown(n int) value { return value{make([]byte, n), make([]byte, n)} }

func known(b []byte) value { return value{b, bytes.Repeat([]byte{0xff}, len(b))} }

// slice is part of v; what lies outside is not known.
func (v value) slice(from, n int) value {
	out := unknown(min(n, registerBytes))
	if from < len(v.data) {
		copy(out.data, v.data[from:])
		copy(out.known, v.known[from:])
	}
	return out
}

func (v value) complete() bool { return bytes.Count(v.known, []byte{0xff}) == len(v.known) }

// compare compares v with a value of the same length.
func (v value) compare(op uint32, b []byte) Match {
	c := bytes.Compare(v.data, b)
	switch {
	case op == unix.NFT_CMP_EQ:
		return v.equals(b)
	case op == unix.NFT_CMP_NEQ:
		return v.equals(b).not()
	case !v.complete():
		return Maybe
	case c == 0:
		return matchIf(op == unix.NFT_CMP_LTE || op == unix.NFT_CMP_GTE)
	}
	return matchIf((c < 0) == (op == unix.NFT_CMP_LT || op == unix.NFT_CMP_LTE))
}

// equals compares what is known of v.
func (v value) equals(b []byte) Match {
	m := Yes
	for i := range min(len(b), len(v.data)) {
		if (v.data[i]^b[i])&v.known[i] != 0 {
			return No
		}
		if v.known[i] != 0xff {
			m = Maybe
		}
	}
	return m
}
