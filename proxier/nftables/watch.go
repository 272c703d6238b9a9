package nftables

import (
	"context"

	"svcproxy/netutil/nft"
)

// Watch calls changed with each transaction of somebody else that changed our
// table, as soon as the kernel tells, until ctx ends, whose error it returns. The
// next Sync reads the table then, and mends it. It runs beside the other methods.
func (b *Backend) Watch(ctx context.Context, changed func(nft.Event)) error {
	b.touched.Store(true) // what happened before we listened is unknown
	defer b.watching.Store(false)
	return b.monitor.Watch(ctx, func() { b.watching.Store(true) }, func(e nft.Event) {
		b.touched.Store(true)
		changed(e)
	})
}
