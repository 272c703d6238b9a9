package trace

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

const (
	tablePrefix  = "svcproxy-trace-" // a process id follows
	tableComment = "made by svcproxy trace, for as long as it runs"

	// perSecond bounds what the kernel does for a trace, whatever arrives.
	perSecond = 200

	// patience is how long a packet may be on its way through this host. All of it is
	// one step of the kernel, unless a program in between decides (NFQUEUE).
	patience = 500 * time.Millisecond

	// followed is how long the kernel remembers a packet that was chosen, so that it
	// logs it again where it leaves; at most maxFollowed of them.
	followed    = 2 * time.Second
	maxFollowed = 4096
)

// Priorities of our hooks: after connection tracking (-200) and before translation,
// before all else of a hook, and after all that filters and translates.
const (
	afterTracking = -199
	first         = -400
	last          = 300
)

// Sets and chains of the table.
const (
	chosenSet, addressSet, nodePortSet = "chosen", "addresses", "node-ports"

	selectChain = "select"
)

// Where a packet was logged.
const (
	seenNew         = "new"
	seenUntracked   = "untracked"
	seenRouted      = "routed"
	seenOut         = "out"
	seenHost        = "host"
	seenReset       = "reset"
	seenUnreachable = "unreachable"
)

// A dialect is what differs between the families.
type dialect struct {
	policy.Family
	number       byte   // in netlink
	saddr, daddr uint32 // offsets in the header
	addr         nft.Type

	ctSource, ctDestination uint32 // of the original direction

	icmp        uint8 // the protocol of errors
	unreachable byte  // their type

	// Offsets in an ICMP error, of the packet that it is about.
	inSource, inDestination, inProtocol, inTransport uint32
}

var dialects = map[policy.Family]dialect{
	policy.IPv4: {policy.IPv4, unix.NFPROTO_IPV4, 12, 16, nft.IPv4Addr, unix.NFT_CT_SRC_IP, unix.NFT_CT_DST_IP, unix.IPPROTO_ICMP, 3, 8 + 12, 8 + 16, 8 + 9, 8 + 20},
	policy.IPv6: {policy.IPv6, unix.NFPROTO_IPV6, 8, 24, nft.IPv6Addr, unix.NFT_CT_SRC_IP6, unix.NFT_CT_DST_IP6, unix.IPPROTO_ICMPV6, 1, 8 + 8, 8 + 24, 8 + 6, 8 + 40},
}

// A rules writes the table of one family.
type rules struct {
	dialect
	table  nft.Table
	group  uint16
	chains bool // packets that are chosen show their way through chains
	batch  *nft.Batch
	err    error
}

// register returns the number of the register of n times 4 bytes: every fourth has one of its own.
func register(n uint32) uint32 {
	if n%4 == 0 {
		return unix.NFT_REG_1 + n/4
	}
	return 8 + n // NFT_REG32_00
}

// Registers that no key reaches: the number of a packet, and its mark.
const (
	numberAt = 12
	markAt   = 13
)

// fill writes the table for a filter; owned: it goes with the socket.
func (r *rules) fill(f Filter, n *Names, owned bool) {
	r.batch.AddNewTable(tableComment, owned)
	r.batch.AddSet(&nft.Set{
		Name: chosenSet, Key: nft.Concat(r.addr, r.addr, nft.InetProto, nft.InetService, nft.InetService),
		Data: nft.Mark, Dynamic: true, Timeouts: true, Size: maxFollowed,
	})
	if !f.Destination.IsValid() {
		r.batch.AddSet(&nft.Set{Name: addressSet, Key: r.addr})
		r.batch.AddSet(&nft.Set{Name: nodePortSet, Key: nft.Concat(r.addr, nft.InetProto, nft.InetService)})
		r.addAddresses(n)
	}
	r.batch.AddChain(&nft.Chain{Name: selectChain})
	r.choose()
	r.enter(f, n)
	r.leave()
}

// addAddresses adds what is a service's now to the sets.
func (r *rules) addAddresses(n *Names) {
	for _, f := range n.Frontends {
		a := f.Addr.Addr()
		if policy.FamilyOf(a) != r.Family {
			continue
		}
		if !a.IsUnspecified() {
			r.batch.AddElement(addressSet, nft.Element{Key: a.AsSlice()})
			continue
		}
		at := n.NodePortAddrs
		if f.Placed {
			at = f.At
		}
		for _, host := range at {
			if policy.FamilyOf(host) == r.Family {
				key := append(host.AsSlice(), byte(f.Protocol), 0, 0, 0)
				r.batch.AddElement(nodePortSet, nft.Element{Key: append(binary.BigEndian.AppendUint16(key, f.Addr.Port()), 0, 0)})
			}
		}
	}
}

func (r *rules) base(name string, hook uint32, priority int32) {
	r.batch.AddChain(&nft.Chain{Name: name, Hook: &nft.Hook{Type: "filter", Number: hook, Priority: priority, Policy: nft.Accept}})
}

