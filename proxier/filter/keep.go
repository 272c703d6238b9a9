package filter

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
)

// keepTableName begins the name of a table, one for each family, that does nothing and
// is invisible to the programs of iptables. It is of the family inet, whose chains can
// translate since kernel 5.2, so that it is not mistaken for one of nftables mode.
const keepTableName = "SVCP-KEEP"

// makeKeepTable makes the kernel continue to track and translate connections when other
// processes flush all rules. Without any rule that needs that, it stops, and packets of
// connections reach the wrong socket, which resets them before our repair.
func (k *Kernel) makeKeepTable(ctx context.Context) {
	err := k.lockAndMakeKeepTable(ctx, func() bool { return true })
	if ctx.Err() != nil {
		return // the next sync does it
	}
	k.logKeepFailure(err)
	k.keepMade.Store(err == nil)
}

// remakeKeepTable makes the table again if another process removed it. It changes
// nothing that a sync does, so a look may call it.
func (k *Kernel) remakeKeepTable(ctx context.Context) {
	if !k.keepMade.Load() {
		return
	}
	if there, err := nft.Exists(k.keepTable()); err != nil || there {
		return
	}
	if err := k.lockAndMakeKeepTable(ctx, k.keepMade.Load); ctx.Err() == nil {
		k.logKeepFailure(err)
	}
}

// logKeepFailure logs once that the kernel does not accept the table.
func (k *Kernel) logKeepFailure(err error) {
	if err != nil && !k.keepFailed.Load() {
		k.log.Info("the kernel does not accept a table that keeps connections: they break when another process flushes all rules", "tool", k.Tool(), "err", err)
	}
	k.keepFailed.Store(err != nil)
}

// lockAndMakeKeepTable waits for running iptables-restores, and makes the table if it
// is still wanted then.
func (k *Kernel) lockAndMakeKeepTable(ctx context.Context, wanted func() bool) error {
	unlock, err := k.tool.LockWriter(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	k.keepMu.Lock()
	defer k.keepMu.Unlock()
	if !wanted() {
		return nil
	}
	return nft.Keep(k.keepTable(), "connections survive that all rules of iptables are flushed")
}

// removeKeepTable removes the table. A look that waits for the lock meanwhile does not
// make it again.
func (k *Kernel) removeKeepTable(ctx context.Context) error {
	k.keepMu.Lock()
	defer k.keepMu.Unlock()
	k.keepMade.Store(false)
	there, err := nft.Exists(k.keepTable())
	there = there && err == nil // only for the report
	if err := nft.RemoveTable(k.keepTable()); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	if there {
		proxier.Removed(ctx, "table inet "+k.keepTable().Name)
	}
	return nil
}

// holdHooks does what the keep table does while nft removes all rules, that table too, until
// this process ends. It logs a failure once; the next resync tries again.
func (k *Kernel) holdHooks() {
	err := k.hooks.Hold()
	if err != nil && !k.hooksFailed {
		k.log.Info("cannot hold the hooks of connection tracking: connections break when another process flushes all rules",
			"tool", k.Tool(), "old_kernel", nft.IsUnknownFlag(err), "err", err)
	}
	k.hooksFailed = err != nil
}

func (k *Kernel) removeHooks(ctx context.Context) error {
	there, err := nft.RemoveHooks(family(k.tool.IPv6))
	if err = errors.Join(k.hooks.Release(), err); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	if there {
		proxier.Removed(ctx, "table "+map[bool]string{false: "ip", true: "ip6"}[k.tool.IPv6]+" "+nft.HooksTable)
	}
	return nil
}

func (k *Kernel) keepTable() nft.Table {
	return nft.Table{Family: unix.NFPROTO_INET, Name: keepTableName + k.words.Suffix}
}
