package ruleset

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// An nftRule is a rule of nf_tables.
type nftRule struct {
	v6    bool
	exprs []expr.Any
	sets  func(name string) *nftSet // nil: it could not be read
}

// registerBytes is how many bytes the registers of nf_tables have.
const registerBytes = 16 * 4 * 2

// A value is bytes, some of which may not be known.
type value struct{ data, known []byte }

func unknown(n int) value { return value{make([]byte, n), make([]byte, n)} }

func known(b []byte) value { return value{b, bytes.Repeat([]byte{0xff}, len(b))} }

// slice is part of v; what lies outside is not known.
func (v value) slice(from, n int) value {
	out := unknown(n)
	if from < len(v.data) {
		copy(out.data, v.data[from:])
		copy(out.known, v.known[from:])
	}
	return out
}

func (v value) complete() bool {
	return !slices.ContainsFunc(v.known, func(b byte) bool { return b != 0xff })
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

// A machine is the registers while a rule is evaluated.
type machine struct {
	value
	rule   *nftRule
	packet *Packet
	match  Match
	done   Verdict
}

// Eval implements Rule.
func (r *nftRule) Eval(p *Packet) (Match, Verdict) {
	m := machine{value: unknown(registerBytes), rule: r, packet: p, match: Yes}
	for _, e := range r.exprs {
		m.step(e)
		if m.match == No {
			return No, Verdict{Marks: m.done.Marks, Rewrites: m.done.Rewrites}
		}
	}
	return m.match, m.done
}

// offset returns where a register begins: the first four have 16 bytes, from 8 on 4.
func offset(reg uint32) int {
	switch {
	case reg >= unix.NFT_REG32_00 && reg < unix.NFT_REG32_00+16:
		return int(reg-unix.NFT_REG32_00) * 4
	case reg >= 1 && reg <= 4:
		return int(reg-1) * 16
	}
	return registerBytes - 64 // of nobody
}

func (m *machine) load(reg uint32, v value) {
	at := offset(reg)
	n := (len(v.data) + 3) &^ 3 // what is left of a register is 0
	clear(m.data[at:min(at+n, len(m.data))])
	for i := at; i < min(at+n, len(m.known)); i++ {
		m.known[i] = 0xff
	}
	copy(m.data[at:], v.data)
	copy(m.known[at:], v.known)
}

func (m *machine) read(reg uint32, n int) value { return m.slice(offset(reg), n) }

func (m *machine) require(ok Match) { m.match = m.match.and(ok) }

// step evaluates one expression. One that is not understood may match.
func (m *machine) step(e expr.Any) {
	switch e := e.(type) {
	case *expr.Payload:
		m.payload(e)
	case *expr.Meta:
		m.meta(e)
	case *expr.Ct:
		m.ct(e)
	case *expr.Fib:
		m.fib(e)
	case *expr.Bitwise:
		m.bitwise(e)
	case *expr.Byteorder:
		m.load(e.DestRegister, swapped(m.read(e.SourceRegister, int(e.Len)), int(e.Size)))
	case *expr.Cmp:
		m.cmp(e.Op, m.read(e.Register, len(e.Data)), e.Data)
	case *expr.Range:
		m.inRange(e)
	case *expr.Lookup:
		m.lookup(e)
	case *expr.Immediate:
		m.load(e.Register, known(e.Data))
	case *expr.Numgen:
		m.load(e.Register, unknown(4))
	case *expr.Hash:
		m.load(e.DestRegister, unknown(4))
	default:
		m.statement(e)
	}
}

// statement evaluates what does something, rather than load or compare.
func (m *machine) statement(e expr.Any) {
	switch e := e.(type) {
	case *expr.Verdict:
		m.decide(verdictOf(e))
	case *expr.Reject:
		m.decide(Verdict{Kind: Reject})
	case *expr.NAT:
		if e.Type == expr.NATTypeDestNAT {
			m.decide(Verdict{Kind: Translate, To: m.target(e)})
		}
	case *expr.Redir:
		m.decide(Verdict{Kind: Translate, To: "this host"})
	case *expr.TProxy:
		m.decide(Verdict{Kind: Translate, To: "a process of this host"})
	case *expr.Notrack:
		m.decide(Verdict{Kind: NoTrack})
	case *expr.Queue:
		m.decide(Verdict{Kind: Queue})
	case *expr.Objref:
		m.require(matchIf(e.Type == unix.NFT_OBJECT_COUNTER).or(Maybe)) // others may limit
	case *expr.Counter, *expr.Log, *expr.Masq, *expr.FlowOffload, *expr.Dup:
	case *expr.Match:
		m.require(matchIf(e.Name == "comment").or(Maybe)) // of iptables
	case *expr.Target:
		m.decide(Verdict{Kind: targets[e.Name]}) // of iptables
	case *expr.Limit, *expr.Quota, *expr.Connlimit:
		m.require(Maybe)
	default: // what it loads, and where to, is not known
		m.require(Maybe)
		m.value = unknown(registerBytes)
	}
}

// decide notes what the rule does. What it did before is not undone where it then lets the
// packet pass.
func (m *machine) decide(v Verdict) {
	v.Marks, v.Rewrites = m.done.Marks || v.Kind == SetMark, m.done.Rewrites
	if passes := v.Kind == Accept || v.Kind == Return || v.Kind == Continue || v.Kind == SetMark; passes && (m.done.Kind == Translate || m.done.Kind == NoTrack) {
		v.Kind, v.Chain, v.To = m.done.Kind, m.done.Chain, m.done.To
	}
	m.done = v
}

// verdicts are those of nf_tables, with their words; any other one is continue.
var verdicts = map[expr.VerdictKind]struct {
	kind Kind
	word string
}{
	expr.VerdictAccept: {Accept, "accept"},
	expr.VerdictDrop:   {Drop, "drop"},
	expr.VerdictReturn: {Return, "return"},
	expr.VerdictJump:   {Jump, "jump"},
	expr.VerdictGoto:   {GoTo, "goto"},
	expr.VerdictQueue:  {Queue, "queue"},
}

func verdictOf(e *expr.Verdict) Verdict {
	v := Verdict{Kind: verdicts[e.Kind].kind}
	if v.leads() {
		v.Chain = e.Chain
	}
	return v
}

func (m *machine) bitwise(e *expr.Bitwise) {
	v := m.read(e.SourceRegister, int(e.Len))
	out := unknown(int(e.Len))
	for i := range out.data {
		if i < len(e.Mask) && i < len(e.Xor) {
			out.data[i] = v.data[i]&e.Mask[i] ^ e.Xor[i]
			out.known[i] = v.known[i] | ^e.Mask[i]
		}
	}
	m.load(e.DestRegister, out)
}

func (m *machine) cmp(op expr.CmpOp, v value, data []byte) {
	switch op {
	case expr.CmpOpEq:
		m.require(v.equals(data))
		return
	case expr.CmpOpNeq:
		m.require(v.equals(data).not())
		return
	}
	if !v.complete() {
		m.require(Maybe)
		return
	}
	c := bytes.Compare(v.data, data)
	m.require(matchIf(op == expr.CmpOpLt && c < 0 || op == expr.CmpOpLte && c <= 0 || op == expr.CmpOpGt && c > 0 || op == expr.CmpOpGte && c >= 0))
}

func (m *machine) inRange(e *expr.Range) {
	v := m.read(e.Register, len(e.FromData))
	if !v.complete() {
		m.require(Maybe)
		return
	}
	in := matchIf(bytes.Compare(v.data, e.FromData) >= 0 && bytes.Compare(v.data, e.ToData) <= 0)
	if e.Op == expr.CmpOpNeq {
		in = in.not()
	}
	m.require(in)
}

// swapped returns v with the bytes of its numbers of some size from the order of this
// host to that of networks, or back.
func swapped(v value, size int) value {
	if size < 2 || binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		return v
	}
	for _, b := range [][]byte{v.data, v.known} {
		for at := 0; at+size <= len(b); at += size {
			slices.Reverse(b[at : at+size])
		}
	}
	return v
}

