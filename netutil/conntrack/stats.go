package conntrack

import (
	"context"
	"fmt"

	"github.com/ti-mo/conntrack"
)

// size returns how many entries this network namespace has, of every family.
func size(ctx context.Context) (entries uint32, err error) {
	err = withLibrary(ctx, func(c *conntrack.Conn) error {
		all, err := c.StatsGlobal()
		entries = all.Entries
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("counting the entries of connection tracking: %w", err)
	}
	return entries, nil
}

// InsertFailed returns how many packets that would have begun a connection the kernel has dropped since the network
// namespace began, as their entry could not be inserted (insert_failed of conntrack -S). As a rule every source port
// was taken that they could have been translated to. It also counts connections with too many others in one place of the
// table, and those that lost a race: two first packets of one socket at the same moment. A full table is not counted.
func InsertFailed(ctx context.Context) (total uint64, err error) {
	err = withLibrary(ctx, func(c *conntrack.Conn) error {
		processors, err := c.Stats()
		for _, p := range processors {
			total += uint64(p.InsertFailed)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reading the counters of connection tracking: %w", err)
	}
	return total, nil
}

// withLibrary calls ask with a connection of ti-mo/conntrack that the end of ctx closes: it takes no context.
func withLibrary(ctx context.Context, ask func(*conntrack.Conn) error) error {
	c, err := conntrack.Dial(nil)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	err = ask(c)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
