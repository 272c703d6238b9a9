package ruleset

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// maxText is how long the text of a rule may be, in bytes.
const maxText = 240

// String returns the rule much as nft prints it. It is for people: what has no simple
// words is named by its expression.
func (r *nftRule) String() string {
	t := text{loaded: map[uint32]operand{}, v6: r.v6}
	for _, e := range r.exprs {
		t.add(e)
	}
	return clip(shorter.Replace(strings.Join(t.words, " ")))
}

// shorter leaves out what nft does not print of what it adds to a rule.
var shorter = strings.NewReplacer(
	"meta nfproto ipv4 ip ", "ip ", "meta nfproto ipv6 ip6 ", "ip6 ",
	"meta l4proto tcp th ", "tcp ", "meta l4proto udp th ", "udp ", "meta l4proto sctp th ", "sctp ",
)

func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "..."
	}
	return s
}

// An operand is what was loaded into a register.
type operand struct {
	name string
	mask []byte
	show func([]byte) string
}

type text struct {
	words  []string
	loaded map[uint32]operand
	v6     bool
}

func (t *text) say(words ...string) { t.words = append(t.words, words...) }

func (t *text) add(e expr.Any) {
	switch e := e.(type) {
	case *expr.Payload:
		if e.OperationType == expr.PayloadWrite {
			t.say(payloadOperand(e, t.v6).text(), "set", t.loaded[e.SourceRegister].text())
			return
		}
		t.loaded[e.DestRegister] = payloadOperand(e, t.v6)
	case *expr.Meta:
		if e.SourceRegister {
			t.say("meta", metaNames[e.Key], "set", t.loaded[e.Register].text())
			return
		}
		t.loaded[e.Register] = metaOperand(e.Key)
	case *expr.Ct:
		if !e.SourceRegister {
			t.loaded[e.Register] = ctOperand(e.Key)
		}
	case *expr.Fib:
		t.loaded[e.Register] = operand{name: fibName(e), show: showAddrType}
	case *expr.Bitwise:
		o := t.loaded[e.SourceRegister]
		o.mask = e.Mask
		t.loaded[e.DestRegister] = o
	case *expr.Byteorder:
		t.loaded[e.DestRegister] = t.loaded[e.SourceRegister]
	case *expr.Immediate:
		t.loaded[e.Register] = operand{name: immediate(e.Data)}
	case *expr.Cmp:
		t.say(t.loaded[e.Register].compare(e.Op, e.Data))
	case *expr.Range:
		o := t.loaded[e.Register]
		t.say(o.name, not(e.Op == expr.CmpOpNeq)+o.value(e.FromData)+"-"+o.value(e.ToData))
	case *expr.Lookup:
		t.say(t.loaded[e.SourceRegister].text(), not(e.Invert)+"@"+quoted(e.SetName))
	default:
		t.statement(e)
	}
}

func (t *text) statement(e expr.Any) {
	switch e := e.(type) {
	case *expr.Verdict:
		t.say(verdictText(e))
	case *expr.NAT:
		t.say(map[expr.NATType]string{expr.NATTypeDestNAT: "dnat to", expr.NATTypeSourceNAT: "snat to"}[e.Type], t.natTarget(e))
	case *expr.Match:
		t.say("xt match " + quoted(e.Name))
	case *expr.Target:
		t.say("xt target " + quoted(e.Name))
	case *expr.Counter:
	case opaque:
		t.say(quoted(e.name))
		clear(t.loaded)
	default:
		name, _, _ := strings.Cut(strings.TrimPrefix(fmt.Sprintf("%T", e), "*expr."), "{")
		t.say(strings.ToLower(name))
	}
}

func (t *text) natTarget(e *expr.NAT) string {
	to := t.loaded[e.RegAddrMin].text()
	if e.RegProtoMin != 0 {
		to += " port " + t.loaded[e.RegProtoMin].text()
	}
	return to
}

func verdictText(e *expr.Verdict) string {
	word := cmp.Or(verdicts[e.Kind].word, "continue")
	if verdictOf(e).leads() {
		word += " " + quoted(e.Chain)
	}
	return word
}

func not(negated bool) string {
	if negated {
		return "!= "
	}
	return ""
}

// quoted makes a name of another program safe to print.
func quoted(name string) string {
	q := strconv.Quote(name)
	return q[1 : len(q)-1]
}

func (o operand) text() string { return cmp.Or(o.name, "?") }

func (o operand) value(b []byte) string {
	if o.show == nil || len(b) == 0 {
		return fmt.Sprintf("0x%x", b)
	}
	return o.show(b)
}

var operators = map[expr.CmpOp]string{expr.CmpOpNeq: "!= ", expr.CmpOpLt: "< ", expr.CmpOpLte: "<= ", expr.CmpOpGt: "> ", expr.CmpOpGte: ">= "}

