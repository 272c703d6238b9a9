package layout

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A loadedKey is a part of a packet, loaded into registers to be looked up. Each
// field is loaded by an expression of its own, or nft cannot print the rule.
type loadedKey struct {
	exprs []expr.Any
	next  register // after the last field
}

// join returns the fields of several keys, one after another.
func join(keys ...loadedKey) (k loadedKey) {
	for _, part := range keys {
		k.exprs, k.next = append(k.exprs, part.exprs...), part.next
	}
	return k
}

func (d *Dialect) source(at register) loadedKey { return d.address(d.saddr, at) }

func (d *Dialect) destination(at register) loadedKey { return d.address(d.daddr, at) }

func (d *Dialect) address(offset uint32, at register) loadedKey {
	load := &expr.Payload{
		DestRegister: at.number(), Base: expr.PayloadBaseNetworkHeader,
		Offset: offset, Len: uint32(d.Fam.Bits() / 8),
	}
	return loadedKey{[]expr.Any{load}, at + d.addrRegisters()}
}

// network loads the first address of the prefix of a length in which the source is.
func (d *Dialect) network(bits int, at register) loadedKey {
	k := d.source(at)
	if bits < d.Fam.Bits() {
		mask := net.CIDRMask(bits, d.Fam.Bits())
		k.exprs = append(k.exprs, &expr.Bitwise{
			SourceRegister: at.number(), DestRegister: at.number(), Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask)),
		})
	}
	return k
}

func loadMeta(key expr.MetaKey, at register) loadedKey {
	return loadedKey{[]expr.Any{&expr.Meta{Key: key, Register: at.number()}}, at + 1}
}

func loadProtocol(at register) loadedKey { return loadMeta(expr.MetaKeyL4PROTO, at) }

func loadMark(at register) loadedKey { return loadMeta(expr.MetaKeyMARK, at) }

// Offsets of ports, the same of TCP, UDP and SCTP.
const (
	sourcePort      = 0
	destinationPort = 2
)

func loadPort(offset uint32, at register) loadedKey {
	load := &expr.Payload{DestRegister: at.number(), Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
	return loadedKey{[]expr.Any{load}, at + 1}
}

func numgen(below uint32, at register) loadedKey {
	return loadedKey{[]expr.Any{&expr.Numgen{Register: at.number(), Modulus: below, Type: unix.NFT_NG_RANDOM}}, at + 1}
}

// frontend loads what a packet is addressed to, as the sets of a class have it, from register 0 on.
func (d *Dialect) frontend(class lookupClass) loadedKey {
	if class.isNodePort() {
		return join(loadProtocol(0), loadPort(destinationPort, 1))
	}
	addr := d.destination(0)
	return join(addr, loadProtocol(addr.next), loadPort(destinationPort, addr.next+1))
}

// inSet matches packets whose key, loaded at register 0, is in a set; notInSet the others.
func inSet(k loadedKey, s Set) []expr.Any { return lookup(k, s, false) }

func notInSet(k loadedKey, s Set) []expr.Any { return lookup(k, s, true) }

func lookup(k loadedKey, s Set, invert bool) []expr.Any {
	load := &expr.Lookup{SourceRegister: register(0).number(), SetName: s.Name(), Invert: invert}
	return append(slices.Clip(k.exprs), load)
}

// mapLookup looks up a key that begins at register from, and loads the data.
func mapLookup(k loadedKey, from register, s Set, to register) []expr.Any {
	load := &expr.Lookup{
		SourceRegister: from.number(), SetName: s.Name(),
		DestRegister: to.number(), IsDestRegSet: true,
	}
	return append(slices.Clip(k.exprs), load)
}

// dnat sends packets to the address in register at, and the port after it.
func (d *Dialect) dnat(at register) []expr.Any {
	addr, port := at.number(), (at + d.addrRegisters()).number()
	return []expr.Any{&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(d.Family),
		RegAddrMin: addr, RegAddrMax: addr, RegProtoMin: port, RegProtoMax: port,
	}}
}

func verdict(kind expr.VerdictKind, target string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: target}}
}

func jump(target string) []expr.Any { return verdict(expr.VerdictJump, target) }

func goTo(target string) []expr.Any { return verdict(expr.VerdictGoto, target) }

