package layout

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A stmt is one statement or match of a rule: as nft prints it, and as the
// expressions that the kernel takes.
type stmt struct {
	text  string
	exprs []expr.Any
}

// A rule is a sequence of statements.
type rule struct {
	comment string
	stmts   []stmt
}

// String returns the rule as nft prints it.
func (r rule) String() string {
	var words []string
	for _, c := range r.stmts {
		if c.text != "" {
			words = append(words, c.text)
		}
	}
	if r.comment != "" {
		words = append(words, `comment "`+r.comment+`"`)
	}
	return strings.Join(words, " ")
}

func (r rule) marshal(family byte) (nft.Rule, error) {
	var exprs []expr.Any
	for _, c := range r.stmts {
		exprs = append(exprs, c.exprs...)
	}
	return nft.NewRule(family, r.comment, exprs...)
}

// A loadedKey is a part of a packet, loaded into registers to be looked up. Each
// field is loaded by an expression of its own, or nft cannot print the rule.
type loadedKey struct {
	stmt
	next register // after the last field
}

// join returns the fields of several keys, one after another.
func join(keys ...loadedKey) loadedKey {
	var words []string
	k := loadedKey{}
	for _, part := range keys {
		if part.text != "" {
			words = append(words, part.text)
		}
		k.exprs = append(k.exprs, part.exprs...)
		k.next = part.next
	}
	k.text = strings.Join(words, " . ")
	return k
}

func (d *Dialect) source(at register) loadedKey { return d.address("saddr", d.saddr, at) }

func (d *Dialect) destination(at register) loadedKey { return d.address("daddr", d.daddr, at) }

func (d *Dialect) address(side string, offset uint32, at register) loadedKey {
	load := &expr.Payload{
		DestRegister: at.number(), Base: expr.PayloadBaseNetworkHeader,
		Offset: offset, Len: uint32(d.Fam.Bits() / 8),
	}
	return loadedKey{stmt{d.Keyword + " " + side, []expr.Any{load}}, at + d.addrRegisters()}
}

func loadProtocol(at register) loadedKey {
	return loadedKey{stmt{"meta l4proto", []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: at.number()}}}, at + 1}
}

// loadPort loads a port, which TCP, UDP and SCTP have at the same offset. Words are those of nft.
func loadPort(words string, offset uint32, at register) loadedKey {
	load := &expr.Payload{DestRegister: at.number(), Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
	return loadedKey{stmt{words, []expr.Any{load}}, at + 1}
}

func loadMark(at register) loadedKey {
	return loadedKey{stmt{"meta mark", []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: at.number()}}}, at + 1}
}

func numgen(below uint32, at register) loadedKey {
	load := &expr.Numgen{Register: at.number(), Modulus: below, Type: unix.NFT_NG_RANDOM}
	return loadedKey{stmt{fmt.Sprintf("numgen random mod %d", below), []expr.Any{load}}, at + 1}
}

// frontend loads what a packet is addressed to, as the sets of a class have it, from register 0 on.
func (d *Dialect) frontend(class lookupClass) loadedKey {
	if class.isNodePort() {
		return join(loadProtocol(0), loadPort("th dport", 2, 1))
	}
	addr := d.destination(0)
	return join(addr, loadProtocol(addr.next), loadPort("th dport", 2, addr.next+1))
}

// inSet matches packets whose key, loaded at register 0, is in a set; notInSet the others.
func inSet(k loadedKey, s Set) stmt { return lookup(k, s, "@", false) }

func notInSet(k loadedKey, s Set) stmt { return lookup(k, s, "!= @", true) }

func lookup(k loadedKey, s Set, sign string, invert bool) stmt {
	load := &expr.Lookup{SourceRegister: register(0).number(), SetName: s.Name(), Invert: invert}
	return stmt{k.text + " " + sign + s.Name(), append(k.exprs[:len(k.exprs):len(k.exprs)], load)}
}

// mapLookup looks up a key that begins at register from, and loads the data.
func mapLookup(k loadedKey, from register, s Set, to register) stmt {
	load := &expr.Lookup{
		SourceRegister: from.number(), SetName: s.Name(),
		DestRegister: to.number(), IsDestRegSet: true,
	}
	return stmt{k.text + " map @" + s.Name(), append(k.exprs[:len(k.exprs):len(k.exprs)], load)}
}

// dnat sends packets to the address in register at, and the port after it.
func (d *Dialect) dnat(to stmt, at register) stmt {
	addr, port := at.number(), (at + d.addrRegisters()).number()
	nat := &expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(d.Family),
		RegAddrMin: addr, RegAddrMax: addr, RegProtoMin: port, RegProtoMax: port,
	}
	return stmt{"dnat " + d.Keyword + " to " + to.text, append(to.exprs, nat)}
}

func verdict(kind expr.VerdictKind, words, target string) stmt {
	if target != "" {
		words += " " + target
	}
	return stmt{words, []expr.Any{&expr.Verdict{Kind: kind, Chain: target}}}
}

func jump(target string) stmt { return verdict(expr.VerdictJump, "jump", target) }

func goTo(target string) stmt { return verdict(expr.VerdictGoto, "goto", target) }

