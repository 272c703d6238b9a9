package filter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"svcproxy/netutil/nft"
	"svcproxy/netutil/xtables"
	"svcproxy/proxier"
)

// loudScript is from how many bytes on our own changes are not listened to: those
// that come back to a monitor as events are some ten times as long.
const unmonitoredScript = 256 << 10

// errDisturbed says that others commit to nf_tables, so that programs of the nft
// variant, which begin again then, do not come to an end, or fail: iptables-restore
// 1.8.9 says "File exists" of chains that it means to make itself.
var errContended = errors.New("others kept changing rules meanwhile")

const (
	// patience is how long a program may be disturbed. 1,000 services take 0.1 s.
	contentionTimeout = 3 * time.Second

	firstChunk = 256 // chains, of some 10 rules each: 50 ms
	minChunk   = 4
	chunkTries = 6 // of a piece, before all become smaller
)

// restore runs a script: whole or, where others do not let that be, in pieces that
// get smaller until they come through. An error leaves some of it done.
func (k *Kernel) restore(ctx context.Context, tool *xtables.Tool, s *xtables.Script) error {
	if tool.Variant != xtables.NFT || s.Empty() {
		return tool.Restore(ctx, s)
	}
	return k.restoreChunks(ctx, tool, s)
}

// restorePieces runs a script that may be disturbed.
func (k *Kernel) restoreChunks(ctx context.Context, tool *xtables.Tool, s *xtables.Script) error {
	err := k.attempt(ctx, tool, s, contentionTimeout)
	if !errors.Is(err, errContended) {
		return err
	}
	size := firstChunk
	for chunks := s.Chunks(size, Prefix); len(chunks) > 0; {
		tries := 0
		for err = errContended; errors.Is(err, errContended) && tries < chunkTries; tries++ {
			err = k.attempt(ctx, tool, chunks[0], contentionTimeout/chunkTries)
		}
		switch {
		case err == nil:
			chunks = chunks[1:]
			proxier.Progressed(ctx)
		case errors.Is(err, errContended) && size > minChunk:
			size /= 4
			chunks = splitChunks(chunks, size)
		default:
			return err
		}
	}
	return nil
}

// cut makes smaller pieces.
func splitChunks(pieces []*xtables.Script, size int) (smaller []*xtables.Script) {
	for _, p := range pieces {
		smaller = append(smaller, p.Chunks(size, Prefix)...)
	}
	return smaller
}

// attempt runs a script once, in its turn. The error is errDisturbed where it fails, or does not
// end, while others commit.
func (k *Kernel) attempt(ctx context.Context, tool *xtables.Tool, s *xtables.Script, timeout time.Duration) error {
	unlock, err := tool.LockWriter(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	proxier.Progressed(ctx)
	run := func() error {
		return cancelOnContention(ctx, s.Tables(), timeout, func(ctx context.Context) error { return tool.RestoreLocked(ctx, s) })
	}
	if k.events != nil && s.Len() >= unmonitoredScript { // only now: who waits for others to be unheard waits without a context
		err = k.events.conn.Unheard(s.Tables(), run)
	} else {
		err = run()
	}
	if errors.Is(err, errContended) { // it may have committed before it was killed, and what is written again links twice
		k.forceRead()
	}
	return err
}

// undisturbed calls do, which itself commits up to so many times. It ends the
// context of do, and returns errDisturbed, where others commit for longer than patience.
func cancelOnContention(ctx context.Context, commits int, timeout time.Duration, do func(context.Context) error) error {
	conn, err := nft.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	before, err := conn.Generation()
	if err != nil {
		return err
	}
	foreign := func() bool {
		now, err := conn.Generation()
		return err == nil && now.ID-before.ID > uint32(commits)
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-ended:
			return
		case <-time.After(timeout):
		}
		for !foreign() {
			select {
			case <-ended:
				return
			case <-time.After(timeout / 10):
			}
		}
		cancel(errContended)
	}()
	err = do(inner)
	close(ended)
	<-watched
	if err != nil && ctx.Err() == nil && !errors.Is(err, errContended) && foreign() {
		return fmt.Errorf("%w: %w", errContended, err)
	}
	return err
}
