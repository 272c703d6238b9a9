package filter

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	return xtables.Choose(ctx, v6, readAll)
}
