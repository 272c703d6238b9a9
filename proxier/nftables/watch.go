package nftables

import (
	"context"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// Watch calls changed with each transaction of other processes that changed our
// table, as soon as the kernel tells, until ctx ends, whose error it returns. The
// next Sync repairs it then. After lost events, the next Look, or a Sync without a
// delta, finds out whether there is something to repair. It runs beside the other methods.
func (b *Backend) Watch(ctx context.Context, changed func(proxier.ForeignChange)) error {
	b.uncertain.Store(true) // what happened before we listened is unknown
	defer b.watching.Store(false)
	return b.monitor.Watch(ctx, func() { b.watching.Store(true) }, func(e nft.Event) {
		if e.Lost {
			b.uncertain.Store(true)
		} else {
			b.modified.Store(true)
		}
		changed(proxier.ForeignChange(e))
	})
}

// Doubt makes the next Look, or a Sync without a delta, read our table, whatever
// has been heard.
func (b *Backend) Doubt() { b.uncertain.Store(true) }
