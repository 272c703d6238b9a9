package filter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Kernel manages the chains and sets of one family in the network namespace that it
// is used in. One goroutine at a time may call its methods, except for Look, Damaged,
// Reported and Watch, which run beside the others, in any.
//
// Sets get members before the rules that need them are written, and lose them
// after: a packet never meets a rule whose set is not ready. All changed chains
// of a table are written at once.
type Kernel struct {
	words          layout.Dialect
	tool           *xtables.Tool
	stale          []*xtables.Tool // other variants with chains of ours
	sets           *ipset.Conn
	inUse          map[string]bool // obsolete sets that foreign rules use
	warnedUnmarked bool            // that connections cannot be marked
	marked         bool            // those of before have been, if FORWARD is to accept them
	log            *slog.Logger

	mirror mirror
	order  order

	looking        chan struct{} // holds a value while a Look runs
	looksSinceRead int           // how many looks did not read the tables
	lastState      tableState    // of the tables when they were read; zero: read them
	lookSets       *ipset.Conn   // of Look
	events         *events       // of the nft variant; nil: none

	hooks       *nft.Holder // nil: none
	hooksFailed bool        // holding them failed, which was logged

	keepMu     sync.Mutex  // guards making and removing the keep table
	keepMade   atomic.Bool // the keep table was made
	keepFailed atomic.Bool // making it failed, which was logged
}

// Choose returns which variant of iptables this host uses. It finishes even while
// other processes write rules all the time.
func Choose(ctx context.Context, v6 bool) (*xtables.Choice, error) {
	return xtables.Choose(ctx, v6, readAll)
}

// Open finds out which variant of iptables the host uses, and checks that the
// kernel has ip sets.
func Open(ctx context.Context, fam policy.Family) (*Kernel, error) {
	choice, err := Choose(ctx, fam == policy.IPv6)
	if err != nil {
		return nil, err
	}
	return open(ctx, fam, choice)
}

