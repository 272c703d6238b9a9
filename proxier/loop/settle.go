package loop

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A batch is what came in one step and is not yet in the kernel.
type batch struct {
	number uint64 // of the order that has it
	edits  map[source.Key]claims.Transition
	counts report.ChangeCounts // of edits, one that came again for each time
}

func (b *batch) add(key source.Key, tr claims.Transition) {
	b.counts.Add(report.ChangeCountsOf(tr))
	if e, again := b.edits[key]; again {
		tr.Old = e.Old
	}
	b.edits[key] = tr
}

// merged returns the services of batches, each once, in order of their names.
func merged(list []batch) (edits []claims.Transition) {
	all := batch{edits: make(map[source.Key]claims.Transition)}
	for _, b := range list {
		for key, tr := range b.edits {
			all.add(key, tr)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(all.edits), source.Key.Compare) {
		edits = append(edits, all.edits[key])
	}
	return edits
}

// manyBatches is how many are kept apart; further ones are merged, for while no
// family holds anything their number only grows.
const manyBatches = 100

// keep keeps a batch until it is in the kernel.
func (l *Loop) keep(b batch) {
	n := len(l.batches)
	switch {
	case len(b.edits) == 0:
	case n < manyBatches:
		l.batches = append(l.batches, b)
	default:
		last := &l.batches[n-1]
		last.number = b.number
		for key, tr := range b.edits {
			last.add(key, tr)
		}
	}
}

// settle does what had to wait until the families hold what they were ordered.
func (l *Loop) settle() {
	l.noteHolds()
	held, took := l.held()
	begun := l.opened != 0 && held >= l.opened
	if begun || l.first {
		l.nodeHealth.tell(func(key source.Key, number uint64) bool { return l.holdsOf(held, key, number) }, l.cfg.Observer.NodeHealth)
	}
	if !begun {
		return
	}
	if !l.first {
		l.becomeReady(took)
	}
	var done, left []batch
	for _, b := range l.batches {
		if b.number <= held {
			done = append(done, b)
			continue
		}
		now, later := b.split(func(key source.Key) bool { return l.holdsOf(held, key, b.number) })
		done = append(done, now...)
		left = append(left, later...)
	}
	if len(done) > 0 {
		l.logBatches(done, took)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.batches = left
		l.revision.Add(1)
	}
}

// split returns what of a batch is done, and what is not; none for nothing.
func (b *batch) split(isDone func(source.Key) bool) (done, left []batch) {
	parts := [2]batch{{number: b.number}, {number: b.number}}
	for key, tr := range b.edits {
		p := &parts[0]
		if isDone(key) {
			p = &parts[1]
		}
		if p.edits == nil {
			p.edits = make(map[source.Key]claims.Transition)
		}
		p.add(key, tr)
	}
	switch {
	case parts[0].edits == nil:
		return []batch{*b}, nil
	case parts[1].edits == nil:
		return nil, []batch{*b}
	}
	return parts[1:], parts[:1]
}

// holdsOf reports whether every working family holds what an order has of a service, though maybe not
// another large service of the order. All orders up to held are complete.
func (l *Loop) holdsOf(held uint64, key source.Key, number uint64) bool {
	if number <= held {
		return true
	}
	if held == 0 {
		return false
	}
	for _, f := range l.families {
		if n := f.latest(); !n.leftOut() && n.held > 0 && (n.synced < number || f.unfinished(key)) {
			return false
		}
	}
	return true
}

// noteHolds reports the families that hold everything in their present backends, each
// for itself: one that fails does not keep another on its former backend.
func (l *Loop) noteHolds() {
	for _, f := range l.families {
		if f.holds || f.latest().held < f.from {
			continue
		}
		l.mu.Lock()
		f.holds = true
		l.mu.Unlock()
		l.cfg.Observer.Holds(f.fam)
	}
}

// Holds reports whether this backend holds everything of a family, so that what other
// backends hold of the family can be removed.
func (l *Loop) Holds(fam policy.Family, b proxier.Backend) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.ContainsFunc(l.families, func(f *runningFamily) bool { return f.fam == fam && f.wanted == b && f.holds })
}

// held returns the last order that every working family holds, and how long their
// last Syncs took.
func (l *Loop) held() (held uint64, took time.Duration) {
	const none = ^uint64(0)
	held = none
	for _, f := range l.families {
		n := f.latest()
		if !n.leftOut() && (n.held > 0 || !l.first) { // nor is one waited for that came later
			held = min(held, n.held)
			took = max(took, n.took)
		}
	}
	for _, since := range l.awaited {
		if !l.first && time.Since(since) < leftOutStall() {
			held = none
		}
	}
	if held == none { // there is none
		held = 0
	}
	return held, took
}

// becomeReady reports that the first complete sync is done.
func (l *Loop) becomeReady(took time.Duration) {
	l.first = true
	l.mu.Lock()
	l.revision.Add(1)
	l.batches = slices.DeleteFunc(l.batches, func(b batch) bool { return b.number <= l.opened })
	l.mu.Unlock()
	l.cfg.Log.Info("first sync complete", "services", len(l.services()), slog.Duration("sync", took))
	for _, f := range l.families {
		if n := f.latest(); n.held == 0 {
			l.cfg.Log.Warn("a family fails: it is left out, and tried again", "family", f.fam, "err", n.failure())
		}
	}
	close(l.ready)
}

// maxEdits is how many services of what is synced together get a line in the log.
const maxEdits = 10

// logBatches writes a line for each of the first services that changed, and one
// that counts the others.
func (l *Loop) logBatches(list []batch, d time.Duration) {
	took, lines, more := slog.Duration("sync", d), 0, 0
	for _, tr := range merged(list) {
		switch what := report.Describe(tr); {
		case what == "":
		case lines < maxEdits:
			l.cfg.Log.Info("service synced", "service", tr.Key().String(), "change", what, took)
			lines++
		default:
			more++
		}
	}
	if more > 0 {
		l.cfg.Log.Info("more services synced", "services", more, took)
	}
}