var (
	returnVerdict = verdict(expr.VerdictReturn, "return", "")
	acceptVerdict = verdict(expr.VerdictAccept, "accept", "")
	dropVerdict   = verdict(expr.VerdictDrop, "drop", "")

	// masqueradeStmt takes ports at random: a port that was free when it was chosen
	// may be taken by the time a packet leaves.
	masqueradeStmt = stmt{"masquerade fully-random", []expr.Any{&expr.Masq{FullyRandom: true, ToPorts: false}}}

	isNew   = flag("ct state new", expr.CtKeySTATE, expr.CtStateBitNEW)
	hasDNAT = flag("ct status dnat", expr.CtKeySTATUS, 1<<5) // IPS_DST_NAT, <linux/netfilter/nf_conntrack_common.h>
	isStray = flag("ct state invalid,untracked", expr.CtKeySTATE, expr.CtStateBitINVALID|expr.CtStateBitUNTRACKED)
	noDNAT  = compareFlag("ct status ! dnat", expr.CtKeySTATUS, 1<<5, expr.CmpOpEq)

	// unconfirmed matches the first packet of a connection, but no retransmission of it.
	unconfirmed = compareFlag("ct status ! confirmed", expr.CtKeySTATUS, 1<<3, expr.CmpOpEq) // IPS_CONFIRMED

	// tcpOnly has no text: that of tcpReset implies it.
	tcpOnly  = stmt{"", []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equals([]byte{unix.IPPROTO_TCP})}}
	tcpReset = stmt{"reject with tcp reset", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}}

	// fromHost matches what has an address of this host as source: its own packets.
	fromHost = stmt{"fib saddr type local", []expr.Any{
		&expr.Fib{Register: 1, FlagSADDR: true, ResultADDRTYPE: true}, equals(hostEndian(unix.RTN_LOCAL)),
	}}
)

func hostEndian(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func equals(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func flag(words string, k expr.CtKey, bit uint32) stmt {
	return compareFlag(words, k, bit, expr.CmpOpNeq)
}

func compareFlag(words string, k expr.CtKey, bit uint32, op expr.CmpOp) stmt {
	return stmt{words, []expr.Any{
		&expr.Ct{Key: k, Register: 1},
		bitwise(hostEndian(bit), hostEndian(0)),
		&expr.Cmp{Op: op, Register: 1, Data: hostEndian(0)},
	}}
}

func bitwise(mask, xor []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: xor}
}

func (d *Dialect) unreachable() stmt {
	// port-unreachable is nft's default, which it does not print.
	return stmt{"reject", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: d.portUnreachable}}}
}

// setMark sets our bit of the mark, clearMark clears it, unmarked matches
// packets without it.
func setMark(bit uint32) stmt {
	return stmt{fmt.Sprintf("meta mark set meta mark | 0x%08x", bit), changeMark(hostEndian(^bit), hostEndian(bit))}
}

func clearMark(bit uint32) stmt {
	return stmt{fmt.Sprintf("meta mark set meta mark & 0x%08x", ^bit), changeMark(hostEndian(^bit), hostEndian(0))}
}

func changeMark(mask, xor []byte) []expr.Any {
	return append(loadMark(0).exprs, bitwise(mask, xor), storeMark(0))
}

func storeMark(from register) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: from.number()}
}

func unmarked(bit uint32) stmt {
	exprs := append(loadMark(0).exprs, bitwise(hostEndian(bit), hostEndian(0)), equals(hostEndian(0)))
	return stmt{fmt.Sprintf("meta mark & 0x%08x == 0x00000000", bit), exprs}
}

// fromPrefix and toPrefix match the source and the destination; a prefix of all
// addresses needs no match.
func (d *Dialect) fromPrefix(p netip.Prefix) stmt { return d.matchPrefix(d.source(0), p) }

func (d *Dialect) toPrefix(p netip.Prefix) stmt { return d.matchPrefix(d.destination(0), p) }

func (d *Dialect) matchPrefix(side loadedKey, p netip.Prefix) stmt {
	p = p.Masked()
	c, mask := side.stmt, net.CIDRMask(p.Bits(), d.Fam.Bits())
	switch p.Bits() {
	case 0:
		return stmt{}
	case d.Fam.Bits():
		c.text += " " + p.Addr().String()
	default:
		c.text += " " + p.String()
		c.exprs = append(c.exprs, bitwise(mask, make([]byte, len(mask))))
	}
	c.exprs = append(c.exprs, equals(p.Addr().AsSlice()))
	return c
}

// fromInterface matches an input interface, by name, or by a prefix that ends in *;
// "*", which is all of them, needs no match.
func fromInterface(name string) stmt {
	if name == "*" {
		return stmt{}
	}
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	if stem, isPrefix := strings.CutSuffix(name, "*"); isPrefix {
		data = []byte(stem)
	}
	load := &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}
	return stmt{`iifname "` + name + `"`, []expr.Any{load, equals(data)}}
}

// CheckHost refuses names of interfaces that no interface can have.
func CheckHost(h *policy.Host) error {
	for _, name := range h.LocalInterfaces {
		invalid := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"/\`, r) }
		if name == "" || len(name) >= unix.IFNAMSIZ || strings.ContainsFunc(name, invalid) {
			return fmt.Errorf("local interface %q: no interface can have such a name", name)
		}
	}
	return nil
}

// nftDuration writes a duration as nft does, as in 1d2h3m4s.
func nftDuration(d time.Duration) string {
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
