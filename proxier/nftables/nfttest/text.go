// Package nfttest prints what package layout renders in the words of nft, for tests.
package nfttest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Text returns what our table holds of a State, a line for each element and rule,
// as nft would take and print it. Chains and sets are in order of their names.
func Text(st *policy.State) []string {
	c := layout.Render(st)
	table := c.Keyword + " " + layout.TableName
	var lines []string
	for s, rec := range c.Sets {
		for e := range rec.All() {
			lines = append(lines, fmt.Sprintf("add element %s %s { %s }", table, s.Name(), layout.ElementText(s, c.Fam, e)))
		}
	}
	slices.Sort(lines)
	slices.SortStableFunc(c.Chains, func(a, b *layout.Chain) int { return strings.Compare(a.Name, b.Name) })
	sets := c.Listing().Sets
	for _, ch := range c.Chains {
		for _, r := range ch.Rules {
			p := printer{Dialect: c.Dialect, sets: sets, loaded: map[uint32]value{}}
			lines = append(lines, fmt.Sprintf("add rule %s %s %s", table, ch.Name, p.rule(r)))
		}
	}
	return lines
}

// A value is what a register, or several, were loaded with.
type value struct {
	text      string
	bytes     uint32
	mask, xor []byte
}

// A printer prints one rule.
type printer struct {
	*layout.Dialect
	sets   map[string]*nft.Set
	loaded map[uint32]value // by the first of their registers, which are counted from 0 to 15
	words  []string
	tcp    bool // it is known that the packet is of TCP
}

func (p *printer) rule(r nft.Rule) string {
	for _, e := range expressions(r.Exprs) {
		p.expression(e)
	}
	if r.Comment != "" {
		p.say("comment %q", r.Comment)
	}
	return strings.Join(p.words, " ")
}

func (p *printer) say(format string, args ...any) {
	p.words = append(p.words, fmt.Sprintf(format, args...))
}

// known makes the expressions of our rules, by name.
var known = map[string]func() expr.Any{
	"bitwise": func() expr.Any { return &expr.Bitwise{} }, "cmp": func() expr.Any { return &expr.Cmp{} },
	"ct": func() expr.Any { return &expr.Ct{} }, "dynset": func() expr.Any { return &expr.Dynset{} },
	"fib": func() expr.Any { return &expr.Fib{} }, "hash": func() expr.Any { return &expr.Hash{} },
	"immediate": func() expr.Any { return &expr.Verdict{} }, "lookup": func() expr.Any { return &expr.Lookup{} },
	"masq": func() expr.Any { return &expr.Masq{} }, "meta": func() expr.Any { return &expr.Meta{} },
	"nat": func() expr.Any { return &expr.NAT{} }, "numgen": func() expr.Any { return &expr.Numgen{} },
	"payload": func() expr.Any { return &expr.Payload{} }, "reject": func() expr.Any { return &expr.Reject{} },
}

// expressions decodes a rule. It panics where it does not know what there is.
func expressions(attrs []byte) (list []expr.Any) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	all, err := netlink.UnmarshalAttributes(attrs)
	must(err)
	for _, a := range all {
		parts, err := netlink.UnmarshalAttributes(a.Data)
		must(err)
		e := known[strings.TrimRight(string(parts[0].Data), "\x00")]()
		must(expr.Unmarshal(unix.NFPROTO_UNSPEC, parts[1].Data, e))
		list = append(list, e)
	}
	return list
}

// register returns the number of a register: every fourth had 16 bytes once, and has another number.
func register(n uint32) uint32 {
	if n < 8 {
		return (n - unix.NFT_REG_1) * 4
	}
	return n - 8
}

func (p *printer) load(at uint32, bytes uint32, format string, args ...any) {
	p.loaded[register(at)] = value{text: fmt.Sprintf(format, args...), bytes: bytes}
}

// key returns the fields that begin at a register and have so many bytes.
func (p *printer) key(at, bytes uint32) string {
	var fields []string
	for n := register(at); bytes > 0; {
		v := p.loaded[n]
		if v.bytes == 0 {
			panic(fmt.Sprintf("register %d is not loaded", n))
		}
		text := v.text
		if mask, ok := netip.AddrFromSlice(v.mask); ok {
			text += " & " + mask.String()
		}
		size := (v.bytes + 3) &^ 3
		fields, n, bytes = append(fields, text), n+size/4, bytes-min(bytes, size)
	}
	return strings.Join(fields, " . ")
}

func (p *printer) expression(e expr.Any) {
	switch e := e.(type) {
	case *expr.Payload:
		p.load(e.DestRegister, e.Len, "%s", p.payload(e))
	case *expr.Meta:
		if e.SourceRegister {
			p.say("meta mark set %s", p.operated(e.Register))
			return
		}
		p.load(e.Register, 4, "%s", map[expr.MetaKey]string{
			expr.MetaKeyMARK: "meta mark", expr.MetaKeyL4PROTO: "meta l4proto", expr.MetaKeyIIFNAME: "iifname",
		}[e.Key])
	case *expr.Ct:
		p.load(e.Register, 4, "%s", map[expr.CtKey]string{expr.CtKeySTATE: "ct state", expr.CtKeySTATUS: "ct status"}[e.Key])
	case *expr.Fib:
		p.load(e.Register, 4, "fib saddr type")
	case *expr.Numgen:
		p.load(e.Register, 4, "numgen random mod %d", e.Modulus)
	case *expr.Hash:
		p.load(e.DestRegister, 4, "jhash %s mod %d seed 0x%x", p.key(e.SourceRegister, e.Length), e.Modulus, e.Seed)
	case *expr.Bitwise:
		v := p.loaded[register(e.SourceRegister)]
		v.mask, v.xor = e.Mask, e.Xor
		p.loaded[register(e.DestRegister)] = v
	case *expr.Lookup:
		p.lookup(e)
	case *expr.Cmp:
		p.compare(p.loaded[register(e.Register)], e)
	default:
		p.statement(e)
	}
}

