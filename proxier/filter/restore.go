package filter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

// unmonitoredScript is the size in bytes from which on the events of our own changes
// are suppressed: they are some ten times as long as the script.
const unmonitoredScript = 256 << 10

// errContended: other processes commit to nf_tables, so that programs of the nft
// variant, which start over then, do not finish, or fail: iptables-restore 1.8.9
// with "File exists" for chains that it is about to create itself.
var errContended = errors.New("other processes kept changing the rules")

const (
	// contentionTimeout is how long a program may start over. 1,000 services take 0.1 s.
	contentionTimeout = 3 * time.Second

	firstChunk = 256 // chains, of some 10 rules each: 50 ms
	minChunk   = 4
	chunkTries = 6 // of a chunk, before all become smaller
)

// restore runs a script: whole or, if other processes keep interfering, in chunks that
// get smaller until they succeed. So does a large script for a table with rules that
// iptables cannot print: it begins with a listing. After an error part of it may be done.
func (f *family) restore(ctx context.Context, tool *xtables.Tool, s *xtables.Script) error {
	if tool.Variant != xtables.NFT || s.Empty() {
		return tool.Restore(ctx, s)
	}
	err := f.attempt(ctx, tool, s, contentionTimeout)
	if !errors.Is(err, errContended) && !xtables.IsUnprintable(err) {
		return err
	}
	size := firstChunk
	for chunks := s.Chunks(size, layout.Prefix); len(chunks) > 0; {
		tries := 0
		for err = errContended; errors.Is(err, errContended) && tries < chunkTries; tries++ {
			err = f.attempt(ctx, tool, chunks[0], contentionTimeout/chunkTries)
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

// splitChunks splits scripts into smaller ones.
func splitChunks(chunks []*xtables.Script, size int) (smaller []*xtables.Script) {
	for _, c := range chunks {
		smaller = append(smaller, c.Chunks(size, layout.Prefix)...)
	}
	return smaller
}

// attempt runs a script once, holding the writer's lock. The error is errContended if it
// fails, or does not finish, while other processes commit.
func (f *family) attempt(ctx context.Context, tool *xtables.Tool, s *xtables.Script, timeout time.Duration) error {
	unlock, err := tool.LockWriter(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	proxier.Progressed(ctx)
	run := func() error {
		return cancelOnContention(ctx, s.Tables(), timeout, func(ctx context.Context) error { return tool.RestoreLocked(ctx, s) })
	}
	if f.events != nil && s.Len() >= unmonitoredScript { // with the lock: waiting for another suppression ignores the context
		err = f.events.conn.Unheard(s.Tables(), run)
	} else {
		err = run()
	}
	if errors.Is(err, errContended) { // it may have committed before it was killed, and writing it again adds jumps twice
		f.forceRead()
	}
	return err
}

// cancelOnContention calls do, which itself commits up to so many times. If other
// processes commit and do takes longer than timeout, it cancels do's context and
// returns errContended.
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
