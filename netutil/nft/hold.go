package nft

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sys/unix"
)

// HooksTable is the name of the table that a Holder makes.
const HooksTable = "svcproxy-hooks"

const hooksComment = "connections survive that all other rules are removed"

// A Holder keeps the kernel tracking and translating connections of one family while other
// programs remove all rules. Its table belongs to a socket of this process: nobody else can
// change or remove it, also not by a flush of all rules, and the kernel removes it with the
// process. Least kernel: 5.12. A nil Holder holds nothing.
type Holder struct {
	family byte

	mu     sync.Mutex
	held   *hold // nil: nothing
	failed bool  // making the table, which was logged
}

// A hold is the table of one family in one network namespace. All holders of the process share it.
type hold struct {
	conn    *Conn
	holders int
}

type holdKey struct {
	netns  uint64
	family byte
}

// holds are all tables of this process.
var holds = struct {
	sync.Mutex
	tables map[holdKey]*hold
}{tables: map[holdKey]*hold{}}

// NewHolder returns a Holder of a family, NFPROTO_IPV4 or NFPROTO_IPV6, that holds nothing yet.
func NewHolder(family byte) *Holder { return &Holder{family: family} }

// Hold makes the table in the network namespace of the caller, unless it is held already.
// IsUnknownFlag reports whether the kernel is too old.
func (h *Holder) Hold() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held != nil {
		return nil
	}
	holds.Lock()
	defer holds.Unlock()
	key := holdKey{namespace(), h.family}
	if holds.tables[key] == nil {
		conn, err := holdHooks(Table{h.family, HooksTable})
		if err != nil {
			return fmt.Errorf("making table %s: %w", HooksTable, err)
		}
		holds.tables[key] = &hold{conn: conn}
	}
	h.held = holds.tables[key]
	h.held.holders++
	return nil
}

// HoldOrLog is Hold that logs a failure, once until it succeeds, as of who.
func (h *Holder) HoldOrLog(log *slog.Logger, who ...any) {
	err := h.Hold()
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil && !h.failed {
		log.Info("cannot hold the hooks of connection tracking: connections break when another process flushes all rules",
			append(who, "old_kernel", IsUnknownFlag(err), "err", err)...)
	}
	h.failed = err != nil
}

// holdHooks returns the socket that the table belongs to. A table of that name that belongs to
// nobody, as from a saved ruleset, is replaced.
func holdHooks(t Table) (*Conn, error) {
	conn, err := Dial()
	if err != nil {
		return nil, err
	}
	b := NewBatch(t)
	b.EnsureTable()
	b.DeleteTable()
	b.AddNewTable(hooksComment, true)
	if err = addKeepRule(b); err == nil {
		err = conn.Commit(b)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Release gives the table up. The last Holder of the process removes it.
func (h *Holder) Release() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.held
	h.held = nil
	if held == nil {
		return nil
	}
	holds.Lock()
	defer holds.Unlock()
	if held.holders--; held.holders > 0 {
		return nil
	}
	delete(holds.tables, holdKey{held.conn.netns, h.family})
	return held.conn.Close() // which removes the table
}

// RemoveHooks removes a table of a Holder that belongs to no process, as from a saved ruleset,
// and reports whether there was one. A kernel without nf_tables has none.
func RemoveHooks(family byte) (bool, error) {
	conn, err := Dial()
	if NotSupported(err) || errors.Is(err, errors.ErrUnsupported) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	list, err := conn.TablesNamed(HooksTable)
	there := false
	for _, t := range list {
		there = there || t.Table == Table{family, HooksTable} && !t.Owned
	}
	if there {
		b := NewBatch(Table{family, HooksTable})
		b.DeleteTable()
		err = conn.Commit(b)
	}
	if errors.Is(err, unix.ENOENT) {
		there, err = false, nil
	}
	if err != nil {
		err = fmt.Errorf("removing table %s: %w", HooksTable, err)
	}
	return there && err == nil, errors.Join(err, conn.Close())
}
