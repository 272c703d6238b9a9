package filter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

const (
	smallChunk = 32  // chains, of some 10 rules each, to read at once while other processes keep writing: 10 ms
	largeChunk = 128 // the same while they do not: 10,000 services take 1.7 times as long as whole
	readTries  = 20  // for such a chunk, whose chains may be removed meanwhile
)

// readAll returns the existing tables of a tool, by name: whole or, if other processes
// keep interfering or wrote rules that iptables cannot print, in chunks, each as it was at
// some time since the call.
func readAll(ctx context.Context, tool *xtables.Tool) (tables map[string]*xtables.Table, err error) {
	if tool.Variant != xtables.NFT {
		return tool.ReadAll(ctx, layout.Prefix)
	}
	conn, err := nft.Dial()
	if err != nil {
		return tool.ReadAll(ctx, layout.Prefix) // reports a kernel without nf_tables
	}
	defer conn.Close()
	err = cancelOnContention(ctx, 0, contentionTimeout, func(ctx context.Context) (err error) {
		tables, err = tool.ReadAll(ctx, layout.Prefix)
		return err
	})
	size := largeChunk
	switch {
	case errors.Is(err, errContended):
		size, tables = smallChunk, map[string]*xtables.Table{}
	case xtables.IsUnprintable(err):
		tables = map[string]*xtables.Table{}
	case err != nil:
		return nil, err
	}
	return tables, readUnprinted(ctx, tool, conn, size, tables)
}

// readUnprinted adds the existing tables that are not among tables: iptables-save leaves
// out a table, without an error, that has a rule which it cannot print.
func readUnprinted(ctx context.Context, tool *xtables.Tool, conn *nft.Conn, size int, tables map[string]*xtables.Table) error {
	for _, t := range nftTables(tool.IPv6) {
		if tables[t.Name] != nil {
			continue
		}
		tab, err := readTable(ctx, tool, conn, t, size)
		if err != nil {
			return fmt.Errorf("reading table %s in chunks: %w", t.Name, err)
		}
		if tab != nil {
			tables[t.Name] = tab
		}
	}
	return nil
}

// readAtOnce is readAll, and reports whether what it read is of one time. Otherwise some
// chains or rules may be missing that nobody has removed, see nft.Conn.FinishedGeneration.
func readAtOnce(ctx context.Context, tool *xtables.Tool) (tables map[string]*xtables.Table, once bool, err error) {
	if tool.Variant != xtables.NFT { // the kernel returns a table in one piece
		tables, err = tool.ReadAll(ctx, layout.Prefix)
		return tables, true, err
	}
	conn, err := nft.Dial()
	if err != nil {
		tables, err = tool.ReadAll(ctx, layout.Prefix) // reports a kernel without nf_tables
		return tables, false, err
	}
	defer conn.Close()
	before, err := conn.FinishedGeneration()
	if err != nil {
		return nil, false, err
	}
	if tables, err = readAll(ctx, tool); err != nil {
		return nil, false, err
	}
	after, err := conn.Generation()
	return tables, before.ID == after.ID, err
}

// readTable reads a table in chunks of so many chains; nil: it does not exist.
func readTable(ctx context.Context, tool *xtables.Tool, conn *nft.Conn, t nft.Table, size int) (*xtables.Table, error) {
	names, err := conn.Chains(t)
	if err != nil || names == nil {
		return nil, err
	}
	tab := xtables.NewBuiltIn(t.Name)
	for chunk := range slices.Chunk(names, size) {
		part, err := readChunk(ctx, tool, conn, t, chunk)
		if err != nil {
			return nil, err
		}
		tab.Merge(part)
		proxier.Progressed(ctx)
	}
	return tab, nil
}

// readChunk reads some chains of a table, without those that are removed meanwhile.
func readChunk(ctx context.Context, tool *xtables.Tool, conn *nft.Conn, t nft.Table, names []string) (part *xtables.Table, err error) {
	for range readTries {
		if part, err = tool.ReadChains(ctx, t.Name, names, layout.Prefix); err == nil || ctx.Err() != nil {
			return part, err
		}
		now, errNow := conn.Chains(t)
		if errNow != nil {
			return nil, errNow
		}
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			_, there := slices.BinarySearch(now, name)
			return !there
		})
		if len(names) == 0 {
			return xtables.NewTable(), nil
		}
	}
	return nil, err
}

// Choose returns which variant of iptables this host uses. It finishes even while
// other processes write rules all the time.
func Choose(ctx context.Context, v6 bool) (*xtables.Choice, error) {
	return xtables.Choose(ctx, v6, layout.Prefix, readAll)
}

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
			var smaller []*xtables.Script
			for _, c := range chunks {
				smaller = append(smaller, c.Chunks(size, layout.Prefix)...)
			}
			chunks = smaller
		default:
			return err
		}
	}
	return nil
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

// cancelOnContention calls do, which itself commits up to so many times. If do takes longer than timeout, and other
// processes commit after that, so that it begins again, it cancels do's context and returns errContended.
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
		begun, err := conn.Generation()
		for {
			select {
			case <-ended:
				return
			case <-time.After(timeout / 10):
			}
			if now, errNow := conn.Generation(); err == nil && errNow == nil && now.ID-begun.ID > uint32(commits) {
				cancel(errContended)
				return
			}
		}
	}()
	err = do(inner)
	close(ended)
	<-watched
	if err != nil && ctx.Err() == nil && !errors.Is(err, errContended) && foreign() {
		return fmt.Errorf("%w: %w", errContended, err)
	}
	return err
}