func (p *printer) payload(e *expr.Payload) string {
	if e.Base == expr.PayloadBaseNetworkHeader {
		side := map[uint32]string{12: "saddr", 16: "daddr"}
		if p.Fam == policy.IPv6 {
			side = map[uint32]string{8: "saddr", 24: "daddr"}
		}
		return p.Keyword + " " + side[e.Offset]
	}
	protocol := "th"
	if p.tcp {
		protocol = "tcp"
	}
	return protocol + " " + map[uint32]string{0: "sport", 2: "dport", 13: "flags"}[e.Offset]
}

// operated returns what a register has, with what was done to it.
func (p *printer) operated(at uint32) string {
	v := p.loaded[register(at)]
	switch {
	case v.mask == nil:
		return v.text
	case number(v.xor) == 0:
		return fmt.Sprintf("%s & 0x%08x", v.text, number(v.mask))
	}
	return fmt.Sprintf("%s | 0x%08x", v.text, number(v.xor))
}

func number(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

func (p *printer) lookup(e *expr.Lookup) {
	set := p.sets[e.SetName]
	key := p.key(e.SourceRegister, set.Key.Len)
	switch {
	case e.IsDestRegSet:
		p.load(e.DestRegister, set.Data.Len, "%s map @%s", key, e.SetName)
	case e.Invert:
		p.say("%s != @%s", key, e.SetName)
	default:
		p.say("%s @%s", key, e.SetName)
	}
}

var flags = map[string][]string{
	"ct state":  {"invalid", "established", "related", "new", "", "", "untracked"},
	"ct status": {"expected", "seen-reply", "assured", "confirmed", "snat", "dnat"},
	"tcp flags": {"fin", "syn", "rst", "psh", "ack", "urg"},
}

// flagNames returns the names of the bits that are set, in their order.
func flagNames(of string, bits uint32) string {
	var names []string
	for i, name := range flags[of] {
		if bits&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

func (p *printer) compare(v value, e *expr.Cmp) {
	switch v.text {
	case "meta l4proto": // nft prints no match that a later one implies
		p.tcp = true
	case "iifname":
		name := strings.TrimRight(string(e.Data), "\x00")
		if len(e.Data) < unix.IFNAMSIZ {
			name += "*"
		}
		p.say("iifname %q", name)
	case "fib saddr type":
		p.say("fib saddr type local")
	case "meta mark":
		p.say("meta mark & 0x%08x == 0x%08x", number(v.mask), number(e.Data))
	case "ct state", "ct status":
		p.say("%s%s %s", v.text, map[expr.CmpOp]string{expr.CmpOpEq: " !"}[e.Op], flagNames(v.text, number(v.mask)))
	case "tcp flags":
		mask := flagNames(v.text, uint32(v.mask[0]))
		if e.Data[0] == 0 {
			p.say("tcp flags ! %s", mask)
		} else {
			p.say("tcp flags %s / %s", flagNames(v.text, uint32(e.Data[0])), mask)
		}
	default:
		p.say("%s %s", v.text, prefix(e.Data, v.mask))
	}
}

// prefix returns an address, or those of a prefix with such a mask.
func prefix(addr, mask []byte) string {
	a, _ := netip.AddrFromSlice(addr)
	if mask == nil {
		return a.String()
	}
	bits := 0
	for _, b := range mask {
		for ; b != 0; b <<= 1 {
			bits++
		}
	}
	return netip.PrefixFrom(a, bits).String()
}

func (p *printer) statement(e expr.Any) {
	switch e := e.(type) {
	case *expr.Verdict:
		word := map[expr.VerdictKind]string{
			expr.VerdictAccept: "accept", expr.VerdictDrop: "drop", expr.VerdictReturn: "return", expr.VerdictJump: "jump", expr.VerdictGoto: "goto",
		}[e.Kind]
		p.say("%s", strings.TrimSuffix(word+" "+e.Chain, " "))
	case *expr.NAT:
		p.say("dnat %s to %s", p.Keyword, p.loaded[register(e.RegAddrMin)].text)
	case *expr.Masq:
		p.say("masquerade fully-random")
	case *expr.Reject:
		if e.Type == unix.NFT_REJECT_TCP_RST {
			p.say("reject with tcp reset")
		} else {
			p.say("reject") // port-unreachable is nft's default, which it does not print
		}
	case *expr.Dynset:
		p.dynset(e)
	}
}

func (p *printer) dynset(e *expr.Dynset) {
	set := p.sets[e.SetName]
	words := map[uint32]string{unix.NFT_DYNSET_OP_ADD: "add", unix.NFT_DYNSET_OP_UPDATE: "update", 2: "delete"}[e.Operation]
	words += " @" + e.SetName + " { " + p.key(e.SrcRegKey, set.Key.Len)
	if e.Timeout > 0 {
		words += " timeout " + duration(e.Timeout)
	}
	for _, x := range e.Exprs {
		l := x.(*expr.Limit)
		words += fmt.Sprintf(" limit rate %d/hour burst %d packets", l.Rate, l.Burst)
	}
	if e.SrcRegData != 0 {
		words += " : " + p.key(e.SrcRegData, set.Data.Len)
	}
	p.say("%s }", words)
}

// duration writes a duration as nft does, as in 1d2h3m4s.
func duration(d time.Duration) string {
	text := ""
	for _, unit := range []struct {
		length time.Duration
		letter string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if n := d / unit.length; n > 0 {
			text += fmt.Sprintf("%d%s", n, unit.letter)
			d -= n * unit.length
		}
	}
	return text
}
