package trace

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
)

// Remove removes the tables of traces that were killed. One that is owned goes with its
// process: it is in use, and stays. A kernel without nf_tables has none.
func Remove(ctx context.Context) error {
	c, err := nft.Dial()
	if err != nil {
		return nil
	}
	defer c.Close()
	list, err := c.TablesNamed(tablePrefix)
	if err != nil {
		return fmt.Errorf("looking for tables of traces: %w", err)
	}
	var errs []error
	for _, t := range list {
		if t.Owned {
			continue
		}
		b := nft.NewBatch(t.Table)
		b.DeleteTable()
		switch err := c.Commit(b); {
		case err == nil:
			proxier.Removed(ctx, fmt.Sprintf("table %s %s, of a trace", familyName(t.Family), t.Name))
		case !errors.Is(err, unix.ENOENT):
			errs = append(errs, fmt.Errorf("removing table %s of a trace: %w", t.Name, err))
		}
	}
	return errors.Join(errs...)
}
