package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// install adds a table for each family that matters.
func (w *watcher) install() error {
	for _, fam := range w.Names.Families {
		if f := w.Filter; f.Destination.IsValid() && policy.FamilyOf(f.Destination) != fam || f.Source.IsValid() && policy.FamilyOf(f.Source.Addr()) != fam {
			continue
		}
		r := &rules{dialect: dialects[fam], group: w.log.Group, chains: w.Chains}
		if loud := chainsLoud(fam); w.Chains && loud != "" {
			r.chains = false
			w.Note(loud)
		}
		if err := w.add(r); err != nil {
			return fmt.Errorf("adding the table of a trace, %s: %w", fam, err)
		}
		w.tables = append(w.tables, r)
	}
	if len(w.tables) == 0 {
		return errors.New("nothing to trace: this address family is not served")
	}
	return nil
}

// nameTries is how many tables of one process id there may be: of other pid namespaces,
// or left where process ids repeat.
const nameTries = 16

// add adds the table of one family, owned where the kernel knows that. A name is taken by a
// table of a socket: EPERM, or of none: EEXIST.
func (w *watcher) add(r *rules) error {
	for i, owned := 0, true; ; {
		r.table = nft.Table{Family: r.number, Name: fmt.Sprint(tablePrefix, os.Getpid())}
		if i > 0 {
			r.table.Name += fmt.Sprint("-", i)
		}
		r.batch = nft.NewBatch(r.table)
		r.fill(w.Filter, w.Names, owned)
		if r.err != nil {
			return r.err
		}
		err := w.conn.Commit(r.batch)
		switch {
		case (errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EPERM)) && i < nameTries:
			i++
		case owned && nft.IsUnknownFlag(err):
			owned = false
		default:
			return err
		}
	}
}

// remove removes the tables. One that is gone is no error.
func (w *watcher) remove() error {
	var errs []error
	for _, r := range w.tables {
		if err := deleteTable(w.conn, r.table); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("removing table %s: %w", r.table.Name, err))
		}
	}
	w.tables = nil
	return errors.Join(errs...)
}

// count notes how many packets were left out.
func (w *watcher) count() error {
	var out uint64
	for _, r := range w.tables {
		counts, err := w.conn.Counters(r.table, selectChain)
		if err != nil {
			return err
		}
		if len(counts) != 2 {
			return fmt.Errorf("table %s is gone: another program removed it", r.table.Name)
		}
		out += leftOut(counts[0], counts[1])
	}
	if out > w.left {
		w.Note(fmt.Sprintf("%d packets were left out: more than %d a second", out-w.left, perSecond))
		w.left = out
	}
	return nil
}

// leftOut returns how many of all packets were not chosen. The kernel reads one counter after the other: of packets that
// come in between, only the second knows.
func leftOut(all, chosen uint64) uint64 { return all - min(all, chosen) }

// chainsLoud returns why packets must not show the chains that they meet in a family;
// empty: they may. Iptables-legacy writes each step of such a packet to the log of the
// kernel, where one is bound.
func chainsLoud(fam policy.Family) string {
	if len(xtables.LegacyTables(fam == policy.IPv6)) == 0 {
		return ""
	}
	logger, err := os.ReadFile(fmt.Sprintf("/proc/sys/net/netfilter/nf_log/%d", dialects[fam].number))
	if err == nil && string(bytes.TrimSpace(logger)) == "NONE" {
		return ""
	}
	return "chains are not shown: iptables-legacy would write each step to the log of the kernel"
}

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
		switch err := deleteTable(c, t.Table); {
		case err == nil:
			proxier.Removed(ctx, fmt.Sprintf("table %s %s, of a trace", familyName(t.Family), t.Name))
		case !errors.Is(err, unix.ENOENT):
			errs = append(errs, fmt.Errorf("removing table %s of a trace: %w", t.Name, err))
		}
	}
	return errors.Join(errs...)
}

func deleteTable(c *nft.Conn, t nft.Table) error {
	b := nft.NewBatch(t)
	b.DeleteTable()
	return c.Commit(b)
}

// familyName returns the name of a family by its number in netlink.
func familyName(number byte) string {
	name, known := map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}[number]
	if !known {
		return fmt.Sprint("family ", number)
	}
	return name
}
