package filter

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

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
func (l *lookout) servicesExist(jumps []layout.Jump) bool {
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
	for table, chains := range chainsWithJumps(now.jumps) {
		tab, err := l.readBuiltIn(ctx, table, chains)
		if err != nil {
			return true
		}
		for _, chain := range chains {
			id := jumpsObject(table, chain)
			if !l.order.inPlace(tab, id, wantedJumps(now.jumps, id)) {
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

// chainsWithJumps returns the built-in chains of each table that have jumps.
func chainsWithJumps(jumps []layout.Jump) map[string][]string {
	chains := map[string][]string{}
	for _, j := range jumps {
		if !slices.Contains(chains[j.Table], j.Chain) {
			chains[j.Table] = append(chains[j.Table], j.Chain)
		}
	}
	return chains
}

func (l *lookout) readBuiltIn(ctx context.Context, table string, chains []string) (*xtables.Table, error) {
	if l.events == nil {
		return l.tool.ReadChains(ctx, table, chains, layout.Prefix)
	}
	return l.tool.ReadNative(table, chains, layout.Prefix)
}
