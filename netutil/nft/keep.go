package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Keep makes a table which does nothing but keep the kernel tracking and translating
// connections of one family: by itself it does so only as long as there are rules
// that ask for it, and when somebody removes the last of them, connections are cut.
// One that is there already is replaced at once.
func Keep(t Table, comment string) error {
	conn, err := Dial()
	if err != nil {
		return err
	}
	if err := conn.keep(t, comment); err != nil {
		return errors.Join(fmt.Errorf("making table %s: %w", t.Name, err), conn.Close())
	}
	return conn.Close()
}

// keepPriority is after all that translates, which have -100 and 100 by custom: the
// chain is met by connections that nobody else had a word about.
const keepPriority = 300

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
	const chain = "postrouting"
	b := NewBatch(t)
	b.EnsureTable()
	b.DeleteTable()
	b.AddTable(comment)
	b.AddChain(&Chain{Name: chain, Hook: &Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: keepPriority, Policy: Accept}})
	b.AddRule(chain, rule)
	return c.Commit(b)
}

// Exists reports whether a table is there.
func Exists(t Table) (bool, error) {
	conn, err := Dial()
	if err != nil {
		return false, err
	}
	there, _, err := conn.Lookup(t)
	return there, errors.Join(err, conn.Close())
}

// Lacks reports whether an error says that the kernel has no nf_tables at all: the
// first is of a kernel without netfilter's netlink, the second of one with others of its parts only.
func Lacks(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL)
}

// RemoveTable removes a table with all that is in it. That there is none, or no
// nf_tables, is no error.
func RemoveTable(t Table) error {
	conn, err := Dial()
	if Lacks(err) || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	b := NewBatch(t)
	b.DeleteTable()
	err = conn.Commit(b)
	if errors.Is(err, unix.ENOENT) || Lacks(err) || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EAFNOSUPPORT) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("removing table %s: %w", t.Name, err)
	}
	return errors.Join(err, conn.Close())
}