var (
	returnVerdict = verdict(expr.VerdictReturn, "")
	acceptVerdict = verdict(expr.VerdictAccept, "")
	dropVerdict   = verdict(expr.VerdictDrop, "")

	// masqueraded takes ports at random: a port that was free when it was chosen
	// may be taken by the time a packet leaves.
	masqueraded = []expr.Any{&expr.Masq{FullyRandom: true, ToPorts: false}}

	isNew   = flag(expr.CtKeySTATE, expr.CtStateBitNEW)
	hasDNAT = flag(expr.CtKeySTATUS, 1<<5) // IPS_DST_NAT, <linux/netfilter/nf_conntrack_common.h>
	isStray = flag(expr.CtKeySTATE, expr.CtStateBitINVALID|expr.CtStateBitUNTRACKED)
	noDNAT  = compareFlag(expr.CtKeySTATUS, 1<<5, expr.CmpOpEq)

	// unconfirmed matches the first packet of a connection, but no retransmission of it.
	unconfirmed = compareFlag(expr.CtKeySTATUS, 1<<3, expr.CmpOpEq) // IPS_CONFIRMED

	tcpOnly  = []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equals([]byte{unix.IPPROTO_TCP})}
	tcpReset = []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}

	// fromHost matches what has an address of this host as source: its own packets.
	fromHost = []expr.Any{
		&expr.Fib{Register: 1, FlagSADDR: true, ResultADDRTYPE: true}, equals(hostEndian(unix.RTN_LOCAL)),
	}
)

func hostEndian(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func equals(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func flag(k expr.CtKey, bit uint32) []expr.Any { return compareFlag(k, bit, expr.CmpOpNeq) }

func compareFlag(k expr.CtKey, bit uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: k, Register: 1},
		bitwise(hostEndian(bit), hostEndian(0)),
		&expr.Cmp{Op: op, Register: 1, Data: hostEndian(0)},
	}
}

func bitwise(mask, xor []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: xor}
}

func (d *Dialect) unreachable() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: d.portUnreachable}}
}

// setMark sets our bit of the mark, clearMark clears it, unmarked matches
// packets without it.
func setMark(bit uint32) []expr.Any { return changeMark(hostEndian(^bit), hostEndian(bit)) }

func clearMark(bit uint32) []expr.Any { return changeMark(hostEndian(^bit), hostEndian(0)) }

func changeMark(mask, xor []byte) []expr.Any {
	return append(loadMark(0).exprs, bitwise(mask, xor), storeMark(0))
}

func storeMark(from register) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: from.number()}
}

func unmarked(bit uint32) []expr.Any {
	return append(loadMark(0).exprs, bitwise(hostEndian(bit), hostEndian(0)), equals(hostEndian(0)))
}

// matchPrefix matches a loaded address; a prefix of all addresses needs no match.
func (d *Dialect) matchPrefix(side loadedKey, p netip.Prefix) []expr.Any {
	match := side.exprs
	switch p.Bits() {
	case 0:
		return nil
	case d.Fam.Bits():
	default:
		mask := net.CIDRMask(p.Bits(), d.Fam.Bits())
		match = append(match, bitwise(mask, make([]byte, len(mask))))
	}
	return append(match, equals(p.Masked().Addr().AsSlice()))
}

// fromInterface matches an input interface, by name, or by a prefix that ends in *;
// "*", which is all of them, needs no match.
func fromInterface(name string) []expr.Any {
	if name == "*" {
		return nil
	}
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	if stem, isPrefix := strings.CutSuffix(name, "*"); isPrefix {
		data = []byte(stem)
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, equals(data)}
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

// FlowtableName is the name of our flow table.
const FlowtableName = "forwarded"

// assured matches connections that were answered and go on: IPS_ASSURED, <linux/netfilter/nf_conntrack_common.h>.
var assured = flag(expr.CtKeySTATUS, 1<<2)

func flowAdd(f *nft.Flowtable) []expr.Any { return []expr.Any{nft.FlowOffload(f.Name)} }

// connectionTo loads what the first packet of a connection was addressed to, as the sets of a
// class have it.
func (d *Dialect) connectionTo(class lookupClass) loadedKey {
	key := loadProtocol(0)
	if !class.isNodePort() {
		addr := d.originalDst(0)
		key = join(addr, loadProtocol(addr.next))
	}
	return join(key, loadedKey{[]expr.Any{nft.CtOriginal(key.next.number(), unix.NFT_CT_PROTO_DST)}, key.next + 1})
}

func (d *Dialect) originalDst(at register) loadedKey {
	key := uint32(unix.NFT_CT_DST_IP)
	if d.Fam == policy.IPv6 {
		key = unix.NFT_CT_DST_IP6
	}
	return loadedKey{[]expr.Any{nft.CtOriginal(at.number(), key)}, at + d.addrRegisters()}
}
