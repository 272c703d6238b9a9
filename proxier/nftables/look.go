package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// While events are heard the table is read by one look in so many all the same:
// every 30 minutes at the usual interval, at half a second of CPU for 100,000
// services with an endpoint. It is for what no event tells: a fault of the kernel or of ours.
const looksUnread = 60

// A set that is not as it should be is looked at so often before it is left to
// the next look: it may have been changed by us, or the kernel be growing it,
// which takes some milliseconds and makes listings incomplete.
const (
	lookAttempts = 5
	lookPause    = 10 * time.Millisecond // before the second attempt, then twice as long each time
)

// Look implements proxier.Backend. It reads nothing while events are heard and
// none was lost, or, without events, while nobody else has committed. Otherwise it
// reads our table by a socket of its own, set by set. Affinity's clients are
// packets' business and never read. What Watch has told of is no news: it is for
// those who heard it to say when that is repaired.
func (b *Backend) Look(ctx context.Context) (differs bool, err error) {
	if _, _, _, known := b.structure(); !known {
		return false, nil
	}
	if b.modified.Load() {
		return !b.watching.Load(), nil
	}
	if differs, err = b.look(ctx); err != nil {
		b.uncertain.Store(true)
		return false, fmt.Errorf("nftables, %s: looking at what the kernel holds: %w", b.fam, err)
	}
	if differs {
		b.modified.Store(true)
	}
	return differs, nil
}

func (b *Backend) look(ctx context.Context) (bool, error) {
	b.looks.unread++
	heard := b.watching.Load() && b.looks.unread < looksUnread
	if heard && !b.uncertain.Load() && b.looks.unsettled.empty() {
		return false, nil
	}
	conn, err := nft.Dial()
	if err != nil {
		return false, err
	}
	differs, err := b.lookBy(ctx, conn, heard)
	return differs, errors.Join(err, conn.Close())
}

// lookBy reads all of the table, or what was left by the last look if there is
// no reason for more.
func (b *Backend) lookBy(ctx context.Context, conn *nft.Conn, heard bool) (bool, error) {
	foreign, sure, err := b.foreignCommits(conn)
	if err != nil {
		return false, err
	}
	what := b.looks.unsettled
	if b.uncertain.Swap(false) || !heard && (b.watching.Load() || !sure || foreign != b.foreign.Load()) {
		_, sets, _, _ := b.structure()
		what = unsettledParts{structure: true, sets: sets}
		b.looks.unread = 0
	}
	l := inspection{Backend: b, ctx: ctx, conn: conn}
	differs, err := l.check(what)
	if err == nil {
		b.looks.unsettled = l.unsettled
	}
	if err == nil && sure {
		b.foreign.Store(foreign)
	}
	return differs, err
}

// A look is one in progress.
type inspection struct {
	*Backend
	ctx       context.Context
	conn      *nft.Conn
	unsettled unsettledParts
}

// A finding is the result of a look at one thing.
type finding int

const (
	foundMatch     finding = iota
	foundUnsettled         // by us, or the kernel is at it: look again
	foundMismatch
)

// at looks at parts of the table until it finds a difference.
func (l *inspection) check(what unsettledParts) (bool, error) {
	if what.structure {
		switch found, err := l.retry(l.structureCheck()); {
		case err != nil || found == foundMismatch:
			return found == foundMismatch, err
		case found == foundUnsettled:
			l.unsettled.structure = true
		}
	}
	for _, s := range what.sets {
		proxier.Progressed(l.ctx)
		if s.isDynamic() {
			continue
		}
		switch found, err := l.retry(l.setCheck(s)); {
		case err != nil || found == foundMismatch:
			return found == foundMismatch, err
		case found == foundUnsettled:
			l.unsettled.sets = append(l.unsettled.sets, s)
		}
	}
	return false, nil
}

// repeat looks at one thing until it is decided, a few times.
func (l *inspection) retry(once func() (finding, error)) (finding, error) {
	pause := lookPause
	for n := 1; ; n++ {
		found, err := once()
		if err != nil || found != foundUnsettled || n == lookAttempts {
			return found, err
		}
		select {
		case <-l.ctx.Done():
			return found, l.ctx.Err()
		case <-time.After(pause):
		}
		pause *= 2
	}
}

// shapeOnce returns what compares chains, rules and which sets there are.
func (l *inspection) structureCheck() func() (finding, error) {
	return func() (finding, error) {
		chains, sets, stamp, known := l.structure()
		if !known {
			return foundMatch, nil // the next sync compares it
		}
		have, err := l.conn.List(l.table())
		switch {
		case errors.Is(err, nft.ErrChanged):
			return foundUnsettled, nil
		case err != nil:
			return foundUnsettled, err
		case have != nil && l.sameStructure(have, chains, sets):
			return foundMatch, nil
		}
		if _, _, now, _ := l.structure(); now != stamp || stamp == 0 {
			return foundUnsettled, nil
		}
		return foundMismatch, nil
	}
}

// setOnce returns what compares the elements of a set. A tally that is as it
// should be proves the set, whatever happened while it was listed; one that is not
// means something when it comes twice, and nothing of ours was in between.
func (l *inspection) setCheck(s set) func() (finding, error) {
	var last tally
	var lastStamp uint64
	return func() (finding, error) {
		want, stamp, ok := l.Backend.tally(s)
		if !ok {
			return foundMatch, nil // it has gone meanwhile
		}
		got, err := l.tallyOf(s, want.count)
		switch {
		case err != nil:
			return foundUnsettled, err
		case got == want:
			return foundMatch, nil
		}
		_, now, _ := l.Backend.tally(s)
		if now == stamp && stamp == lastStamp && stamp > 0 && got == last {
			return foundMismatch, nil
		}
		last, lastStamp = got, stamp
		return foundUnsettled, nil
	}
}

// tallyOf lists a set that should have so many elements.
func (l *inspection) tallyOf(s set, count int) (t tally, err error) {
	var key []byte
	add := func(e *nft.Element) error {
		key = append(append(key[:0], e.Key...), e.KeyEnd...)
		t.add(key, e.Data, e.Comment, 1)
		return l.ctx.Err()
	}
	if s.kind == slotMap && s.size <= exactSizes && count > manyElements {
		err = l.eachSlot(s, add)
	} else {
		err = l.conn.Scan(l.table(), s.name(), add)
	}
	if errors.Is(err, unix.ENOENT) { // there is no such set
		return tally{count: -1}, nil
	}
	return t, err
}

// eachSlot asks for the slots that the frontends of a size should have, as
// compareWanted does: there are too many to be listed. It ends with the first
// frontends that lack some.
func (l *inspection) eachSlot(s set, each func(*nft.Element) error) error {
	var fronts [][]byte
	of := set{kind: bySize, class: s.class, size: s.size}
	err := l.conn.Scan(l.table(), of.name(), func(e *nft.Element) error {
		fronts = append(fronts, append(make([]byte, 0, len(e.Key)+4), e.Key...))
		return l.ctx.Err()
	})
	n := int(s.size)
	for part := range slices.Chunk(fronts, 1000) {
		if err != nil {
			break
		}
		proxier.Progressed(l.ctx)
		found := 0
		key := func(i int) []byte { return putNumber(part[i/n], uint32(i%n)) }
		failed := l.conn.Get(l.table(), s.name(), n*len(part), key, func(_ int, e *nft.Element) {
			found++
			err = errors.Join(err, each(e))
		})
		if err = errors.Join(failed, err); found < n*len(part) {
			break
		}
	}
	return err
}
