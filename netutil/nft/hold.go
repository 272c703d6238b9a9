package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
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

// HooksTable is the name of the table that a Holder makes.
const HooksTable = "svcproxy-hooks"

const hooksComment = "connections survive that all other rules are removed"

// A Holder keeps the kernel tracking and translating connections of one family while other
// programs remove all rules. Its table belongs to a socket of this process: nobody else can
// change or remove it, also not by a flush of all rules, and the kernel removes it with the
// process. Least kernel: 5.12. A nil Holder holds nothing.
type Holder struct {
	family byte
	held   *hold // nil: nothing
	failed bool  // making the table, which was logged
}

// A hold is the table of one family in one network namespace. All holders of the process share it.
type hold struct {
	conn    *Conn
	family  byte
	holders int
}

// holds are all tables of this process. Its lock guards what Holders hold, too.
var holds struct {
	sync.Mutex
	tables []*hold
}

// NewHolder returns a Holder of a family, NFPROTO_IPV4 or NFPROTO_IPV6, that holds nothing yet.
func NewHolder(family byte) *Holder { return &Holder{family: family} }

// Hold makes the table in the network namespace of the caller, unless it is held already.
// IsUnknownFlag reports whether the kernel is too old.
func (h *Holder) Hold() error {
	if h == nil {
		return nil
	}
	holds.Lock()
	defer holds.Unlock()
	if h.held != nil {
		return nil
	}
	here := namespace()
	i := slices.IndexFunc(holds.tables, func(t *hold) bool { return t.conn.netns == here && t.family == h.family })
	if i < 0 {
		conn, err := keep(Table{h.family, HooksTable}, hooksComment, true)
		if err != nil {
			return err
		}
		i, holds.tables = len(holds.tables), append(holds.tables, &hold{conn: conn, family: h.family})
	}
	h.held = holds.tables[i]
	h.held.holders++
	return nil
}

// HoldOrLog is Hold that logs a failure, once until it succeeds, as of who.
func (h *Holder) HoldOrLog(log *slog.Logger, who ...any) {
	err := h.Hold()
	if h == nil {
		return
	}
	holds.Lock()
	defer holds.Unlock()
	if err != nil && !h.failed {
		log.Info("cannot hold the hooks of connection tracking: connections break when another process flushes all rules",
			append(who, "old_kernel", IsUnknownFlag(err), "err", err)...)
	}
	h.failed = err != nil
}

// Release gives the table up. The last Holder of the process removes it.
func (h *Holder) Release() error {
	if h == nil {
		return nil
	}
	holds.Lock()
	defer holds.Unlock()
	held := h.held
	h.held = nil
	if held == nil {
		return nil
	}
	if held.holders--; held.holders > 0 {
		return nil
	}
	holds.tables = slices.DeleteFunc(holds.tables, func(t *hold) bool { return t == held })
	return held.conn.Close() // which removes the table
}

// RemoveHooks removes a table of a Holder that belongs to no process, as from a saved ruleset,
// and reports whether there was one. A kernel without nf_tables has none.
func RemoveHooks(family byte) (bool, error) {
	there, err := removeTable(Table{family, HooksTable})
	if refused, is := errors.AsType[*CommitError](err); is && refused.Errno == unix.EPERM { // it belongs to a process
		err = nil
	}
	return there, err
}
