package filter

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// keepTable begins the name of a table, one for each family, that does nothing, and
// which programs of iptables do not see. It is of the family inet, whose chains
// translate since kernel 5.2, so that nobody takes it for one of nftables mode.
const keepTable = "SVCP-KEEP"

// keep has the kernel go on tracking and translating connections when others flush
// all rules. Without a rule that needs it, it stops, and packets of connections then
// reach the wrong socket, which resets them: our repair comes too late for them.
func (k *Kernel) keep(ctx context.Context) {
	err := k.tryToKeep(ctx)
	if ctx.Err() != nil {
		return // the next sync does it
	}
	if err != nil && !k.mortal.Load() {
		k.log.Info("connections will not survive that others flush all rules: the kernel does not take a table that keeps them", "tool", k.Tool(), "err", err)
	}
	k.mortal.Store(err != nil)
	k.keeps.Store(err == nil)
}

// keepOn makes the table again that others have removed. It changes nothing that a
// sync does, so a look may do it.
func (k *Kernel) keepOn(ctx context.Context) {
	if !k.keeps.Load() {
		return
	}
	if there, err := nft.Exists(k.keepTable()); err == nil && !there {
		k.keep(ctx)
	}
}

// tryToKeep takes its turn, for whoever writes rules by iptables-restore meanwhile.
func (k *Kernel) tryToKeep(ctx context.Context) error {
	release, err := k.tool.Turn(ctx)
	if err != nil {
		return err
	}
	defer release()
	return nft.Keep(k.keepTable(), "connections survive that all rules of iptables are flushed")
}

// unkeep removes what keep has made.
func (k *Kernel) unkeep(ctx context.Context) error {
	there, err := nft.Exists(k.keepTable())
	there = there && err == nil // only to tell of
	if err := nft.RemoveTable(k.keepTable()); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	if there {
		proxier.Removed(ctx, "table inet "+k.keepTable().Name)
	}
	return nil
}

func (k *Kernel) keepTable() nft.Table {
	return nft.Table{Family: unix.NFPROTO_INET, Name: keepTable + k.words.suffix}
}
