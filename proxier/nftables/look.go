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
	if !b.known(func(*layout.Mirror) {}) {
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
	if heard && !b.uncertain.Load() && len(b.unsettled) == 0 {
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
	parts := b.unsettled
	if b.uncertain.Swap(false) || !heard && (b.watching.Load() || !sure || foreign != b.foreign.Load()) {
		parts = []layout.Set{layout.Structure}
		b.known(func(m *layout.Mirror) { parts = append(parts, layout.SetsInUse(m.Counts())...) })
		b.unread = 0
	}
	i := inspection{Backend: b, conn: conn}
	differs, err := i.parts(ctx, parts)
	if err == nil {
		b.unsettled = i.unsettled
		if sure {
			b.foreign.Store(foreign)
		}
	}
	return differs, err
}

// An inspection is a look in progress.
type inspection struct {
	*Backend
	conn      *nft.Conn
	unsettled []layout.Set
}

// parts reads parts of the table until one differs.
func (i *inspection) parts(ctx context.Context, parts []layout.Set) (differs bool, err error) {
	for _, s := range parts {
		proxier.Progressed(ctx)
		if s.IsDynamic() {
			continue
		}
		if differs, err = i.part(ctx, s); differs || err != nil {
			return differs, err
		}
	}
	return false, nil
}

// part reads a part of the table, several times where it differs or is being changed. Nothing counts that was read
// beside a sync of ours that changed it; another checksum counts when it is found twice.
func (i *inspection) part(ctx context.Context, s layout.Set) (differs bool, err error) {
	first := layout.Checksum{Count: -2} // none that is read: two readings are needed
	if s == layout.Structure {
		first = layout.Checksum{} // what each reading of it gives
	}
	last, meanwhile := first, i.beginLook()
	defer func() { i.endLook(meanwhile) }()
	pause := lookPause
	for n := 1; ; n++ {
		same, got, err := i.reading(ctx, s)
		switch {
		case errors.Is(err, nft.ErrChanged):
		case err != nil || same:
			return false, err
		case i.changed(meanwhile, s):
			i.endLook(meanwhile)
			last, meanwhile = first, i.beginLook()
		case got == last:
			return true, nil
		default:
			last = got
		}
		if n == lookAttempts {
			i.unsettled = append(i.unsettled, s)
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(pause):
		}
		pause *= 2
	}
}

// reading reads a part of the table once. What is as the mirror says is so, whatever happened meanwhile.
func (i *inspection) reading(ctx context.Context, s layout.Set) (same bool, sum layout.Checksum, err error) {
	var structure *nft.Listing
	var want layout.Checksum
	there := i.known(func(m *layout.Mirror) {
		if want = m.Checksums[s]; s == layout.Structure {
			structure = m.Listing(i.Dialect)
		}
	})
	switch {
	case !there: // the next sync compares it
		return true, sum, nil
	case s == layout.Structure:
		have, err := i.conn.List(i.Table())
		return have != nil && !have.Dormant && have.Others == 0 && have.Equal(structure), sum, err
	case want.Count == 0: // a sync has removed it meanwhile
		return true, sum, nil
	}
	sum, err = i.checksumOf(ctx, s, want.Count)
	return sum == want, sum, err
}

// checksumOf computes the checksum of a set that should have so many elements.
func (i *inspection) checksumOf(ctx context.Context, s layout.Set, count int) (t layout.Checksum, err error) {
	var key []byte
	add := func(e *nft.Element) error {
		key = append(append(key[:0], e.Key...), e.KeyEnd...)
		t.Add(key, e.Data, e.Comment, 1)
		return ctx.Err()
	}
	if s.FullSlots() && count > manyElements {
		err = i.eachSlot(ctx, s, add)
	} else {
		err = i.conn.Scan(i.Table(), s.Name(), add)
	}
	if errors.Is(err, unix.ENOENT) { // there is no such set
		return layout.Checksum{Count: -1}, nil
	}
	return t, err
}

// eachSlot asks for the slots that the frontends of a size should have, as
// compareByKey does: there are too many to be listed. It ends with the first
// frontends that lack some.
func (i *inspection) eachSlot(ctx context.Context, s layout.Set, each func(*nft.Element) error) error {
	var fronts [][]byte
	of, n := s.Fronts()
	err := i.conn.Scan(i.Table(), of.Name(), func(e *nft.Element) error {
		fronts = append(fronts, append(make([]byte, 0, len(e.Key)+4), e.Key...))
		return ctx.Err()
	})
	for part := range slices.Chunk(fronts, 1000) {
		if err != nil {
			break
		}
		proxier.Progressed(ctx)
		found := 0
		key := func(k int) []byte { return layout.PutNumber(part[k/n], uint32(k%n)) }
		failed := i.conn.Get(i.Table(), s.Name(), n*len(part), key, func(_ int, e *nft.Element) {
			found++
			err = errors.Join(err, each(e))
		})
		if err = errors.Join(failed, err); found < n*len(part) {
			break
		}
	}
	return err
}
