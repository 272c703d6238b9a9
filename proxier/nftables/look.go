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

// look reads the whole table, or only what the last look could not decide if
// there is no reason for more.
func (b *Backend) look(ctx context.Context) (differs bool, err error) {
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
	defer func() { err = errors.Join(err, conn.Close()) }()
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
	differs, unsettled, err := b.lookAt(ctx, conn, parts)
	if err == nil {
		b.unsettled = unsettled
		if sure {
			b.foreign.Store(foreign)
		}
	}
	return differs, err
}

// lookAt reads parts of the table until one differs, and returns those that syncs were changing.
func (b *Backend) lookAt(ctx context.Context, conn *nft.Conn, parts []layout.Set) (differs bool, unsettled []layout.Set, err error) {
	for _, s := range parts {
		proxier.Progressed(ctx)
		if s.IsDynamic() {
			continue
		}
		differs, settled, err := b.lookAtPart(ctx, conn, s)
		if differs || err != nil {
			return differs, unsettled, err
		}
		if !settled {
			unsettled = append(unsettled, s)
		}
	}
	return false, unsettled, nil
}

// lookAtPart reads a part of the table, several times where it differs or is being changed. Nothing counts that was read
// beside a sync of ours that changed it; another checksum counts when it is found twice.
func (b *Backend) lookAtPart(ctx context.Context, conn *nft.Conn, s layout.Set) (differs, settled bool, err error) {
	first := layout.Checksum{Count: -2} // none that is read: two readings are needed
	if s == layout.Structure {
		first = layout.Checksum{} // what each reading of it gives
	}
	last, meanwhile := first, b.beginLook()
	defer func() { b.endLook(meanwhile) }()
	pause := lookPause
	for n := 1; ; n++ {
		same, got, err := b.reading(ctx, conn, s)
		switch {
		case errors.Is(err, nft.ErrChanged):
		case err != nil || same:
			return false, true, err
		case b.changed(meanwhile, s):
			b.endLook(meanwhile)
			last, meanwhile = first, b.beginLook()
		case got == last:
			return true, true, nil
		default:
			last = got
		}
		if n == lookAttempts {
			return false, false, nil
		}
		select {
		case <-ctx.Done():
			return false, false, ctx.Err()
		case <-time.After(pause):
		}
		pause *= 2
	}
}

// reading reads a part of the table once. What is as the mirror says is so, whatever happened meanwhile.
func (b *Backend) reading(ctx context.Context, conn *nft.Conn, s layout.Set) (same bool, sum layout.Checksum, err error) {
	var structure *nft.Listing
	var want layout.Checksum
	there := b.known(func(m *layout.Mirror) {
		if want = m.Checksums[s]; s == layout.Structure {
			structure = m.Listing(b.Dialect)
		}
	})
	switch {
	case !there: // the next sync compares it
		return true, sum, nil
	case s == layout.Structure:
		have, err := conn.List(b.Table())
		return have != nil && !have.Dormant && have.Others == 0 && have.Equal(structure), sum, err
	case want.Count == 0: // a sync has removed it meanwhile
		return true, sum, nil
	}
	sum, err = b.checksumOf(ctx, conn, s, want.Count)
	return sum == want, sum, err
}

// checksumOf computes the checksum of a set that should have so many elements.
func (t *tableConn) checksumOf(ctx context.Context, conn *nft.Conn, s layout.Set, count int) (sum layout.Checksum, err error) {
	add := func(e *nft.Element) error {
		sum.Add(e.Key, e.Data, e.Comment, 1)
		return ctx.Err()
	}
	if s.FullSlots() && count > manyElements {
		err = t.eachSlot(ctx, conn, s, add)
	} else {
		err = conn.Scan(t.Table(), s.Name(), add)
	}
	if errors.Is(err, unix.ENOENT) { // there is no such set
		return layout.Checksum{Count: -1}, nil
	}
	return sum, err
}

// eachSlot asks for the slots that the frontends of a size should have, as
// compareByKey does: there are too many to be listed. It ends with the first
// frontends that lack some.
func (t *tableConn) eachSlot(ctx context.Context, conn *nft.Conn, s layout.Set, each func(*nft.Element) error) error {
	var fronts [][]byte
	of, n := s.Fronts()
	err := conn.Scan(t.Table(), of.Name(), func(e *nft.Element) error {
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
		failed := conn.Get(t.Table(), s.Name(), n*len(part), key, func(_ int, e *nft.Element) {
			found++
			err = errors.Join(err, each(e))
		})
		if err = errors.Join(failed, err); found < n*len(part) {
			break
		}
	}
	return err
}
