package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// Types of messages, <linux/netfilter/nfnetlink_conntrack.h>.
const (
	changeEntry = unix.NFNL_SUBSYS_CTNETLINK << 8   // IPCTNL_MSG_CT_NEW, without NLM_F_CREATE
	listEntries = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	deleteEntry = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2 // IPCTNL_MSG_CT_DELETE
)

// A Filter selects entries by what of it is not zero, down to an address or a port alone. The zero Filter selects
// everything.
type Filter struct {
	Protocol   uint8          // by its IANA number
	Src, Dst   netip.AddrPort // as the client sent its first packet
	Reply      netip.AddrPort // the source of replies
	Translated bool           // a rule translated the destination
}

// List calls each with every connection of a family that f selects, in every zone, as it is listed. An error of each ends the
// listing, and is returned; so is that of ctx, at once.
//
// The kernel leaves out others where it can: by protocol, ports and addresses of IPv4 since Linux 5.8, translated ones since
// 5.15. With 250,000 entries on Linux 6.18 it takes 0.06 s of CPU where none is selected, and 0.4 s where all are, with little
// memory.
func List(ctx context.Context, ipv6 bool, f Filter, each func(*Connection) error) error {
	return withSocket(ctx, func(s *socket) error {
		return s.walk(family(ipv6), []Filter{f}, func(e *entry) error {
			if c := e.Connection; f.selects(&c) && ctx.Err() == nil {
				return each(&c)
			}
			return ctx.Err()
		})
	})
}

// selects reports whether f selects c.
func (f *Filter) selects(c *Connection) bool {
	return (f.Protocol == 0 || c.Protocol == f.Protocol) && (!f.Translated || c.Translated) &&
		matchesAddr(f.Src, c.Src) && matchesAddr(f.Dst, c.Dst) && matchesAddr(f.Reply, c.Reply)
}

func matchesAddr(want, a netip.AddrPort) bool {
	return (!want.Addr().IsValid() || want.Addr() == a.Addr()) && (want.Port() == 0 || want.Port() == a.Port())
}

// filterable drops an IPv6 address and keeps the port: the kernel, still in 6.18,
// inverts the comparison (ctnetlink_filter_match_tuple,
// net/netfilter/nf_conntrack_netlink.c).
func filterable(a netip.AddrPort) netip.AddrPort {
	if a.Addr().Is6() {
		return netip.AddrPortFrom(netip.Addr{}, a.Port())
	}
	return a
}

// encode returns what of f the kernel can filter by. It takes a port only with a protocol.
func (f Filter) encode() (list []netfilter.Attribute) {
	none := netip.AddrPort{}
	src, dst, reply := filterable(f.Src), filterable(f.Dst), filterable(f.Reply)
	if f.Protocol == 0 {
		src, dst, reply = netip.AddrPortFrom(src.Addr(), 0), netip.AddrPortFrom(dst.Addr(), 0), netip.AddrPortFrom(reply.Addr(), 0)
	}
	var equal []netfilter.Attribute
	if f.Protocol != 0 || src != none || dst != none {
		equal = append(equal, encodeEqual(filterOrig, f.Protocol, src, dst))
		list = append(list, encodeTuple(attrOrig, f.Protocol, src, dst, 0))
	}
	if reply != none {
		equal = append(equal, encodeEqual(filterReply, f.Protocol, reply, none))
		list = append(list, encodeTuple(attrReply, f.Protocol, reply, none, 0))
	}
	if equal != nil {
		list = append([]netfilter.Attribute{nest(attrFilter, equal...)}, list...)
	}
	if f.Translated {
		list = append(list, number32(attrStatus, destinationTranslated), number32(attrStatusMask, destinationTranslated))
	}
	return list
}

// walk calls each with the entries that the filters select, and maybe others: a kernel that cannot filter
// lists everything, once.
func (s *socket) walk(family byte, filters []Filter, each func(*entry) error) error {
	for _, f := range filters {
		ignored := false
		err := s.list(family, f, func(e *entry) error {
			ignored = ignored || len(filters) > 1 && !f.selects(&e.Connection)
			return each(e)
		})
		switch {
		case errors.Is(err, errRejected):
			return s.list(family, Filter{}, each)
		case err != nil || ignored:
			return err
		}
	}
	return nil
}

// errRejected: the kernel does not support the filter of a listing.
var errRejected = errors.New("the kernel does not support the filter")

// list calls each with every entry of a family that f selects to the kernel, as it arrives.
func (s *socket) list(family byte, f Filter, each func(*entry) error) error {
	request, err := s.Send(netlink.Message{
		Header: netlink.Header{Type: listEntries, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, encode(f.encode()...)...),
	})
	var e entry
	for done := false; err == nil && !done; {
		err = s.read(func(m nlmsg.Message) error {
			if m.Seq != request.Header.Sequence {
				return nil
			}
			if done = m.IsLast(); done {
				switch errno := m.Errno(); {
				case errno == 0:
					return nil
				case f != Filter{} && (errno == unix.EINVAL || errno == unix.EOPNOTSUPP):
					return errRejected
				default:
					return errno
				}
			}
			if err := e.decode(m.Body); err != nil || e.late {
				return err
			}
			return each(&e)
		})
	}
	if err != nil {
		return fmt.Errorf("listing conntrack flows: %w", err)
	}
	return nil
}
