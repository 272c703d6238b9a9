package loop

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A batch is what came in one step and is not yet in the kernel.
type batch struct {
	number uint64 // of the order that has it
	edits  map[source.Key]claims.Transition
	counts report.ChangeCounts // of edits, one that came again for each time
}

func newBatch(number uint64) batch {
	return batch{number: number, edits: make(map[source.Key]claims.Transition)}
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
	all := newBatch(0)
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

// A backlog has the changes that not all families hold yet.
type backlog struct {
	batches []batch
	seen    report.ChangeCounts // of all that came since the start
}

// manyBatches is how many are kept apart; further ones are merged, for while no
// family holds anything their number only grows.
const manyBatches = 100

// add keeps a batch until it is in the kernel.
func (l *backlog) add(b batch) {
	l.seen.Add(b.counts)
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

// split returns what is in the kernel, and what is not. All orders up to held are; holds reports it of a service in a
// later one.
func (l *backlog) split(held uint64, holds func(key source.Key, number uint64) bool) (done, left []batch) {
	for _, b := range l.batches {
		if b.number <= held {
			done = append(done, b)
			continue
		}
		now, later := newBatch(b.number), newBatch(b.number)
		for key, tr := range b.edits {
			if holds(key, b.number) {
				now.add(key, tr)
			} else {
				later.add(key, tr)
			}
		}
		switch { // whole, it counts what came again
		case len(later.edits) == 0:
			done = append(done, b)
		case len(now.edits) == 0:
			left = append(left, b)
		default:
			done, left = append(done, now), append(left, later)
		}
	}
	return done, left
}

// maxEdits is how many services of what is synced together get a line in the log.
const maxEdits = 10

// logBatches writes a line for each of the first services that changed, and one
// that counts the others.
func logBatches(log *slog.Logger, list []batch, d time.Duration) {
	took, lines, more := slog.Duration("sync", d), 0, 0
	for _, tr := range merged(list) {
		switch what := report.Describe(tr); {
		case what == "":
		case lines < maxEdits:
			log.Info("service synced", "service", tr.Key().String(), "change", what, took)
			lines++
		default:
			more++
		}
	}
	if more > 0 {
		log.Info("more services synced", "services", more, took)
	}
}
