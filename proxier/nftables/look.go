package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
)

// looksUnread is after how many calls Look reads the table although events are
// heard: every 30 minutes at the usual interval, at half a second of CPU for 100,000
// services with an endpoint. It finds faults of the kernel or of ours, which cause no event.
const looksUnread = 60

// A set that differs is read several times before it is left to the next look: a
// sync may be changing it, or the kernel growing it, which takes some milliseconds
// and makes listings incomplete.
const (
	lookAttempts = 5
	lookPause    = 10 * time.Millisecond // before the second attempt, then twice as long each time
)

// Look implements proxier.Backend. It reads nothing while events are heard and
// none was lost, or, without events, while there was no foreign commit. Otherwise it
// reads our table through a socket of its own, set by set. The clients of affinity,
// which packets add, are never read. A change that Watch has reported is not
// reported again: its listener decides when that is repaired.
func (b *Backend) Look(ctx context.Context) (differs bool, err error) {
	if _, _, _, known := b.structure(); !known {
		return false, nil
	}
	if b.needsRepair.Load() {
		return !b.watching.Load(), nil
	}
	if b.flowtableState.outdated() {
		b.needsRepair.Store(true)
		return true, nil
	}
	if differs, err = b.look(ctx); err != nil {
		b.uncertain.Store(true)
		return false, fmt.Errorf("nftables, %s: looking at what the kernel holds: %w", b.Fam, err)
	}
	if differs {
		b.needsRepair.Store(true)
	}
	return differs, nil
}

func (b *Backend) look(ctx context.Context) (bool, error) {
	if b.unlisted.Swap(false) {
		b.uncertain.Store(true)
	}
	b.unread++
	heard := b.watching.Load() && b.unread < looksUnread
	if heard && !b.uncertain.Load() && b.unsettled.empty() {
		return false, nil
	}
	conn, err := nft.Dial()
	if err != nil {
		return false, err
	}
	differs, err := b.lookBy(ctx, conn, heard)
	return differs, errors.Join(err, conn.Close())
}

// lookBy reads the whole table, or only what the last look could not decide if
// there is no reason for more.
func (b *Backend) lookBy(ctx context.Context, conn *nft.Conn, heard bool) (bool, error) {
	foreign, sure, err := b.foreignCommits(conn)
	if err != nil {
		return false, err
	}
	what := b.unsettled
	if b.uncertain.Swap(false) || !heard && (b.watching.Load() || !sure || foreign != b.foreign.Load()) {
		_, sets, _, _ := b.structure()
		what = unsettledParts{structure: true, sets: sets}
		b.unread = 0
	}
	l := inspection{Backend: b, ctx: ctx, conn: conn}
	differs, err := l.check(what)
	if err == nil {
		b.unsettled = l.unsettled
	}
	if err == nil && sure {
		b.foreign.Store(foreign)
	}
	return differs, err
}

// An inspection is a look in progress.
type inspection struct {
	*Backend
	ctx       context.Context
	conn      *nft.Conn
	unsettled unsettledParts
}

// A finding is the result of one check.
type finding int

const (
	foundMatch     finding = iota
	foundUnsettled         // it is being changed: look again
	foundMismatch
)

// check reads parts of the table until it finds a mismatch.
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
		if s.IsDynamic() {
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

// retry repeats a check until it is decided, a few times.
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

// structureCheck returns a check of chains, rules and which sets exist.
func (l *inspection) structureCheck() func() (finding, error) {
	return func() (finding, error) {
		chains, sets, stamp, known := l.structure()
		if !known {
			return foundMatch, nil // the next sync compares it
		}
		have, err := l.conn.List(l.Table())
		switch {
		case errors.Is(err, nft.ErrChanged):
			return foundUnsettled, nil
		case err != nil:
			return foundUnsettled, err
		case have != nil && sameStructure(l.Dialect, have, chains, sets, l.flowtable()):
			return foundMatch, nil
		}
		if _, _, now, _ := l.structure(); now != stamp || stamp == 0 {
			return foundUnsettled, nil
		}
		return foundMismatch, nil
	}
}

// setCheck returns a check of the elements of a set. An equal checksum proves the
// set, whatever happened while it was listed; another one counts when it is found
// twice, with no commit of ours in between.
func (l *inspection) setCheck(s layout.Set) func() (finding, error) {
	var last layout.Checksum
	var lastStamp uint64
	return func() (finding, error) {
		want, stamp, ok := l.Backend.checksum(s)
		if !ok {
			return foundMatch, nil // a sync has removed it meanwhile
		}
		got, err := l.checksumOf(s, want.Count)
		switch {
		case err != nil:
			return foundUnsettled, err
		case got == want:
			return foundMatch, nil
		}
		_, now, _ := l.Backend.checksum(s)
		if now == stamp && stamp == lastStamp && stamp > 0 && got == last {
			return foundMismatch, nil
		}
		last, lastStamp = got, stamp
		return foundUnsettled, nil
	}
}

// checksumOf computes the checksum of a set that should have so many elements.
func (l *inspection) checksumOf(s layout.Set, count int) (t layout.Checksum, err error) {
	var key []byte
	add := func(e *nft.Element) error {
		key = append(append(key[:0], e.Key...), e.KeyEnd...)
		t.Add(key, e.Data, e.Comment, 1)
		return l.ctx.Err()
	}
	if s.FullSlots() && count > manyElements {
		err = l.eachSlot(s, add)
	} else {
		err = l.conn.Scan(l.Table(), s.Name(), add)
	}
	if errors.Is(err, unix.ENOENT) { // there is no such set
		return layout.Checksum{Count: -1}, nil
	}
	return t, err
}

// eachSlot asks for the slots that the frontends of a size should have, as
// compareByKey does: there are too many to be listed. It ends with the first
// frontends that lack some.
func (l *inspection) eachSlot(s layout.Set, each func(*nft.Element) error) error {
	var fronts [][]byte
	of, n := s.Fronts()
	err := l.conn.Scan(l.Table(), of.Name(), func(e *nft.Element) error {
		fronts = append(fronts, append(make([]byte, 0, len(e.Key)+4), e.Key...))
		return l.ctx.Err()
	})
	for part := range slices.Chunk(fronts, 1000) {
		if err != nil {
			break
		}
		proxier.Progressed(l.ctx)
		found := 0
		key := func(i int) []byte { return layout.PutNumber(part[i/n], uint32(i%n)) }
		failed := l.conn.Get(l.Table(), s.Name(), n*len(part), key, func(_ int, e *nft.Element) {
			found++
			err = errors.Join(err, each(e))
		})
		if err = errors.Join(failed, err); found < n*len(part) {
			break
		}
	}
	return err
}
