package filter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/looks"
)

// A lookout compares the kernel with the mirror, beside the syncs.
type lookout struct {
	*family
	lookSets ipsets // on a socket of its own
	keep     keeper
	mirror   mirror
	order    order

	looking   chan struct{}          // holds a value while a Look runs
	sinceRead int                    // how many looks did not read the tables
	readSums  map[string]xtables.Sum // of the tables of the legacy variant, which has no events, when they were read; nil: unknown
	readAfter int                    // writes of ours
}

// Look compares the kernel with what the last successful sync left there, and
// reports whether something differs, for Repair. It runs beside all other methods,
// blocks none, and ignores what they have changed meanwhile.
func (l *lookout) Look(ctx context.Context) (bool, error) {
	select {
	case l.looking <- struct{}{}:
		defer func() { <-l.looking }()
	case <-ctx.Done():
		return false, fmt.Errorf("waiting for another look: %w", context.Cause(ctx))
	}
	if !l.mirror.now().known {
		return false, nil
	}
	l.keep.remakeTable(ctx)
	if err := l.compareTables(ctx); err != nil {
		return false, fmt.Errorf("looking at the rules: %w", err)
	}
	if err := l.compareSets(ctx); err != nil {
		return false, fmt.Errorf("looking at the ip sets: %w", err)
	}
	if differ := l.mirror.differing(l.Tool()); len(differ) > 0 {
		l.log.Debug("a look found differences", "count", len(differ), "first", differ[:min(20, len(differ))])
		return true, nil
	}
	return false, nil
}

// Damaged reports whether there is something to Repair.
func (l *lookout) Damaged() bool { return l.mirror.now().damaged }

// Reported reports whether Watch has reported what there is to Repair.
func (l *lookout) Reported() bool { return l.mirror.now().reported }

// maxUnread is how many looks in a row may read no table because there were no events.
// Then one reads them anyway, in case the kernel or we missed something.
const maxUnread = 60

// compareTables reads all tables, unless none has changed since they were last read and
// no jumps are to be moved.
// What it ignored is left to the next look.
func (l *lookout) compareTables(ctx context.Context) error {
	l.sinceRead++
	now, sums := l.mirror.now(), map[string]xtables.Sum(nil)
	unchanged := l.events != nil && !l.events.mustRead()
	if l.events == nil {
		sums = byTable(now.jumps, l.tool.ReadSum)
		unchanged = len(sums) > 0 && now.writes == l.readAfter && maps.Equal(sums, l.readSums)
	}
	if unchanged && l.sinceRead < maxUnread && !l.order.due() {
		return nil
	}
	unconfirmed, complete, err := l.readAndCompare(ctx, nil)
	if err == nil && len(unconfirmed.Some) > 0 {
		_, complete, err = l.readAndCompare(ctx, &unconfirmed)
	}
	if err == nil {
		l.sinceRead, l.readSums, l.readAfter = 0, sums, now.writes
	}
	if !complete {
		l.readSums = nil
		l.forceRead()
	}
	return err
}

// readAndCompare reads all tables, notes in the mirror what differs, and reports whether
// that is all. Where others write meanwhile, or we do, what differs counts only if it is
// among what a reading before found, which returned it as unconfirmed.
func (l *lookout) readAndCompare(ctx context.Context, before *looks.Objects[object]) (unconfirmed looks.Objects[object], complete bool, err error) {
	t := l.mirror.beginLook()
	tables, once, err := readAtOnce(ctx, l.tool)
	if err != nil {
		l.mirror.endLook(t, nil)
		return unconfirmed, false, err
	}
	for name, tab := range tables {
		l.order.observe(name, tab)
		maps.DeleteFunc(tab.Chains, func(name string, _ xtables.Sum) bool { return strings.HasPrefix(name, layout.ProbePrefix) })
	}
	complete = l.mirror.endLook(t, func(d *looks.Objects[object]) {
		var found looks.Objects[object]
		l.mirror.compareTables(tables, t, &found, &l.order)
		switch {
		case once:
			d.Merge(&found)
		case before != nil:
			d.Merge(both(&found, before))
		}
		if !once {
			unconfirmed = found
		}
	})
	return unconfirmed, complete && len(unconfirmed.Some) == 0, nil
}

// both returns what two readings of the tables found.
func both(a, b *looks.Objects[object]) *looks.Objects[object] {
	list := &looks.Objects[object]{}
	for o := range a.Some {
		if b.Has(o) {
			list.Add(o)
		}
	}
	return list
}

