package filter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"svcproxy/netutil/ipset"
	"svcproxy/netutil/xtables"
	"svcproxy/proxier"
)

// A Kernel is the chains and sets of one family in the network namespace that it
// is used in. Its methods are called from one goroutine at a time.
//
// Sets get members before the rules that need them are written, and lose them
// after: a packet never meets a rule whose set is not ready. All changed chains
// of a table are written at once.
type Kernel struct {
	words dialect
	tool  *xtables.Tool
	stale []*xtables.Tool // other variants that hold chains of ours
	sets  *ipset.Conn

	written sums // what we know the kernel to hold; nil: nothing
}

// Open finds out which variant of iptables the host uses, and checks that the
// kernel has ip sets.
func Open(ctx context.Context, fam proxier.Family) (*Kernel, error) {
	choice, err := xtables.Choose(ctx, fam == proxier.IPv6, Prefix)
	if err != nil {
		return nil, err
	}
	return open(ctx, fam, choice)
}

func open(ctx context.Context, fam proxier.Family, choice *xtables.Choice) (*Kernel, error) {
	conn, err := ipset.Dial()
	if err != nil {
		return nil, fmt.Errorf("ip sets: %w", err)
	}
	for _, s := range sharedSets {
		if err := conn.Probe(ctx, s.typ, fam == proxier.IPv6); err != nil {
			return nil, errors.Join(fmt.Errorf("ip sets of %s: %w", fam, err), conn.Close())
		}
	}
	return &Kernel{words: dialects[fam], tool: choice.Use, stale: choice.Others, sets: conn}, nil
}

// Close gives up the socket. The kernel keeps what it holds.
func (k *Kernel) Close() error { return k.sets.Close() }

// Tool names the variant of iptables in use, as in "ip6tables-nft".
func (k *Kernel) Tool() string { return k.tool.String() }

// SetMessages counts what was said to the kernel's ip sets so far.
func (k *Kernel) SetMessages() int { return k.sets.Messages }

// Look reads what the kernel holds of ours and the tables that c needs.
func (k *Kernel) Look(ctx context.Context, c Content) (*Held, error) {
	tables, err := k.tool.ReadAll(ctx, Prefix)
	if err != nil {
		return nil, err
	}
	h := &Held{tables: map[string]*xtables.Table{}}
	for name, tab := range tables {
		if len(tab.Chains)+len(tab.Jumps) > 0 { // another mode may have left them
			h.tables[name] = tab
		}
	}
	for _, name := range c.Tables() {
		if h.tables[name] = tables[name]; h.tables[name] == nil {
			if h.tables[name], err = k.tool.Read(ctx, name, Prefix); err != nil {
				return nil, err
			}
		}
	}
	h.sets, err = k.ourSets(ctx)
	return h, err
}

// ourSets returns the sets of our prefix and family. Where the name does not say
// the family, the set does.
func (k *Kernel) ourSets(ctx context.Context) (map[string]*ipset.Listing, error) {
	names, err := k.sets.Names(ctx)
	if err != nil {
		return nil, err
	}
	sets := map[string]*ipset.Listing{}
	for _, name := range names {
		if !strings.HasPrefix(name, Prefix) || strings.HasSuffix(name, k.words.otherSuffix()) {
			continue
		}
		l, err := k.sets.List(ctx, name)
		switch {
		case errors.Is(err, ipset.ErrNotExist): // the other family was quicker
		case err != nil:
			return nil, err
		case strings.HasSuffix(name, k.words.suffix) || l.IPv6 == k.tool.IPv6:
			sets[name] = l
		}
	}
	return sets, nil
}

// compare returns what is missing from h.
func (k *Kernel) compare(h *Held, c Content, st *proxier.State) *difference {
	d := &difference{tool: xtables.Base(k.tool.IPv6)}
	have := sums{}
	for name, tab := range h.tables {
		have[name] = tab.Chains
	}
	d.compareChains(have, c.Chains)
	d.compareJumps(h.tables, c.Jumps())
	d.compareSets(h.sets, c.Sets(st), k.tool.IPv6)
	return d
}

// Changes says what Mend would change.
func (k *Kernel) Changes(h *Held, c Content, st *proxier.State) []proxier.Change {
	return k.compare(h, c, st).changes
}

