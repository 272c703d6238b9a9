package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"

	"svcproxy.dev/svcproxy/netutil/l2"
)

// neighbours tells neighbours of addresses. It begins with the first address: most hosts have none.
type neighbours struct {
	*l2.Announcer
	asked atomic.Bool
	begin chan struct{} // holds something when there is an address
}

func newNeighbours(log *slog.Logger) *neighbours {
	return &neighbours{Announcer: l2.New(log), begin: make(chan struct{}, 1)}
}

// Set implements announcer.Neighbours.
func (n *neighbours) Set(list []netip.Addr) {
	if len(list) > 0 && n.asked.CompareAndSwap(false, true) {
		n.begin <- struct{}{}
	}
	if n.asked.Load() {
		n.Announcer.Set(list)
	}
}

// run tells neighbours until ctx ends.
func (n *neighbours) run(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-n.begin:
		n.Run(ctx)
	}
}

// Unanswered implements announcer.Neighbours: no link answers for an address that fails on all.
func (n *neighbours) Unanswered() map[netip.Addr]string {
	if !n.asked.Load() {
		return nil
	}
	why, good := make(map[netip.Addr]string), make(map[netip.Addr]bool)
	for _, r := range n.Results() {
		if r.Err == nil {
			good[r.Addr] = true
		} else {
			why[r.Addr] = r.Err.Error()
		}
	}
	for a := range good {
		delete(why, a)
	}
	return why
}
