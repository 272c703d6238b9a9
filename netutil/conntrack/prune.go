package conntrack

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"
)

// A Flow is a flow, or a connection, as Prune shows it.
type Flow struct {
	Src, Dst netip.AddrPort // as the client sent its first packet
	Reply    netip.AddrPort // the source of replies: the endpoint, or Dst without translation

	Unreplied bool // no reply yet
	Opening   bool // a connection of TCP whose client has not confirmed the first reply (SYN_RECV)
	Ended     bool // a connection that is over: its entry outlives it for a while (TCP: TIME_WAIT, CLOSE)
	Reopening bool // a connection of TCP of which a SYN after its end starts a new one: Reopen changes nothing
	Movable   bool // Move is more than Remove
}

func (e *entry) flow() Flow {
	state := e.tcpState()
	return Flow{
		Src: e.Src, Dst: e.Dst, Reply: e.Reply,
		Unreplied: !e.Replied,
		Opening:   state == tcpSynRecv,
		Ended:     e.Ended && state != tcpLastAck,
		Reopening: e.reopens(),
		Movable:   e.movable(),
	}
}

// A Verdict says what becomes of an entry. The zero Verdict, Keep, leaves it as it is.
type Verdict uint8

const (
	Keep Verdict = iota

	// Remove deletes the entry. The next packet of the flow is new to the rules.
	Remove

	// Move is Remove, but answers that are under way still find their way back to the client, for
	// LateAnswers: the kernel gets a second entry in which the client's direction lies in a zone
	// that no packet is in, so that only answers match it. It needs NF_CONNTRACK_ZONES, and
	// a flow of UDP that a rule translates, outside of any zone; else it is Remove.
	Move

	// Reopen keeps a connection of TCP, and has the first SYN after its end start a new one. The
	// kernel does so by itself after a FIN, but lets a SYN join the entry of a connection
	// that the server has reset, and renew it: such a client never gets away from a server that has
	// gone. Linux tells the two apart by a flag (nf_conntrack_tcp_packet,
	// net/netfilter/nf_conntrack_proto_tcp.c), which this sets, and which means nothing else.
	Reopen
)

// LateAnswers is for how long answers under way are translated after Move, in seconds: after as many a
// resolver asks again, resolv.conf(5).
const LateAnswers = 5

// A Query selects flows of one protocol: those that a client sent to one of To, or from one
// of From; if both are empty, all. Of these only those whose replies come from one of At,
// unless that is empty.
type Query struct {
	Protocol uint8 // by its IANA number; 0: UDP
	From, To []netip.AddrPort
	At       []netip.AddrPort
}

// Prune calls judge with every flow of a family that q selects, in every zone,
// and does what it says. It returns how many flows it removed.
// A flow that no longer exists is no error; judge may see a flow twice. When ctx
// ends it stops at once, even in the middle of a listing.
//
// The kernel filters where it can, and flows are handled as they arrive, so that
// no more than one part of the listing, 32 KiB, is ever held. With 250,000
// entries on Linux 6.18, 25,000 of them to one address: 0.1 s of CPU for that
// one, 0.07 s for an address without flows, for each walk through the table; and
// 0.4 s for all, with 0.4 MB allocated. Each removed flow costs 4 µs more.
func Prune(ctx context.Context, ipv6 bool, q Query, judge func(Flow) Verdict) (int, error) {
	entries, err := size(ctx)
	if err != nil {
		return 0, err
	}
	return prune(ctx, ipv6, q, q.filtersFor(entries), judge)
}

// prune is Prune with given filters for the kernel.
func prune(ctx context.Context, ipv6 bool, q Query, filters []Filter, judge func(Flow) Verdict) (int, error) {
	from, to, at := set(q.From), set(q.To), set(q.At)
	all := len(from) == 0 && len(to) == 0
	return editAll(ctx, ipv6, filters, func(e *entry) []edit {
		asked := e.Protocol == q.number() && (all || to[e.Dst] || from[e.Src]) && (len(at) == 0 || at[e.Reply])
		if !asked {
			return nil
		}
		return judge(e.flow()).edits(e)
	})
}

func set(list []netip.AddrPort) map[netip.AddrPort]bool {
	m := make(map[netip.AddrPort]bool, len(list))
	for _, a := range list {
		m[a] = true
	}
	return m
}

