package conntrack

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// Of <linux/netfilter/nfnetlink_conntrack.h>.
const (
	cpuStats = unix.NFNL_SUBSYS_CTNETLINK<<8 | 4 // IPCTNL_MSG_CT_GET_STATS_CPU

	statInsertFailed = 9 // CTA_STATS_INSERT_FAILED
)

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
