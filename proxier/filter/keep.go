package filter

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// keepTable begins the name of a table, one for each family, that does nothing, and
// which programs of iptables do not see. It is of the family inet, whose chains
// translate since kernel 5.2, so that nobody takes it for one of nftables mode.
const keepTableName = "SVCP-KEEP"

// keep has the kernel go on tracking and translating connections when others flush
// all rules. Without a rule that needs it, it stops, and packets of connections then
// reach the wrong socket, which resets them: our repair comes too late for them.
func (k *Kernel) makeKeepTable(ctx context.Context) {
	err := k.lockAndMakeKeepTable(ctx, func() bool { return true })
	if ctx.Err() != nil {
		return // the next sync does it
	}
	k.logKeepFailure(err)
	k.keepMade.Store(err == nil)
}

// keepOn makes the table again that others have removed. It changes nothing that a
// sync does, so a look may do it.
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

// tellMortal tells once that the kernel does not take the table.
func (k *Kernel) logKeepFailure(err error) {
	if err != nil && !k.keepFailed.Load() {
		k.log.Info("connections will not survive that others flush all rules: the kernel does not take a table that keeps them", "tool", k.Tool(), "err", err)
	}
	k.keepFailed.Store(err != nil)
}

// tryToKeep takes its turn, for whoever writes rules by iptables-restore meanwhile,
// and makes the table if it is still wanted then.
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

// unkeep removes what keep has made, also that of earlier versions. A look that has
// waited meanwhile does not make it again.
func (k *Kernel) removeKeepTable(ctx context.Context) error {
	k.keepMu.Lock()
	defer k.keepMu.Unlock()
	k.keepMade.Store(false)
	there, err := nft.Exists(k.keepTable())
	there = there && err == nil // only to tell of
	earlier := nft.Table{Family: family(k.tool.IPv6), Name: keepTableName}
	if err := errors.Join(nft.RemoveTable(k.keepTable()), nft.RemoveTable(earlier)); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	if there {
		proxier.Removed(ctx, "table inet "+k.keepTable().Name)
	}
	return nil
}

func (k *Kernel) keepTable() nft.Table {
	return nft.Table{Family: unix.NFPROTO_INET, Name: keepTableName + k.words.suffix}
}