// rule adds a rule of lists of expressions.
func (r *rules) rule(chain string, parts ...[]expr.Any) {
	var rule nft.Rule
	for _, e := range slices.Concat(parts...) {
		one, err := nft.NewRule(r.number, "", e)
		rule.Exprs, r.err = append(rule.Exprs, one.Exprs...), cmp.Or(r.err, err)
	}
	r.batch.AddRule(chain, rule)
}

// choose writes the chain that chooses packets, as many as may be. The first of its
// counters has all, the second those that were chosen.
func (r *rules) choose() {
	show := []expr.Any{}
	if r.chains {
		show = []expr.Any{
			&expr.Immediate{Register: register(markAt), Data: []byte{1}},
			&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: register(markAt)},
		}
	}
	number := []expr.Any{&expr.Numgen{Register: register(numberAt), Type: unix.NFT_NG_INCREMENTAL, Modulus: 1<<32 - 1, Offset: 1}}
	r.rule(selectChain, counter, limit, counter, r.connection(), number, r.store(unix.NFT_DYNSET_OP_ADD, numberAt, followed),
		show, r.isChosen(), r.log(seenNew))
}

var (
	counter = []expr.Any{&expr.Counter{}}
	limit   = []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: perSecond, Unit: expr.LimitTimeSecond, Burst: perSecond}}
)

// enter writes the chains where packets enter the host, or are sent by it.
func (r *rules) enter(f Filter, n *Names) {
	r.base("prerouting", unix.NF_INET_PRE_ROUTING, afterTracking)
	r.base("output", unix.NF_INET_LOCAL_OUT, afterTracking)
	for _, m := range r.matches(f, n) {
		for _, chain := range []string{"prerouting", "output"} {
			r.rule(chain, state(expr.CtStateBitNEW), m, []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: selectChain}})
			r.rule(chain, state(expr.CtStateBitUNTRACKED), m, limit, []expr.Any{r.statement(seenUntracked)})
		}
	}
	// Answers of this host itself. A reset has the connection of what it answers.
	r.rule("output", state(expr.CtStateBitRELATED), r.connection(), r.forget(), r.log(seenReset))
	isError := append(is(protocol, byte(r.icmp)), is(load(expr.PayloadBaseTransportHeader, 0, 1), r.unreachable)...)
	r.rule("output", isError, r.inner(r.inTransport, r.inTransport+2), r.forget(), r.log(seenUnreachable))
	r.rule("output", isError, is(load(expr.PayloadBaseTransportHeader, r.inProtocol, 1), r.icmp),
		r.inner(r.inTransport+4, r.inTransport), r.forget(), r.log(seenUnreachable))
}

// leave writes the chains behind the routing decision, and where packets leave the rules.
func (r *rules) leave() {
	r.base("forward", unix.NF_INET_FORWARD, first)
	r.base("input", unix.NF_INET_LOCAL_IN, first)
	r.base("to-host", unix.NF_INET_LOCAL_IN, last)
	r.base("postrouting", unix.NF_INET_POST_ROUTING, last)
	for _, chain := range []string{"forward", "input"} {
		r.rule(chain, state(expr.CtStateBitNEW), r.connection(), r.isChosen(), limit, r.log(seenRouted))
	}
	r.rule("to-host", state(expr.CtStateBitNEW), r.connection(), r.forget(), r.log(seenHost))
	r.rule("postrouting", leavesHost, state(expr.CtStateBitNEW), r.connection(), r.forget(), r.log(seenOut))
}

// leavesHost matches packets but those through the loopback interface: they enter again,
// as ones that were chosen, and are told where they end.
var leavesHost = []expr.Any{
	&expr.Meta{Key: expr.MetaKeyOIFTYPE, Register: register(0)},
	&expr.Cmp{Op: expr.CmpOpNeq, Register: register(0), Data: binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_LOOPBACK)},
}

// state matches packets of a state of connection tracking.
func state(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: register(0), Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: register(0), DestRegister: register(0), Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, bit), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register(0), Data: make([]byte, 4)},
	}
}

var protocol = []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register(0)}}

func load(base expr.PayloadBase, offset, length uint32) []expr.Any {
	return []expr.Any{payload(0, base, offset, length)}
}

func payload(to uint32, base expr.PayloadBase, offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: register(to), Base: base, Offset: offset, Len: length}
}

// is matches where what is loaded has a value.
func is(loaded []expr.Any, value ...byte) []expr.Any {
	return append(loaded[:len(loaded):len(loaded)], &expr.Cmp{Op: expr.CmpOpEq, Register: register(0), Data: value})
}

// matches returns the lists of expressions of which a packet must match one.
func (r *rules) matches(f Filter, n *Names) (list [][]expr.Any) {
	var from []expr.Any
	if f.Source.IsValid() {
		from = r.within(r.saddr, f.Source)
	}
	for _, to := range r.destinations(f, n) {
		for _, p := range f.ports() {
			list = append(list, append(append(from[:len(from):len(from)], to...), p...))
		}
	}
	return list
}

