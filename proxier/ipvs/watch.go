package ipvs

import (
	"context"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
)

// canaryInterval is how often one of our servers, any of them, is looked up: a message
// each time. IPVS has no events.
const canaryInterval = 250 * time.Millisecond

// Watch calls changed with each foreign change that the next Sync repairs, until ctx
// ends, whose error it returns. It runs beside the other methods. It soon notices that
// all virtual servers are gone, as after ipvsadm -C; only a look finds that single ones,
// or addresses, differ.
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

// runCanary looks at all servers when one of them is missing.
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
		if there, err := conn.Has(ctx, key); there || err != nil { // an error is reported by the next look
			continue
		}
		if differs, err := b.lookForServers(ctx, conn); err == nil && differs {
			b.mirror.markReported()
			changed()
		}
	}
}

// lookForServers looks at servers only.
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
