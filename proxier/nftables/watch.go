package nftables

import (
	"context"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
)

// Watch calls changed with each foreign transaction that changed our table, as soon
// as the kernel reports it, until ctx ends, whose error it returns. The next Sync
// then repairs the table. After lost events, the next Look, or a Sync without a
// delta, finds out whether there is something to repair. It runs concurrently with
// the other methods.
func (b *Backend) Watch(ctx context.Context, changed func(proxier.ForeignChange)) error {
	b.uncertain.Store(true) // changes before we listened are unknown
	defer b.watching.Store(false)
	return b.monitor.Watch(ctx, func() { b.watching.Store(true) }, func(e nft.Event) {
		if e.Lost {
			b.uncertain.Store(true)
		} else {
			b.needsRepair.Store(true)
		}
		changed(proxier.ForeignChange(e))
	})
}

// Recheck makes the next Look, or a Sync without a delta, read our table, whatever
// events were heard.
func (b *Backend) Recheck() { b.uncertain.Store(true) }