// destinations returns what matches the destination, in the order of what is likely.
func (r *rules) destinations(f Filter, n *Names) (list [][]expr.Any) {
	if f.Destination.IsValid() {
		return [][]expr.Any{r.within(r.daddr, netip.PrefixFrom(f.Destination, f.Destination.BitLen()))}
	}
	addr := payload(0, expr.PayloadBaseNetworkHeader, r.daddr, r.addr.Len)
	at := r.addr.Len / 4
	list = [][]expr.Any{
		{addr, &expr.Lookup{SourceRegister: register(0), SetName: addressSet}},
		{
			addr, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register(at)},
			payload(at+1, expr.PayloadBaseTransportHeader, 2, 2),
			&expr.Lookup{SourceRegister: register(0), SetName: nodePortSet},
		},
	}
	for _, cidr := range n.ServiceCIDRs {
		if policy.FamilyOf(cidr.Addr()) == r.Family {
			list = append(list, append(r.within(r.daddr, cidr),
				addr, &expr.Lookup{SourceRegister: register(0), SetName: addressSet, Invert: true}))
		}
	}
	return list
}

// within matches an address of the header.
func (r *rules) within(offset uint32, p netip.Prefix) []expr.Any {
	mask := make([]byte, r.addr.Len)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		payload(0, expr.PayloadBaseNetworkHeader, offset, r.addr.Len),
		&expr.Bitwise{SourceRegister: register(0), DestRegister: register(0), Len: r.addr.Len, Mask: mask, Xor: make([]byte, r.addr.Len)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register(0), Data: p.Masked().Addr().AsSlice()},
	}
}

// ports returns what matches protocol and port: a rule for each protocol.
func (f Filter) ports() (list [][]expr.Any) {
	if f.Port == 0 && f.Protocol == 0 {
		return [][]expr.Any{nil}
	}
	for _, p := range source.Protocols {
		if f.Protocol != 0 && f.Protocol != p {
			continue
		}
		m := is(protocol, byte(p))
		if f.Port != 0 {
			m = append(m, is(load(expr.PayloadBaseTransportHeader, 2, 2), binary.BigEndian.AppendUint16(nil, f.Port)...)...)
		}
		list = append(list, m)
	}
	return list
}

// key loads a connection as in the set of chosen ones: two addresses, the protocol and two ports.
func (r *rules) key(load func(i int, at, length uint32) expr.Any) (list []expr.Any) {
	at := uint32(0)
	for i, length := range []uint32{r.addr.Len, r.addr.Len, 1, 2, 2} {
		list = append(list, load(i, at, length))
		at += (length + 3) / 4
	}
	return list
}

// connection loads the original direction of the packet's connection.
func (r *rules) connection() []expr.Any {
	fields := [...]uint32{r.ctSource, r.ctDestination, unix.NFT_CT_PROTOCOL, unix.NFT_CT_PROTO_SRC, unix.NFT_CT_PROTO_DST}
	return r.key(func(i int, at, _ uint32) expr.Any { return nft.CtOriginal(register(at), fields[i]) })
}

// inner loads the same of the packet that an ICMP error is about. Src and dst are where
// its ports are, or what stands for them.
func (r *rules) inner(src, dst uint32) []expr.Any {
	offsets := [...]uint32{r.inSource, r.inDestination, r.inProtocol, src, dst}
	return r.key(func(i int, at, length uint32) expr.Any {
		return payload(at, expr.PayloadBaseTransportHeader, offsets[i], length)
	})
}

// isChosen matches a connection that was chosen, and loads its number.
func (r *rules) isChosen() []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: register(0), DestRegister: register(numberAt), IsDestRegSet: true, SetName: chosenSet}}
}

// dynsetDelete is NFT_DYNSET_OP_DELETE, of kernel 5.4.
const dynsetDelete = 2

// forget matches a connection that was chosen, loads its number, and has the kernel log
// nothing more of it. The data of what is deleted does not count; nft aborts where it
// comes from a lookup.
func (r *rules) forget() []expr.Any {
	return slices.Concat(r.isChosen(), loadMark, r.store(dynsetDelete, markAt, 0))
}

func (r *rules) store(op, data uint32, timeout time.Duration) []expr.Any {
	return []expr.Any{&expr.Dynset{SrcRegKey: register(0), SrcRegData: register(data), SetName: chosenSet, Operation: op, Timeout: timeout}}
}

var loadMark = []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: register(markAt)}}

// snap is how much of a packet is logged: an ICMP error with the beginning of the
// packet that it is about.
const snap = 128

// log sends a packet to us. Its mark is the number of the packet meanwhile: that is what
// a message about a packet can say besides its headers.
func (r *rules) log(where string) []expr.Any {
	return []expr.Any{
		loadMark[0],
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register(numberAt)},
		r.statement(where),
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register(markAt)},
	}
}

func (r *rules) statement(where string) expr.Any {
	return &expr.Log{
		Key:   1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN | 1<<unix.NFTA_LOG_QTHRESHOLD,
		Group: r.group, Data: []byte(where), Snaplen: snap, QThreshold: 1,
	}
}
