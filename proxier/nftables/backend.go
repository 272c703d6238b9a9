package nftables

import (
	"sync/atomic"

	"svcproxy/netutil/nft"
)

// A Backend holds one family's table to a State. It implements proxier.Backend.
type Backend struct {
	*tableConn
	monitor *nft.Monitor

	stampedMirror // what the kernel holds since the last Sync, if that succeeded

	loaded bool // packets have met what a Sync loaded

	watching  atomic.Bool   // Watch runs
	modified  atomic.Bool   // another process modified our table: the next Sync repairs it
	uncertain atomic.Bool   // another process may have modified our table
	foreign   atomic.Uint32 // foreign commits, see foreignCommits, when the table was last compared

	looks lookState
}

// looks is what Look keeps from one call to the next.
type lookState struct {
	unread    int            // calls that have read nothing
	unsettled unsettledParts // what the last one could not decide on
}

// laggers are what syncs changed each time that a look came to it.
type unsettledParts struct {
	structure bool
	sets      []set
}

func (l *unsettledParts) empty() bool { return !l.structure && len(l.sets) == 0 }
