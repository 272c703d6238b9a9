package nftables

import (
	"context"
	"sync/atomic"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
)

// A Backend holds one family's table to a State. It implements proxier.Backend.
type Backend struct {
	*tableConn
	monitor *nft.Monitor
	hooks   *nft.Holder // of connection tracking and translation, while others remove our table; nil: none

	guardedMirror // what the kernel holds since the last Sync, if that succeeded

	flowtableState flowtableState

	loaded bool // a Sync has loaded the table since New: packets meet it

	watching    atomic.Bool   // Watch runs
	needsRepair atomic.Bool   // the next Sync repairs the table: another process modified it, or a look found a difference
	uncertain   atomic.Bool   // another process may have modified our table
	unlisted    atomic.Bool   // the first Sync did not list all elements: the next Look does
	foreign     atomic.Uint32 // foreign commits, see foreignCommits, when the table was last compared

	unread    int          // calls of Look since the last that read the table
	unsettled []layout.Set // parts that the last Look could not decide, as syncs changed them while they were read
}

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
