package ipvs

import (
	"context"
	"sync"
	"time"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
)

// glanceInterval is how often it is asked whether one of our servers, any of them,
// is still there: a message each time. IPVS tells of nothing.
const canaryInterval = 250 * time.Millisecond

// Watch calls changed with each change of what is ours by others that the next Sync
// has something to repair of, until ctx ends, whose error it returns. It runs beside
// the other methods. It notices soon that all virtual servers are gone, as after
// ipvsadm -C; of single ones, and of addresses, only a look tells.
func (b *Backend) Watch(ctx context.Context, changed func(proxier.ForeignChange)) error {
	conn, err := lvs.Dial(ctx) // in the network namespace of the caller
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	asking.Go(func() { b.runCanary(ctx, conn, func() { changed(proxier.ForeignChange{}) }) })
	err = b.kernel.Watch(ctx, changed)
	cancel()
	asking.Wait()
	return err
}

// askCanary looks at all servers when one of them is missing.
func (b *Backend) runCanary(ctx context.Context, conn *lvs.Conn, changed func()) {
	defer conn.Close()
	tick := time.NewTicker(canaryInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		key, known := b.mirror.pick()
		if !known {
			continue
		}
		if there, err := conn.Has(ctx, key); there || err != nil { // an error is told by the next look
			continue
		}
		if differs, err := b.lookForServers(ctx, conn); err == nil && differs {
			b.mirror.markReported()
			changed()
		}
	}
}

// lookForServers is a look at servers only.
func (b *Backend) lookForServers(ctx context.Context, conn *lvs.Conn) (differs bool, err error) {
	b.lookMu.Lock()
	defer b.lookMu.Unlock()
	servers, foreign, known := b.mirror.beginLook()
	if !known {
		return false, nil
	}
	defer func() { differs = b.mirror.endLook() && err == nil }()
	return false, b.lookAtServers(ctx, conn, servers, foreign)
}