// lookup looks a key up in a set or a map.
func (m *machine) lookup(e *expr.Lookup) {
	set := m.rule.sets(e.SetName)
	if set == nil {
		m.require(Maybe)
		if e.IsDestRegSet {
			m.load(e.DestRegister, unknown(16))
		}
		return
	}
	found, element := set.find(m.read(e.SourceRegister, set.keyLen))
	if e.Invert {
		found = found.not()
	}
	m.require(found)
	if !e.IsDestRegSet || element == nil {
		return
	}
	if e.DestRegister == unix.NFT_REG_VERDICT {
		if found == Yes {
			m.decide(elementVerdict(element))
		} else {
			m.decide(oneOf(set.candidates(m.read(e.SourceRegister, set.keyLen))))
		}
		return
	}
	if found == Yes {
		m.load(e.DestRegister, known(element.Val))
	} else {
		m.load(e.DestRegister, unknown(len(element.Val)))
	}
}

// target says where a rule sends packets, as far as it is known.
func (m *machine) target(e *expr.NAT) string {
	size := 4
	if m.packet.Dst.Is6() {
		size = 16
	}
	to := "another address"
	if v := m.read(e.RegAddrMin, size); e.RegAddrMin != 0 && v.complete() {
		to = addrText(v.data)
	} else if e.RegAddrMin == 0 {
		to = m.packet.Dst.String()
	}
	if v := m.read(e.RegProtoMin, 2); e.RegProtoMin != 0 && v.complete() {
		to = net.JoinHostPort(to, showPort(v.data))
	}
	return to
}
