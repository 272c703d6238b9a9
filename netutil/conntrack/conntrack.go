// Package conntrack removes flows from the kernel's connection tracking, marks
// connections, and counts them.
//
//	conntrack.go, mark.go  removing and marking
//	verdict.go             what may become of an entry
//	established.go         listing connections
//	open.go                listing those to an address
//	challenge.go           having clients of removed connections notice
//	count.go, events.go    what there is, and what begins and ends
//	stats.go               how many entries there are, what could not begin
//	list.go, filter.go     listing, filtered by the kernel where it can
//	edit.go                changes in batches
//	entry.go, socket.go    decoding, the netlink socket
package conntrack

import (
	"cmp"
	"context"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Flow is a flow, or a connection.
type Flow struct {
	Src, Dst netip.AddrPort // as the client sent its first packet
	Reply    netip.AddrPort // the source of replies: the endpoint, or Dst without translation

	Unreplied bool // no reply yet
	Opening   bool // a connection of TCP whose client has not confirmed the first reply (SYN_RECV)
	Ended     bool // a connection that is over: its entry outlives it for a while (TCP: TIME_WAIT, CLOSE)
	Reopening bool // a connection of TCP of which a SYN after its end starts a new one: Reopen changes nothing
	Movable   bool // Move is more than Remove
}

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
func prune(ctx context.Context, ipv6 bool, q Query, filters []filter, judge func(Flow) Verdict) (int, error) {
	query := newQuerySet(q)
	return editAll(ctx, ipv6, filters, func(e *entry) []edit {
		if f := e.flow(); e.orig.proto == q.number() && query.matches(f) {
			return judge(f).edits(e)
		}
		return nil
	})
}

// flow returns the Flow of an entry.
func (e *entry) flow() Flow {
	state := e.tcpState()
	return Flow{
		Src: e.orig.src, Dst: e.orig.dst, Reply: e.reply.src,
		Unreplied: e.status&seenReply == 0,
		Opening:   state == tcpSynRecv,
		Ended:     e.ended() && state != tcpLastAck,
		Reopening: e.reopens(),
		Movable:   e.movable(),
	}
}

func family(ipv6 bool) byte {
	if ipv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// A querySet is a Query prepared for many flows.
type querySet struct {
	all          bool
	from, to, at map[netip.AddrPort]bool
}

func newQuerySet(q Query) querySet {
	set := func(list []netip.AddrPort) map[netip.AddrPort]bool {
		m := make(map[netip.AddrPort]bool, len(list))
		for _, a := range list {
			m[a] = true
		}
		return m
	}
	return querySet{all: q.all(), from: set(q.From), to: set(q.To), at: set(q.At)}
}

func (l *querySet) matches(f Flow) bool {
	return (l.all || l.to[f.Dst] || l.from[f.Src]) && (len(l.at) == 0 || l.at[f.Reply])
}

func (q Query) number() uint8 { return cmp.Or(q.Protocol, unix.IPPROTO_UDP) }

func (q Query) all() bool { return len(q.From) == 0 && len(q.To) == 0 }
