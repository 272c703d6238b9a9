package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Keep adds a table that only keeps the kernel tracking and translating connections
// of one family: the kernel does so only while there are rules that need it, and
// when another process removes the last of them, connections break. An existing
// table is replaced in the same transaction.
func Keep(t Table, comment string) error {
	conn, err := keep(t, comment, false)
	if err != nil {
		return err
	}
	return conn.Close()
}

// keep is Keep, and returns the socket: an owned table belongs to it.
func keep(t Table, comment string, owned bool) (*Conn, error) {
	conn, err := Dial()
	if err != nil {
		return nil, fmt.Errorf("making table %s: %w", t.Name, err)
	}
	b := NewBatch(t)
	b.EnsureTable()
	b.DeleteTable()
	b.AddNewTable(comment, owned)
	if err = addKeepRule(b); err == nil {
		err = conn.Commit(b)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making table %s: %w", t.Name, err), conn.Close())
	}
	return conn, nil
}

// keepPriority comes after the usual priorities of translation, -100 and 100: the
// chain sees only connections that no other chain has translated.
const keepPriority = 300

// addKeepRule adds a rule that needs connection tracking, in a chain that needs translation:
// for one chain the kernel registers its translation in all hooks, nf_nat_register_fn in
// net/netfilter/nf_nat_core.c.
func addKeepRule(b *Batch) error {
	const isNew = 8 // NF_CT_STATE_BIT(IP_CT_NEW), <linux/netfilter/nf_conntrack_common.h>
	number := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	rule, err := NewRule(b.table.Family, "",
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: number(isNew), Xor: number(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: number(0)},
		&expr.Verdict{Kind: expr.VerdictAccept})
	if err != nil {
		return err
	}
	const chain = "postrouting"
	b.AddChain(&Chain{Name: chain, Hook: &Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: keepPriority, Policy: Accept}})
	b.AddRule(chain, rule)
	return nil
}

// Exists reports whether a table exists.
func Exists(t Table) (bool, error) {
	conn, err := Dial()
	if err != nil {
		return false, err
	}
	there, _, err := conn.Lookup(t)
	return there, errors.Join(err, conn.Close())
}

// NotSupported reports whether an error says that the kernel has no nf_tables at all:
// a kernel without nfnetlink gives the first, one that only lacks nf_tables the second.
func NotSupported(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL)
}

// RemoveTable removes a table with its content. A missing table, or a kernel without
// nf_tables, is no error.
func RemoveTable(t Table) error {
	_, err := removeTable(t)
	return err
}

// removeTable also reports whether there was one.
func removeTable(t Table) (there bool, err error) {
	conn, err := Dial()
	if NotSupported(err) || errors.Is(err, errors.ErrUnsupported) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	b := NewBatch(t)
	b.DeleteTable()
	err = conn.Commit(b)
	there = err == nil
	if errors.Is(err, unix.ENOENT) || NotSupported(err) || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EAFNOSUPPORT) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("removing table %s: %w", t.Name, err)
	}
	return there, errors.Join(err, conn.Close())
}
