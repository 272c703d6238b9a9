package conntrack

import (
	"context"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// Of <linux/netfilter/nfnetlink_conntrack.h>.
const (
	cpuStats    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 4 // IPCTNL_MSG_CT_GET_STATS_CPU
	globalStats = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5 // IPCTNL_MSG_CT_GET_STATS

	statInsertFailed = 9 // CTA_STATS_INSERT_FAILED, of a processor
	statEntries      = 1 // CTA_STATS_GLOBAL_ENTRIES
)

// size returns how many entries this network namespace has, of every family.
func size(ctx context.Context) (entries uint32, err error) {
	err = withSocket(ctx, func(s *socket) error {
		request, err := s.Send(netlink.Message{
			Header: netlink.Header{Type: globalStats, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
		})
		// The answer is one message that says that more follow, which the library would wait for.
		for done := false; err == nil && !done; {
			err = s.read(func(m nlmsg.Message) error {
				if m.Seq != request.Header.Sequence {
					return nil
				}
				done = true
				if m.IsLast() {
					return dumpError(m)
				}
				if len(m.Body) < nfgenLen {
					return nlmsg.ErrTruncated
				}
				entries = nlmsg.Uint32(nlmsg.Find(m.Body[nfgenLen:], statEntries))
				return nil
			})
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("counting the entries of connection tracking: %w", err)
	}
	return entries, nil
}

// InsertFailed returns how many packets that would have begun a connection the kernel has dropped since the network
// namespace began, as their entry could not be inserted (insert_failed of conntrack -S). As a rule every source port
// was taken that they could have been translated to. It also counts connections with too many others in one place of the
// table, and those that lost a race: two first packets of one socket at the same moment. A full table is not counted.
func InsertFailed(ctx context.Context) (total uint64, err error) {
	err = withSocket(ctx, func(s *socket) error {
		return s.dump(cpuStats, []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, func(m nlmsg.Message) error {
			if len(m.Body) < nfgenLen {
				return nlmsg.ErrTruncated
			}
			total += uint64(nlmsg.Uint32(nlmsg.Find(m.Body[nfgenLen:], statInsertFailed)))
			return nil
		})
	})
	if err != nil {
		return 0, fmt.Errorf("reading the counters of connection tracking: %w", err)
	}
	return total, nil
}
