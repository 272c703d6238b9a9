package filter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

// A family is one family of addresses as this host has it, which all parts of a Kernel share.
type family struct {
	words  layout.Dialect
	tool   *xtables.Tool // the variant of iptables in use
	events *events       // of the nft variant; nil: none
	log    *slog.Logger
}

// SetLog sets the log for warnings. It is called before any Sync.
func (f *family) SetLog(log *slog.Logger) { f.log = log }

// events are the events of nf_tables about foreign changes.
type events struct {
	conn    *nft.Conn
	monitor *nft.Monitor

	watching atomic.Bool
	dirty    atomic.Bool // something may have changed since the tables were last read

	touched chan nft.Event // rules of a built-in chain were changed: foreign ones may be in front of ours
}

func openEvents(v6 bool) (*events, error) {
	conn, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	e := &events{conn: conn, touched: make(chan nft.Event, 1)}
	e.monitor, err = nft.NewNameMonitor(nft.Names{
		Tables: nftTables(v6), Ours: layout.Prefix, Own: xtables.Committed, Scratch: layout.ProbePrefix,
		Others: layout.BuiltIn(), Touched: func(t nft.Event) {
			select {
			case e.touched <- t:
			default: // it is to be looked at already
			}
		},
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return e, nil
}

func (e *events) close() error { return errors.Join(e.monitor.Close(), e.conn.Close()) }

// mustRead reports whether the tables must be read. It is called before they are.
func (e *events) mustRead() bool { return e.dirty.Swap(false) || !e.watching.Load() }

// nftTables returns the possible tables of the nft variant.
func nftTables(v6 bool) (tables []nft.Table) {
	for _, name := range []string{"nat", "filter", "mangle", "raw", "security"} {
		tables = append(tables, nft.Table{Family: nfFamily(v6), Name: name})
	}
	return tables
}

func nfFamily(v6 bool) byte {
	return map[bool]byte{false: unix.NFPROTO_IPV4, true: unix.NFPROTO_IPV6}[v6]
}

// forceRead makes the next look read all tables of the nft variant. Any goroutine may call it.
func (f *family) forceRead() {
	if f.events != nil {
		f.events.dirty.Store(true)
	}
}

// Tool names the variant of iptables in use, as in "ip6tables-nft".
func (f *family) Tool() string { return f.tool.String() }

// WritesWholeTables reports whether a change of one rule is a change of its table.
func (f *family) WritesWholeTables() bool { return f.tool.Variant == xtables.Legacy }

// keepTableName begins the name of a table, one for each family, that does nothing and
// is invisible to the programs of iptables. It is of the family inet, whose chains can
// translate since kernel 5.2, so that it is not mistaken for one of nftables mode.
const keepTableName = "SVCP-KEEP"

// A keeper makes the kernel track and translate connections whatever others do to the rules.
type keeper struct {
	*family
	hooks *nft.Holder // nil: none

	mu     sync.Mutex  // guards making and removing the table
	made   atomic.Bool // the table was made
	failed atomic.Bool // making it failed, which was logged
}

// hold makes the kernel continue to track and translate connections when other
// processes flush all rules. Without any rule that needs that, it stops, and packets of
// connections reach the wrong socket, which resets them before our repair. The table does that
// while iptables flushes, and the hooks, until this process ends, while nft removes that table too.
func (k *keeper) hold(ctx context.Context) {
	err := k.lockAndMakeTable(ctx, func() bool { return true })
	if ctx.Err() == nil { // else the next sync does it
		k.logFailure(err)
		k.made.Store(err == nil)
	}
	k.hooks.HoldOrLog(k.log, "tool", k.Tool()) // the next resync tries again what fails
}

// remakeTable makes the table again if another process removed it. It changes
// nothing that a sync does, so a look may call it.
func (k *keeper) remakeTable(ctx context.Context) {
	if !k.made.Load() {
		return
	}
	if there, err := nft.Exists(k.table()); err != nil || there {
		return
	}
	if err := k.lockAndMakeTable(ctx, k.made.Load); ctx.Err() == nil {
		k.logFailure(err)
	}
}

// logFailure logs once that the kernel does not accept the table.
func (k *keeper) logFailure(err error) {
	if err != nil && !k.failed.Load() {
		k.log.Info("the kernel does not accept a table that keeps connections: they break when another process flushes all rules", "tool", k.Tool(), "err", err)
	}
	k.failed.Store(err != nil)
}

// lockAndMakeTable waits for running iptables-restores, and makes the table if it
// is still wanted then.
func (k *keeper) lockAndMakeTable(ctx context.Context, wanted func() bool) error {
	unlock, err := k.tool.LockWriter(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !wanted() {
		return nil
	}
	return nft.Keep(k.table(), "connections survive that all rules of iptables are flushed")
}

// removeTable removes the table. A look that waits for the lock meanwhile does not
// make it again.
func (k *keeper) removeTable(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made.Store(false)
	there, err := nft.Exists(k.table())
	there = there && err == nil // only for the report
	if err := nft.RemoveTable(k.table()); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	if there {
		proxier.Removed(ctx, "table inet "+k.table().Name)
	}
	return nil
}

func (k *keeper) removeHooks(ctx context.Context) error {
	there, err := nft.RemoveHooks(nfFamily(k.tool.IPv6))
	if err = errors.Join(k.hooks.Release(), err); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	if there {
		proxier.Removed(ctx, "table "+map[bool]string{false: "ip", true: "ip6"}[k.tool.IPv6]+" "+nft.HooksTable)
	}
	return nil
}

func (k *keeper) table() nft.Table {
	return nft.Table{Family: unix.NFPROTO_INET, Name: keepTableName + k.words.Suffix}
}
