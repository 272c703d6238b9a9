package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// tableOwner is NFT_TABLE_F_OWNER, <linux/netfilter/nf_tables.h>: only the socket
// that made the table can change it, others cannot even flush it, and it goes with
// the socket. Kernel 5.12.
const tableOwner = 2

// A Keeper keeps the kernel tracking and translating connections of one family: by
// itself it does so only as long as there are rules that ask for it, and when
// somebody flushes the last of them, connections are cut.
type Keeper struct{ conn *Conn }

// Keep begins that, in a table of its own which does nothing else.
func Keep(t Table, comment string) (*Keeper, error) {
	conn, err := Dial()
	if err != nil {
		return nil, err
	}
	if err := conn.keep(t, comment); err != nil {
		return nil, errors.Join(fmt.Errorf("making table %s: %w", t.Name, err), conn.Close())
	}
	return &Keeper{conn}, nil
}

// keep makes the table. The rule has connections tracked, the chain translated.
func (c *Conn) keep(t Table, comment string) error {
	const isNew = 8 // NF_CT_STATE_BIT(IP_CT_NEW), <linux/netfilter/nf_conntrack_common.h>
	number := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	rule, err := NewRule(t.Family, "",
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: number(isNew), Xor: number(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: number(0)},
		&expr.Verdict{Kind: expr.VerdictAccept})
	if err != nil {
		return err
	}
	b := NewBatch(t)
	b.addTable(tableOwner, comment)
	b.AddChain(&Chain{Name: "postrouting", Hook: &Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 100, Policy: Accept}})
	b.AddRule("postrouting", rule)
	return c.Commit(b)
}

// Close ends it.
func (k *Keeper) Close() error { return k.conn.Close() }
