package nftables

import (
	"context"
	"errors"
	"fmt"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
)

// holdHooks keeps the hooks of connection tracking and translation registered while other
// processes remove our table. It logs a failure once; the next repair tries again.
func (b *Backend) holdHooks() {
	err := b.hooks.Hold()
	if err != nil && !b.hooksFailed.Load() {
		b.flowtableState.Log.Info("cannot hold the hooks of connection tracking: connections break when another process flushes all rules",
			"family", b.Fam, "old_kernel", nft.IsUnknownFlag(err), "err", err)
	}
	b.hooksFailed.Store(err != nil)
}

func (b *Backend) removeHooks(ctx context.Context) error {
	there, err := nft.RemoveHooks(b.Family)
	if err = errors.Join(b.hooks.Release(), err); err != nil {
		return fmt.Errorf("nftables, %s: %w", b.Fam, err)
	}
	if there {
		proxier.Removed(ctx, "table "+b.Keyword+" "+nft.HooksTable)
	}
	return nil
}