// compareSets lists the sets one by one, so that a sync that changes one does not make
// the look ignore the others.
func (l *lookout) compareSets(ctx context.Context) error {
	t := l.mirror.beginLook()
	names, err := l.lookSets.Names(ctx)
	if err != nil {
		l.mirror.endLook(t, nil)
		return err
	}
	l.mirror.endLook(t, func(d *looks.Objects[object]) {
		for name := range l.mirror.sets {
			if o := setObject(name); !t.Has(o) && !slices.Contains(names, name) {
				d.Add(o)
			}
		}
	})
	for _, name := range names {
		if name == l.words.Set(layout.GrownSet) || strings.HasPrefix(name, layout.ProbePrefix) {
			continue // temporary; leftovers are removed by the next resync
		}
		if err := l.compareSet(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (l *lookout) compareSet(ctx context.Context, name string) error {
	t := l.mirror.beginLook()
	set, err := l.lookSets.get(ctx, name)
	if err != nil || set == nil { // one removed since its name was listed is found missing by the next look
		l.mirror.endLook(t, nil)
		return err
	}
	have := sumOf(slices.Values(set.Entries))
	l.mirror.endLook(t, func(d *looks.Objects[object]) {
		if want, ours := l.mirror.sets[name]; !t.Has(setObject(name)) && (!ours || have != want) {
			d.Add(setObject(name))
		}
	})
	return nil
}

// Warnings says where other programs' rules are in front of ours, or were. It runs beside the other methods.
func (l *lookout) Warnings() []string { return l.order.warnings(l.Tool()) }

// byTable returns the result of read for each table with jumps; nil if one failed.
func byTable[T any](jumps map[object][]string, read func(table string) (T, error)) map[string]T {
	all := map[string]T{}
	for id := range jumps {
		if _, known := all[id.table]; known {
			continue
		}
		v, err := read(id.table)
		if err != nil {
			return nil
		}
		all[id.table] = v
	}
	return all
}

const (
	// The legacy variant has no events, so it is asked for our jumps, after this many
	// times as long as the last query took, or canaryInterval if that is less. A query
	// costs a process for each table, and one more.
	canaryShare    = 20
	canaryInterval = 5 * time.Second

	// sizeCheckInterval is how often the sizes of the tables are checked, whose change
	// is the reason for a query. That costs a system call for each.
	sizeCheckInterval = 250 * time.Millisecond
)

// minLookInterval is the least time between two looks that events cause: a process that
// writes rules all the time must not keep us reading all of them.
const minLookInterval = time.Second

// Watch calls changed with foreign changes to our rules, once a look has found something
// to repair, until ctx ends, whose error it returns. The nft variant gets events, the
// legacy variant polls the sizes of its tables. It runs beside the other methods.
func (l *lookout) Watch(ctx context.Context, changed func(proxier.ForeignChange)) error {
	if l.events == nil {
		return l.runCanary(ctx, changed)
	}
	return l.listen(ctx, changed)
}

// A disturbance is a foreign change, and how often the mirror was forgotten until then.
type disturbance struct {
	proxier.ForeignChange
	resets int
}

// listen looks at the kernel after events about foreign changes.
func (l *lookout) listen(ctx context.Context, changed func(proxier.ForeignChange)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	queue := make(chan disturbance, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer l.events.watching.Store(false)
		stop(l.events.monitor.Watch(ctx, func() { l.events.dirty.Store(true); l.events.watching.Store(true) }, func(e nft.Event) {
			l.events.dirty.Store(true)
			select {
			case queue <- disturbance{proxier.ForeignChange(e), l.mirror.now().resets}:
			default: // a look is already due
			}
		}))
	})
	l.lookAfterEvents(ctx, queue, changed)
	wg.Wait()
	return context.Cause(ctx)
}

// lookAfterEvents looks at the kernel after each event. It runs in the goroutine of
// Watch's caller, in whose network namespace programs run.
func (l *lookout) lookAfterEvents(ctx context.Context, queue chan disturbance, changed func(proxier.ForeignChange)) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-l.events.touched:
			if l.overtaken(ctx) {
				l.events.dirty.Store(true)
				l.lookUntilSeen(ctx, disturbance{proxier.ForeignChange(e), l.mirror.now().resets}, queue, changed)
			}
		case d := <-queue:
			l.lookUntilSeen(ctx, d, queue, changed)
		}
		select {
		case <-ctx.Done():
		case <-time.After(minLookInterval):
		}
	}
}

