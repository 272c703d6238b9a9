package xtables

import (
	"context"
	"fmt"
	"time"

	"svcproxy.dev/svcproxy/internal/awaited"
)

// writerPatience is how long a writer waits for another one of this process. 10,000 chains take 1 s.
var writerPatience = 3 * time.Second

// nftWriter is a lock for writing through the nft variant. When another writer, even of
// the other family, commits between its listing and its commit, iptables-restore 1.8.9
// tries again, and fails with "File exists" for chains that it is about to create itself.
var nftWriter = make(chan struct{}, 1)

// LockWriter waits for other writers of this process, as Restore does, and locks them
// out until unlock. It goes on without the lock once it has waited for writerPatience: a program
// that hangs does not commit, and must not keep the other family from writing.
func (t *Tool) LockWriter(ctx context.Context) (unlock func(), err error) {
	if t.Variant != NFT {
		return func() {}, nil
	}
	defer awaited.Begin(ctx, "the other family", nil)()
	unlock = func() { <-nftWriter }
	select {
	case nftWriter <- struct{}{}: // also after the end of ctx
		return unlock, nil
	default:
	}
	timer := time.NewTimer(writerPatience)
	defer timer.Stop()
	select {
	case nftWriter <- struct{}{}:
		return unlock, nil
	case <-timer.C:
		return func() {}, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("writing rules: waiting for the other family: %w", context.Cause(ctx))
	}
}