func open(ctx context.Context, fam policy.Family, choice *xtables.Choice) (*Kernel, error) {
	conn, err := ipset.Dial()
	if err != nil {
		return nil, fmt.Errorf("ip sets: %w", err)
	}
	for _, s := range layout.SharedSets {
		if err := conn.Probe(ctx, s.Type, fam == policy.IPv6); err != nil {
			return nil, errors.Join(fmt.Errorf("ip sets of %s: %w", fam, err), conn.Close())
		}
	}
	k := &Kernel{
		words: layout.Dialects[fam], tool: choice.Use, stale: choice.Stale, sets: conn, log: slog.New(slog.DiscardHandler), inUse: map[string]bool{},
		looking: make(chan struct{}, 1), hooks: nft.NewHolder(family(choice.Use.IPv6)),
	}
	if err := k.openLook(); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// openLook opens the sockets of looks.
func (k *Kernel) openLook() (err error) {
	if k.lookSets, err = ipset.Dial(); err != nil {
		return fmt.Errorf("ip sets: %w", err)
	}
	if k.tool.Variant == xtables.NFT {
		k.events, err = openEvents(k.tool.IPv6)
	}
	return err
}

// SetLog sets the log for warnings. It is called before any Sync.
func (k *Kernel) SetLog(log *slog.Logger) { k.log = log }

// Close closes the sockets and leaves the kernel as it is.
func (k *Kernel) Close() error {
	errs := []error{k.sets.Close(), k.hooks.Release()}
	if k.lookSets != nil {
		errs = append(errs, k.lookSets.Close())
	}
	if k.events != nil {
		errs = append(errs, k.events.close())
	}
	return errors.Join(errs...)
}

// Tool names the variant of iptables in use, as in "ip6tables-nft".
func (k *Kernel) Tool() string { return k.tool.String() }

// SetMessages returns how many messages were sent to the kernel's ip sets.
func (k *Kernel) SetMessages() int { return k.sets.Messages }

// Read reads what the kernel holds of ours, and the tables that c needs.
func (k *Kernel) Read(ctx context.Context, c layout.Desired) (*layout.Actual, error) {
	tables, once, err := readAtOnce(ctx, k.tool)
	if err != nil {
		return nil, err
	}
	if !once {
		k.forceRead() // what a sync is misled to is found by the next look
	}
	h := &layout.Actual{Tables: map[string]*xtables.Table{}}
	for name, tab := range tables {
		k.order.observe(name, tab)
		if len(tab.Chains)+len(tab.Jumps) > 0 { // another mode may have left them
			h.Tables[name] = tab
		}
	}
	for _, name := range c.Tables() {
		if h.Tables[name] = tables[name]; h.Tables[name] == nil {
			if h.Tables[name], err = k.tool.Read(ctx, name, layout.Prefix); err != nil {
				return nil, err
			}
		}
	}
	h.Sets, err = k.ourSets(ctx)
	return h, err
}

// ourSets returns the sets of our prefix and family.
func (k *Kernel) ourSets(ctx context.Context) (map[string]*ipset.Listing, error) {
	names, err := k.sets.Names(ctx)
	if err != nil {
		return nil, err
	}
	sets := map[string]*ipset.Listing{}
	for _, name := range names {
		l, err := k.ourSet(ctx, k.sets, name)
		if err != nil {
			return nil, err
		}
		if l != nil {
			sets[name] = l
		}
	}
	return sets, nil
}

// ourSet returns a set if it is of our prefix and family. If the name does not tell
// the family, the set does.
func (k *Kernel) ourSet(ctx context.Context, conn *ipset.Conn, name string) (*ipset.Listing, error) {
	if !strings.HasPrefix(name, layout.Prefix) || strings.HasSuffix(name, k.words.OtherSuffix()) {
		return nil, nil
	}
	l, err := conn.List(ctx, name)
	switch {
	case errors.Is(err, ipset.ErrNotExist): // the other family removed it meanwhile
		return nil, nil
	case err != nil:
		return nil, err
	case strings.HasSuffix(name, k.words.Suffix) || l.IPv6 == k.tool.IPv6:
		return l, nil
	}
	return nil, nil
}

// compare returns the difference from h to c.
func (k *Kernel) compare(h *layout.Actual, c layout.Desired, st *policy.State) *difference {
	d := &difference{tool: xtables.Base(k.tool.IPv6)}
	have := sums{}
	for name, tab := range h.Tables {
		have[name] = tab.Chains
	}
	d.compareChains(have, c.Chains, func(id chainID) bool { return len(h.Tables[id.table].ReferencedBy(id.name)) > 0 })
	d.compareJumps(h.Tables, c.Jumps(), &k.order)
	d.compareSets(h.Sets, c.Sets(st), k.tool.IPv6)
	return d
}

// Resync makes the kernel, which holds h, hold c. It removes our chains of the other
// variant last, so that packets are served all the time.
func (k *Kernel) Resync(ctx context.Context, h *layout.Actual, c layout.Desired, st *policy.State) error {
	k.mirror.forget()
	k.makeKeepTable(ctx)
	k.holdHooks()
	d := k.compare(h, c, st)
	if len(d.mismatched) > 0 {
		if err := k.removeMismatched(ctx, d.mismatched); err != nil {
			return err
		}
		var err error
		if h, err = k.Read(ctx, c); err != nil {
			return err
		}
		d = k.compare(h, c, st)
	}
	if err := k.makeSets(ctx, d.create); err != nil {
		return err
	}
	if err := k.writeMarked(ctx, h, d, st); err != nil {
		return err
	}
	if err := k.confirm(); err != nil {
		return err
	}
	k.movedAhead(d)
	if err := errors.Join(k.purgeStale(ctx), k.destroyObsolete(ctx, d)); err != nil {
		return err
	}
	for id := range d.referenced {
		k.warnReferenced(id, h.Tables[id.table].ReferencedBy(id.name))
	}
	k.mirror.end(func() {
		m := &k.mirror
		m.chains, m.sets, m.jumps, m.referenced = d.want, map[string]setSum{}, c.Jumps(), d.referenced
		for name, set := range d.sets {
			m.sets[name] = sumOfMembers(set)
		}
	})
	return nil
}

// WritesWholeTables reports whether a change of one rule is a change of its table.
func (k *Kernel) WritesWholeTables() bool { return k.tool.Variant == xtables.Legacy }

// confirm returns an error if the legacy variant does not have what was written. Of the nft variant each
// writing is confirmed, see xtables.ErrNothingWritten.
func (k *Kernel) confirm() error {
	if !k.WritesWholeTables() {
		return nil
	}
	switch there, err := k.tool.ChainExists("nat", layout.Services); {
	case err != nil:
		k.log.Debug("what was written cannot be confirmed", "tool", k.Tool(), "err", err) // the next look compares all of it
	case !there:
		return fmt.Errorf("chain %s of table nat is missing: %s-restore: %w", layout.Services, k.Tool(), xtables.ErrNothingWritten)
	}
	return nil
}

// writeMarked writes a difference. If FORWARD accepted connections by another mark until
// now, they get the new one before, and those that began meanwhile after. If this Kernel has written nothing yet and FORWARD
// accepted none, they may be of another mode, and get it after.
func (k *Kernel) writeMarked(ctx context.Context, h *layout.Actual, d *difference, st *policy.State) error {
	now := d.forwarding(h)
	if now == byOtherMark {
		if err := k.adoptOrWarn(ctx, st); err != nil {
			return err
		}
	}
	if err := k.write(ctx, d); err != nil {
		return err
	}
	first := !k.marked
	k.marked = true
	if now == byOtherMark || now == byNone && first {
		return k.adoptOrWarn(ctx, st)
	}
	return nil
}

// CanApply reports whether Apply can be called: the last Resync or Apply succeeded.
func (k *Kernel) CanApply() bool { return k.mirror.chains != nil }

// removeMismatched removes sets with our names but other properties. Rules that use
// them must be removed first, so all of ours are.
func (k *Kernel) removeMismatched(ctx context.Context, names []string) error {
	left, err := k.purge(ctx, k.tool)
	if err != nil {
		return err
	}
	k.warnRemaining(left)
	return k.destroyAll(ctx, names)
}

// purgeTries is after how many readings, each while others commit, purge trusts the last one.
const purgeTries = 10

// purge removes all our chains, and the jumps to them. It returns the chains that stay,
// empty, because foreign chains jump to them. A failure is retried while each try leaves
// less: beside a foreign writer a part may have been committed, and cannot be removed twice.
// As chains may be missing in what is read then, another reading has to find none.
func (k *Kernel) purge(ctx context.Context, tool *xtables.Tool) (left []string, err error) {
	chains, before := 0, math.MaxInt
	for try := 1; ; try++ {
		tables, once, err := readAtOnce(ctx, tool)
		if errors.Is(err, errors.ErrUnsupported) {
			return nil, nil // a kernel without the variant has no chains in it
		}
		if err != nil {
			return nil, err
		}
		n, all := count(tables)
		chains = max(chains, n)
		s, left := xtables.Purge(tables)
		err = k.restore(ctx, tool, s)
		switch {
		case err == nil && (once || try > 1 && n == len(left) || try >= purgeTries):
			proxier.RemovedSome(ctx, "chains "+layout.Prefix+"* of "+tool.String(), chains-len(left))
			return left, nil
		case err != nil && (ctx.Err() != nil || all >= before && (once || try >= purgeTries)):
			return left, err
		case err != nil:
			before = all
		}
	}
}

// count returns how many chains of ours there are, and with the jumps to them.
func count(tables map[string]*xtables.Table) (chains, all int) {
	for _, tab := range tables {
		chains += len(tab.Chains)
		for _, jumps := range tab.Jumps {
			all += len(jumps)
		}
	}
	return chains, all + chains
}

func (k *Kernel) purgeStale(ctx context.Context) error {
	for len(k.stale) > 0 {
		left, err := k.purge(ctx, k.stale[0])
		if err != nil {
			return err
		}
		k.warnRemaining(left)
		k.stale = k.stale[1:]
	}
	return nil
}

// Cleanup removes what any run may have left of a family. It needs nothing of the host:
// what the host does not support cannot exist.
func Cleanup(ctx context.Context, fam policy.Family) error {
	conn, err := ipset.Dial()
	if ipset.IsUnsupported(err) {
		conn, err = &ipset.Conn{}, nil
	}
	if err != nil {
		return err
	}
	k := &Kernel{words: layout.Dialects[fam], tool: &xtables.Tool{IPv6: fam == policy.IPv6}, sets: conn, log: slog.New(slog.DiscardHandler)}
	return errors.Join(k.Cleanup(ctx), k.Close())
}

// Cleanup removes all our chains, jumps and sets, in every variant, and the keep table.
// Without iptables it cannot see any chains, and removes none.
func (k *Kernel) Cleanup(ctx context.Context) error {
	k.mirror.forget()
	tools, err := xtables.Installed(ctx, k.tool.IPv6)
	if errors.Is(err, exec.ErrNotFound) {
		err = nil
	}
	errs := []error{err}
	for _, t := range tools {
		left, err := k.purge(ctx, t)
		errs = append(errs, err)
		for _, l := range left {
			errs = append(errs, fmt.Errorf("%s: %s", t, l))
		}
	}
	errs = append(errs, k.removeKeepTable(ctx), k.removeHooks(ctx), k.destroyOurs(ctx, len(tools) > 0))
	return errors.Join(errs...)
}

// destroyOurs destroys all our sets. If no chain was removed just now it does not wait
// until they are no longer in use.
func (k *Kernel) destroyOurs(ctx context.Context, wait bool) error {
	sets, err := k.ourSets(ctx)
	if ipset.IsUnsupported(err) {
		return nil
	}
	errs, timeout := []error{err}, busyFor
	if !wait {
		timeout = 0
	}
	removed := 0
	for name := range sets {
		if err := k.destroyWithin(ctx, name, timeout); err != nil {
			errs = append(errs, err)
		} else {
			removed++
		}
	}
	proxier.RemovedSome(ctx, fmt.Sprintf("ipsets %s* of %s", layout.Prefix, xtables.Base(k.tool.IPv6)), removed)
	return errors.Join(errs...)
}
