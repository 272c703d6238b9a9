package xtables

import (
	"context"
	"fmt"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/awaited"
)

// writerPatience is how long a writer waits for another one of this process. 10,000 chains take 1 s.
var writerPatience = 3 * time.Second

// nftWriter is a lock for writing through the nft variant. When another writer, even of
// the other family, commits between its listing and its commit, iptables-restore 1.8.9
// tries again, and fails with "File exists" for chains that it is about to create itself.
var nftWriter turn

// A turn is held by one writer at a time. One that holds it for too long loses it: a program
// that hangs does not commit, and must not keep the other family from writing.
type turn struct {
	mu    sync.Mutex
	ended chan struct{} // closed when the present writer ends, or loses its turn; nil: there is none
}

// acquire waits for the turn, no longer than patience after each change of the writer.
func (t *turn) acquire(ctx context.Context, patience time.Duration) (release func(), err error) {
	for {
		t.mu.Lock()
		other := t.ended
		if other == nil {
			defer t.mu.Unlock()
			return t.begin(), nil
		}
		t.mu.Unlock()
		timer := time.NewTimer(patience)
		select {
		case <-other:
		case <-timer.C:
			t.end(other)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		timer.Stop()
		if err != nil {
			return nil, err
		}
	}
}

// begin begins the turn of a writer. The caller holds t.mu.
func (t *turn) begin() (release func()) {
	mine := make(chan struct{})
	t.ended = mine
	return func() { t.end(mine) }
}

// end ends the turn of a writer, unless it is over.
func (t *turn) end(writer chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended == writer {
		close(writer)
		t.ended = nil
	}
}

// LockWriter waits for other writers of this process, as Restore does, and locks them
// out until unlock, or until one has waited for writerPatience.
func (t *Tool) LockWriter(ctx context.Context) (unlock func(), err error) {
	if t.Variant != NFT {
		return func() {}, nil
	}
	defer awaited.Begin(ctx, "the other family", nil)()
	unlock, err = nftWriter.acquire(ctx, writerPatience)
	if err != nil {
		return nil, fmt.Errorf("writing rules: waiting for the other family: %w", err)
	}
	return unlock, nil
}