func (q Query) number() uint8 { return cmp.Or(q.Protocol, unix.IPPROTO_UDP) }

// The kernel walks through the whole table for each filter, so up to maxWalks filters by address are used, and
// above that, or where the table has few entries, one for the protocol. A walk takes as long as sending
// walkEntries entries, or longer: 15 ms of CPU on Linux 6.18 through the 262,144 places of an empty table.
const (
	maxWalks    = 4
	walkEntries = 10_000
)

// filtersFor returns filters that cover everything that q selects, for a table with as many entries.
func (q Query) filtersFor(entries uint32) []Filter {
	list := q.filters()
	if spared := len(list) - 1; spared > 0 && int(entries) <= spared*walkEntries {
		return []Filter{{Protocol: q.number()}}
	}
	return list
}

// filters returns filters that cover everything that q selects, for a table with many entries.
func (q Query) filters() (list []Filter) {
	for _, a := range q.To {
		list = append(list, Filter{Protocol: q.number(), Dst: filterable(a)})
	}
	for _, a := range q.From {
		list = append(list, Filter{Protocol: q.number(), Src: filterable(a)})
	}
	list = distinct(list)
	if n := len(q.At); n > 0 && (n < len(list) || len(list) == 0) {
		list = nil
		for _, a := range q.At {
			list = append(list, Filter{Protocol: q.number(), Reply: filterable(a)})
		}
		list = distinct(list)
	}
	if len(list) == 0 || len(list) > maxWalks {
		return []Filter{{Protocol: q.number()}}
	}
	return list
}

// distinct removes what is there before.
func distinct(list []Filter) (out []Filter) {
	for _, f := range list {
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// Mark sets a bit in the mark of each connection of a family for which ours
// returns true, and returns how many have it now. The other bits are kept.
// A connection that has ended meanwhile is no error. It lists every entry.
func Mark(ctx context.Context, ipv6 bool, bit uint32, ours func(Connection) bool) (int, error) {
	marking := edit{verb: "marking", typ: changeEntry, attrs: encode(number32(attrMark, bit), number32(attrMask, bit)), counted: true}
	return editAll(ctx, ipv6, []Filter{{}}, func(e *entry) []edit {
		if !ours(e.Connection) {
			return nil
		}
		return []edit{marking}
	})
}

// closeInit is IP_CT_TCP_FLAG_CLOSE_INIT, <linux/netfilter/nf_conntrack_tcp.h>.
const closeInit = 0x04

var (
	removal = edit{verb: "removing", typ: deleteEntry, counted: true}

	// reopening has the flag, with its mask, for one direction; either will do. The state is left out, and stays.
	reopening = edit{verb: "reopening", typ: changeEntry, attrs: encode(nest(attrInfo, nest(infoTCP, part(infoTCPFlags, closeInit, closeInit))))}
)

// edits returns how to carry out v.
func (v Verdict) edits(e *entry) []edit {
	switch v {
	case Remove:
		return []edit{removal}
	case Move:
		if e.movable() {
			return []edit{removal, e.lateEntry()}
		}
		return []edit{removal}
	case Reopen:
		if e.Protocol == unix.IPPROTO_TCP && !e.reopens() {
			return []edit{reopening}
		}
	}
	return nil
}

// lateZone is the zone of the client's direction in entries for late answers: "svcp" on
// the keys of a telephone. Entries in it are left out of what this package lists.
const lateZone = 7827

// lateEntry returns how to make an entry for the answers to e that are under way.
func (e *entry) lateEntry() edit {
	list := []netfilter.Attribute{
		encodeTuple(attrOrig, e.Protocol, e.Src, e.Dst, lateZone),
		encodeTuple(attrReply, e.Protocol, e.Dst, e.Src, 0),
		encodeNAT(attrDestNAT, e.Reply),
		number32(attrStatus, seenReply|confirmed|fixedTimeout),
		number32(attrTimeout, LateAnswers),
		number32(attrMark, e.mark),
	}
	if e.ReplyTo != e.Src {
		list = append(list, encodeNAT(attrSourceNAT, e.ReplyTo))
	}
	return edit{verb: "replacing", typ: changeEntry, flags: netlink.Create | netlink.Excl, attrs: encode(list...), other: true, maybe: true}
}
