package nft

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// tableOwner is NFT_TABLE_F_OWNER: the table belongs to the socket that added it, and
// goes with it. Least kernel 5.12.
const tableOwner = 0x2

// AddNewTable adds a table that must not be there yet. An owned one is removed with the
// socket that commits b, also when its process is killed; a kernel before 5.12 refuses it.
func (b *Batch) AddNewTable(comment string, owned bool) {
	var flags uint32
	if owned {
		flags = tableOwner
	}
	b.addTable(unix.NLM_F_EXCL, flags, comment)
}

// IsUnknownFlag reports whether a Commit failed because the kernel knows no owned tables.
func IsUnknownFlag(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// An OwnedTable is a table, and whether it goes with a socket that is open.
type OwnedTable struct {
	Table
	Owned bool
}

// TablesNamed returns the tables of all families whose names begin with prefix.
func (c *Conn) TablesNamed(prefix string) ([]OwnedTable, error) {
	var list []OwnedTable
	m := startMessage(nil, nftMessage(unix.NFT_MSG_GETTABLE), unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, 0)
	err := c.request(endMessage(m, 0), func(m message) error {
		if len(m.Body) < genLen {
			return nlmsg.ErrTruncated
		}
		t := OwnedTable{Table: Table{m.Body[0], m.string(unix.NFTA_TABLE_NAME)}}
		t.Owned = m.uint32(unix.NFTA_TABLE_FLAGS)&tableOwner != 0
		if strings.HasPrefix(t.Name, prefix) {
			list = append(list, t)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing tables: %w", err)
	}
	return list, nil
}

// Counters returns how many packets the counters of a chain have counted, in the order
// of its rules, and in each in order.
func (c *Conn) Counters(t Table, chain string) (counts []uint64, err error) {
	rules, err := c.ChainRules(t, chain)
	for _, r := range rules {
		for _, e := range r.Exprs {
			if e.Name == "counter" {
				counts = append(counts, nlmsg.Uint64(nlmsg.Find(e.Data, unix.NFTA_COUNTER_PACKETS)))
			}
		}
	}
	return counts, err
}