// lookUntilSeen looks at the kernel after an event, and queues the event again where the look has not seen all: a
// sync was comparing everything, or others wrote meanwhile.
func (l *lookout) lookUntilSeen(ctx context.Context, d disturbance, queue chan<- disturbance, changed func(proxier.ForeignChange)) {
	err := l.lookAfter(ctx, d, changed)
	if err != nil || l.mirror.now().known && !l.events.dirty.Load() {
		return
	}
	select {
	case queue <- d:
	default: // another one is queued
	}
}

// lookAfter looks at the kernel after an event. An error is left to the next look of the
// Loop, which reports it. A resync may have repaired everything before the look.
func (l *lookout) lookAfter(ctx context.Context, d disturbance, changed func(proxier.ForeignChange)) error {
	damaged, err := l.Look(ctx)
	if err != nil || !damaged && l.mirror.now().resets == d.resets {
		return err
	}
	l.mirror.markReported()
	d.Lost = d.Lost && !damaged // whatever events were lost: something is to be repaired
	changed(d.ForeignChange)
	return nil
}

// runCanary looks at the kernel when a jump of ours or the chain of services is missing, which it is after
// a flush of a table, or a foreign rule is in front of the jumps. It checks only when a table has changed:
// each query reads a whole table, 65 ms of CPU at 5,000 services.
func (l *lookout) runCanary(ctx context.Context, changed func(proxier.ForeignChange)) error {
	tick := time.NewTicker(sizeCheckInterval)
	defer tick.Stop()
	var complete map[string]xtables.TableInfo // of the tables when nothing was missing
	var next time.Time                        // query not before
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		begun := time.Now()
		m := l.mirror.now()
		if begun.Before(next) || m.writing || m.damaged {
			continue
		}
		shapes := byTable(m.jumps, l.tool.ReadInfo)
		if complete != nil && maps.Equal(shapes, complete) {
			continue
		}
		complete = nil
		alive := l.servicesExist(m.jumps) && !l.overtaken(ctx)
		next = time.Now().Add(min(canaryShare*time.Since(begun), canaryInterval))
		if alive {
			complete = shapes
			continue
		}
		if damaged, err := l.Look(ctx); err == nil && damaged {
			l.mirror.markReported()
			changed(proxier.ForeignChange{})
		}
	}
}

// servicesExist reports whether the chain of services exists, if anything was synced. An error counts
// as no.
func (l *lookout) servicesExist(jumps map[object][]string) bool {
	if len(jumps) == 0 {
		return true
	}
	exists, err := l.tool.ChainExists("nat", layout.Services)
	return err == nil && exists
}

// overtaken reports whether a built-in chain does not lead to ours as it should. It costs a few
// messages, and a process for each table that has rules in front of ours, or of the legacy variant,
// where a look reads everything. An error counts as yes, and so does that nothing is known.
func (l *lookout) overtaken(ctx context.Context) bool {
	now := l.mirror.now()
	if !now.known { // a sync is comparing everything, and may have read before the change
		l.forceRead()
		return true
	}
	built := map[string][]string{} // chains by table
	for id := range now.jumps {
		built[id.table] = append(built[id.table], id.name)
	}
	for table, chains := range built {
		tab, err := l.readBuiltIn(ctx, table, chains)
		if err != nil {
			return true
		}
		for _, chain := range chains {
			id := jumpsObject(table, chain)
			if !l.order.inPlace(tab, id, now.jumps[id]) {
				return true
			}
		}
		l.order.observe(table, l.inWords(ctx, table, chains, tab))
	}
	return false
}

// inWords returns chains that were read as tab, with the text of the rules in front of our jumps:
// nf_tables does not tell it. It starts a program only where there are such rules.
func (l *lookout) inWords(ctx context.Context, table string, chains []string, tab *xtables.Table) *xtables.Table {
	if l.events == nil || len(tab.Ahead)+len(tab.AheadOfUser) == 0 {
		return tab
	}
	printed, err := l.tool.ReadChains(ctx, table, chains, layout.Prefix)
	if err != nil { // a rule has its handle, then
		return tab
	}
	return printed
}

func (l *lookout) readBuiltIn(ctx context.Context, table string, chains []string) (*xtables.Table, error) {
	if l.events == nil {
		return l.tool.ReadChains(ctx, table, chains, layout.Prefix)
	}
	return l.tool.ReadNative(table, chains, layout.Prefix)
}
