package filter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/xtables"
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
func byTable[T any](jumps []layout.Jump, read func(table string) (T, error)) map[string]T {
	all := map[string]T{}
	for _, j := range jumps {
		if _, known := all[j.Table]; known {
			continue
		}
		v, err := read(j.Table)
		if err != nil {
			return nil
		}
		all[j.Table] = v
	}
	return all
}