// Mend makes the kernel, which holds h, hold c. What the other variant holds of
// ours goes last, so that packets are served all the time.
func (k *Kernel) Mend(ctx context.Context, h *Held, c Content, st *proxier.State) error {
	k.written = nil
	d := k.compare(h, c, st)
	if len(d.odd) > 0 {
		if err := k.removeOdd(ctx, d.odd); err != nil {
			return err
		}
		h, err := k.Look(ctx, c)
		if err != nil {
			return err
		}
		d = k.compare(h, c, st)
	}
	for _, s := range d.make {
		if err := k.sets.Create(ctx, s); err != nil {
			return err
		}
	}
	if err := k.write(ctx, d); err != nil {
		return err
	}
	if err := k.purgeStale(ctx); err != nil {
		return err
	}
	for _, name := range d.unknown {
		if err := k.destroy(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// write does the part of a difference that all syncs share.
func (k *Kernel) write(ctx context.Context, d *difference) error {
	k.written = nil
	for name, entries := range d.gained {
		if err := k.add(ctx, name, entries); err != nil {
			return err
		}
	}
	if err := k.tool.Restore(ctx, &d.script); err != nil {
		return err
	}
	for name, entries := range d.lost {
		if err := k.sets.Delete(ctx, name, entries); err != nil {
			return err
		}
	}
	k.written = d.want
	return nil
}

// Knows tells whether Apply can work: the last Mend or Apply succeeded.
func (k *Kernel) Knows() bool { return k.written != nil }

// Apply makes the kernel follow changes of c since the last Mend or Apply, without looking at it.
func (k *Kernel) Apply(ctx context.Context, ch *Changes, c Content) error {
	d := &difference{gained: ch.Gained, lost: ch.Lost, want: k.written}
	if ch.All {
		d.compareChains(k.written, c.Chains)
		return k.write(ctx, d)
	}
	fresh := map[string]xtables.Sum{}
	nat := k.written["nat"]
	for name, rules := range ch.Chains {
		was, exists := nat[name]
		switch sum := xtables.SumOf(rules); {
		case rules == nil && exists:
			d.script.Remove("nat", name)
		case rules != nil && (!exists || was != sum):
			d.script.Set("nat", name, rules)
			fresh[name] = sum
		}
	}
	if err := k.write(ctx, d); err != nil {
		return err
	}
	for name, rules := range ch.Chains {
		if rules == nil {
			delete(nat, name)
		}
	}
	for name, sum := range fresh {
		nat[name] = sum
	}
	return nil
}

// add adds members to a set, and makes it larger where they do not fit.
func (k *Kernel) add(ctx context.Context, name string, entries []ipset.Entry) error {
	err := k.sets.Add(ctx, name, entries)
	if !errors.Is(err, ipset.ErrFull) {
		return err
	}
	have, err := k.sets.List(ctx, name)
	if err != nil {
		return err
	}
	next := have.Set
	next.Name = k.words.set(grownSet)
	next.MaxElem = max(2*have.MaxElem, roomFor(len(have.Entries)+len(entries)))
	if err := k.sets.Destroy(ctx, next.Name); err != nil { // left by a run that ended here
		return err
	}
	if err := k.sets.Create(ctx, next); err != nil {
		return err
	}
	if err := k.sets.Add(ctx, next.Name, append(have.Entries, entries...)); err != nil {
		return err
	}
	if err := k.sets.Swap(ctx, name, next.Name); err != nil {
		return err
	}
	return k.sets.Destroy(ctx, next.Name)
}

// busyFor is how long a set may stay in use after the last rule with it has gone:
// nf_tables frees rules behind the back of those who remove them.
const busyFor = 5 * time.Second

func (k *Kernel) destroy(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, busyFor)
	defer cancel()
	for {
		err := k.sets.Destroy(ctx, name)
		if !errors.Is(err, ipset.ErrBusy) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// removeOdd removes sets of our names that are not what we make. Rules that use
// them must go first, and so all of ours do.
func (k *Kernel) removeOdd(ctx context.Context, names []string) error {
	if err := k.tool.Purge(ctx, Prefix); err != nil {
		return err
	}
	for _, name := range names {
		if err := k.destroy(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kernel) purgeStale(ctx context.Context) error {
	for len(k.stale) > 0 {
		if err := k.stale[0].Purge(ctx, Prefix); err != nil {
			return err
		}
		k.stale = k.stale[1:]
	}
	return nil
}

// Cleanup removes all chains, jumps and sets of ours, whichever variant they are in.
func (k *Kernel) Cleanup(ctx context.Context) error {
	k.written = nil
	tools, err := xtables.Installed(ctx, k.tool.IPv6)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range tools {
		errs = append(errs, t.Purge(ctx, Prefix))
	}
	sets, err := k.ourSets(ctx)
	errs = append(errs, err)
	for name := range sets {
		errs = append(errs, k.destroy(ctx, name))
	}
	return errors.Join(errs...)
}
