package filter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Cleanup removes what any run may have left of a family. It needs nothing of the host:
// what the host does not support cannot exist.
func Cleanup(ctx context.Context, fam policy.Family) error {
	conn, err := ipset.Dial()
	if ipset.IsUnsupported(err) {
		conn, err = &ipset.Conn{}, nil
	}
	if err != nil {
		return err
	}
	k := newKernel(fam, &xtables.Tool{IPv6: fam == policy.IPv6}, conn)
	return errors.Join(k.Cleanup(ctx), k.Close())
}

// Cleanup removes all our chains, jumps and sets, in every variant, and the keep table.
// Without iptables it cannot see any chains, and removes none.
func (k *Kernel) Cleanup(ctx context.Context) error {
	k.mirror.forget()
	tools, err := xtables.Installed(ctx, k.tool.IPv6)
	if errors.Is(err, exec.ErrNotFound) {
		err = nil
	}
	errs := []error{err}
	for _, t := range tools {
		left, err := k.purge(ctx, t)
		errs = append(errs, err)
		for _, l := range left {
			errs = append(errs, fmt.Errorf("%s: %s", t, l))
		}
	}
	errs = append(errs, k.keep.removeTable(ctx), k.keep.removeHooks(ctx), k.sets.purge(ctx, len(tools) > 0))
	return errors.Join(errs...)
}

// purgeTries is after how many readings, each while others commit, purge trusts the last one.
const purgeTries = 10

// purge removes all our chains, and the jumps to them. It returns the chains that stay,
// empty, because foreign chains jump to them. A failure is retried while each try leaves
// less: beside a foreign writer a part may have been committed, and cannot be removed twice.
// As chains may be missing in what is read then, another reading has to find none.
func (f *family) purge(ctx context.Context, tool *xtables.Tool) (left []string, err error) {
	chains, before := 0, math.MaxInt
	for try := 1; ; try++ {
		tables, once, err := readAtOnce(ctx, tool)
		if errors.Is(err, errors.ErrUnsupported) {
			return nil, nil // a kernel without the variant has no chains in it
		}
		if err != nil {
			return nil, err
		}
		n, all := countChains(tables)
		chains = max(chains, n)
		s, left := xtables.Purge(tables)
		err = f.restore(ctx, tool, s)
		switch {
		case err == nil && (once || try > 1 && n == len(left) || try >= purgeTries):
			proxier.RemovedSome(ctx, "chains "+layout.Prefix+"* of "+tool.String(), chains-len(left))
			return left, nil
		case err != nil && (ctx.Err() != nil || all >= before && (once || try >= purgeTries)):
			return left, err
		case err != nil:
			before = all
		}
	}
}

// countChains returns how many chains of ours there are, and with the jumps to them.
func countChains(tables map[string]*xtables.Table) (chains, all int) {
	for _, tab := range tables {
		chains += len(tab.Chains)
		for _, jumps := range tab.Jumps {
			all += len(jumps)
		}
	}
	return chains, all + chains
}

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
