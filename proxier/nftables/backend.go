package nftables

import (
	"sync/atomic"

	"svcproxy.dev/svcproxy/netutil/nft"
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