// compare says what an operand is compared with. A comparison of some bits with 0 asks
// whether any of them is set.
func (o operand) compare(op expr.CmpOp, data []byte) string {
	if len(o.mask) == len(data) && len(data) > 0 {
		if bytes.Count(data, []byte{0}) == len(data) && strings.HasPrefix(o.name, "ct ") {
			if op == expr.CmpOpEq {
				return o.text() + " != " + o.value(o.mask)
			}
			return o.text() + " " + o.value(o.mask)
		}
		return o.text() + " " + operators[op] + o.value(data) + "/" + maskText(o.mask)
	}
	return o.text() + " " + operators[op] + o.value(data)
}

func maskText(mask []byte) string {
	ones := 0
	for _, b := range mask {
		for ; b&0x80 != 0; b <<= 1 {
			ones++
		}
		if b != 0 {
			return fmt.Sprintf("0x%x", mask)
		}
	}
	return strconv.Itoa(ones)
}

func payloadOperand(e *expr.Payload, v6 bool) operand {
	if e.Base == expr.PayloadBaseTransportHeader {
		switch e.Offset {
		case 0:
			return operand{name: "th sport", show: showPort}
		case 2:
			return operand{name: "th dport", show: showPort}
		}
	}
	family, src, dst := "ip", uint32(12), uint32(16)
	if v6 {
		family, src, dst = "ip6", 8, 24
	}
	switch e.Offset {
	case src:
		return operand{name: family + " saddr", show: showAddr(v6)}
	case dst:
		return operand{name: family + " daddr", show: showAddr(v6)}
	}
	return operand{name: fmt.Sprintf("@%d,%d,%d", e.Base, e.Offset*8, e.Len*8)}
}

func showPort(b []byte) string {
	if len(b) < 2 {
		return "?"
	}
	return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
}

// showAddr prints an address, or the beginning of one as a prefix.
func showAddr(v6 bool) func([]byte) string {
	size := 4
	if v6 {
		size = 16
	}
	return func(b []byte) string {
		full := make([]byte, size)
		copy(full, b)
		a, _ := netip.AddrFromSlice(full)
		if len(b) < size {
			return a.String() + "/" + strconv.Itoa(len(b)*8)
		}
		return a.String()
	}
}

var metaNames = map[expr.MetaKey]string{
	expr.MetaKeyMARK: "mark", expr.MetaKeyIIFNAME: "iifname", expr.MetaKeyOIFNAME: "oifname", expr.MetaKeyIIF: "iif",
	expr.MetaKeyOIF: "oif", expr.MetaKeyL4PROTO: "l4proto", expr.MetaKeyNFPROTO: "nfproto", expr.MetaKeyPROTOCOL: "protocol",
}

func metaOperand(key expr.MetaKey) operand {
	o := operand{name: "meta " + metaNames[key], show: showNumber}
	switch key {
	case expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME:
		o.show = func(b []byte) string { return strconv.Quote(string(bytes.TrimRight(b, "\x00"))) }
	case expr.MetaKeyL4PROTO:
		o.show = func(b []byte) string { return protocolText(b[0]) }
	case expr.MetaKeyNFPROTO:
		o.show = func(b []byte) string {
			return map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}[b[0]]
		}
	}
	return o
}

func protocolText(n byte) string {
	if name := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp", unix.IPPROTO_ICMP: "icmp"}[n]; name != "" {
		return name
	}
	return strconv.Itoa(int(n))
}

func ctOperand(key expr.CtKey) operand {
	switch key {
	case expr.CtKeySTATE:
		return operand{name: "ct state", show: flagNames("invalid", "established", "related", "new", "", "", "untracked")}
	case expr.CtKeySTATUS:
		return operand{name: "ct status", show: flagNames("expected", "seen-reply", "assured", "confirmed", "snat", "dnat")}
	case expr.CtKeyMARK:
		return operand{name: "ct mark", show: showNumber}
	}
	return operand{name: "ct " + strconv.Itoa(int(key))}
}

func flagNames(names ...string) func([]byte) string {
	return func(b []byte) string {
		if len(b) != 4 {
			return fmt.Sprintf("0x%x", b)
		}
		var set []string
		for i, name := range names {
			if binary.NativeEndian.Uint32(b)&(1<<i) != 0 {
				set = append(set, name)
			}
		}
		return strings.Join(set, ",")
	}
}

func fibName(e *expr.Fib) string {
	if e.FlagSADDR {
		return "fib saddr type"
	}
	return "fib daddr type"
}

func showAddrType(b []byte) string {
	if len(b) == 4 && binary.NativeEndian.Uint32(b) == unix.RTN_LOCAL {
		return "local"
	}
	return showNumber(b)
}

func showNumber(b []byte) string {
	if len(b) == 4 {
		return fmt.Sprintf("0x%x", binary.NativeEndian.Uint32(b))
	}
	return fmt.Sprintf("0x%x", b)
}

// immediate prints what a rule has as a constant: an address, a port or a number.
func immediate(b []byte) string {
	switch len(b) {
	case 2:
		return showPort(b)
	case 4, 16:
		return addrText(b)
	}
	return fmt.Sprintf("0x%x", b)
}
