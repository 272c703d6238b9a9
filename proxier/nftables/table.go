package nftables

import (
	"sync/atomic"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
)

// A tableConn reads and changes our table of one family. It knows nothing of what
// the table should hold.
type tableConn struct {
	*layout.Dialect
	conn    *nft.Conn
	batch   *nft.Batch    // reused by each transaction
	reads   int           // how often the whole table was read
	commits atomic.Uint32 // transactions of ours
	turns   atomic.Uint32 // starts and ends of these: odd while one is in progress
}

func newTableConn(d *layout.Dialect, conn *nft.Conn) *tableConn {
	return &tableConn{Dialect: d, conn: conn, batch: nft.NewBatch(d.Table())}
}

// chunkBytes is about how much of a repair is sent at once, some 20,000 elements:
// the kernel processes it without a pause, and holds a buffer of 4 KiB for each
// meanwhile, if anyone listens for events.
var chunkBytes = 1 << 20 // less in tests

// commit sends the batch, and counts it as ours. An empty batch is not sent.
func (t *tableConn) commit() error {
	if t.batch.Empty() {
		return nil
	}
	t.turns.Add(1)
	defer t.turns.Add(1)
	if err := t.conn.Commit(t.batch); err != nil {
		return err
	}
	t.commits.Add(1)
	return nil
}

// foreignCommits returns how many commits in this network namespace were not by this tableConn: those of the other family
// are among them. It is a number to compare with an earlier one. It is exact unless a commit of ours
// ran while the kernel was asked.
func (t *tableConn) foreignCommits(conn *nft.Conn) (n uint32, exact bool, err error) {
	turn, ours := t.turns.Load(), t.commits.Load()
	g, err := conn.Generation()
	return g.ID - ours, turn%2 == 0 && t.turns.Load() == turn, err
}
