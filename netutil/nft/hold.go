package nft

import (
	"errors"
	"log/slog"
	"slices"
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
	if errors.Is(err, unix.EPERM) { // it belongs to a process
		err = nil
	}
	return there, err
}
