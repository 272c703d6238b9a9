package nftables

import (
	"bytes"
	"slices"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
)

// A setDifference is what differs between the elements of a set.
type setDifference struct {
	missing, changed []int         // numbers of records
	extra            []nft.Element // whose keys no record has
}

func (d *setDifference) empty() bool { return len(d.missing)+len(d.changed)+len(d.extra) == 0 }

const (
	keyAbsent presence = iota
	keyEqual
	keyDiffers
)

// A presence says whether the kernel has no element with a record's key, an equal
// one, or another.
type presence uint8

func presenceOf(r *layout.Records, i int, e *nft.Element) presence {
	if r.Holds(i, e) {
		return keyEqual
	}
	return keyDiffers
}

// compareSet compares the elements of a set with those that the kernel lists.
func (t *tableConn) compareSet(s layout.Set, rec *layout.Records) (*setDifference, error) {
	seen := make([]presence, rec.Count())
	diff := &setDifference{}
	var key []byte
	err := t.conn.Scan(t.Table(), s.Name(), func(e *nft.Element) error {
		key = append(append(key[:0], e.Key...), e.KeyEnd...)
		if i := rec.Find(key); i >= 0 {
			seen[i] = presenceOf(rec, i, e)
		} else {
			diff.extra = append(diff.extra, clone(e))
		}
		return nil
	})
	if err == nil && !s.IsInterval() {
		err = t.confirm(s, rec, seen)
	}
	if err != nil {
		return nil, err
	}
	diff.extra = withoutDuplicates(diff.extra)
	diff.classify(seen)
	return diff, nil
}

// confirm asks for each element that a listing left out: it may exist.
func (t *tableConn) confirm(s layout.Set, rec *layout.Records, seen []presence) error {
	var missing []int
	for i, found := range seen {
		if found == keyAbsent {
			missing = append(missing, i)
		}
	}
	return t.conn.Get(t.Table(), s.Name(), len(missing), func(i int) []byte { return rec.Key(missing[i]) },
		func(i int, e *nft.Element) { seen[missing[i]] = presenceOf(rec, missing[i], e) })
}

// withoutDuplicates drops elements that were listed twice.
func withoutDuplicates(list []nft.Element) []nft.Element {
	slices.SortFunc(list, func(a, b nft.Element) int { return bytes.Compare(a.Key, b.Key) })
	return slices.CompactFunc(list, func(a, b nft.Element) bool {
		return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.KeyEnd, b.KeyEnd)
	})
}

// manyElements is how many elements are listed at most where asking by key will do: of twice as many, listing
// takes four times as long, 0.3 s for 100,000 of them and a minute for a million. It is less in tests.
var manyElements = 100_000

// compareByKey asks the kernel for each element that should exist. No packet meets any
// other of full slots: every frontend of the size has all its slots.
func (t *tableConn) compareByKey(s layout.Set, rec *layout.Records) (*setDifference, error) {
	seen, diff := make([]presence, rec.Count()), &setDifference{}
	err := t.conn.Get(t.Table(), s.Name(), rec.Count(), rec.Key, func(i int, e *nft.Element) { seen[i] = presenceOf(rec, i, e) })
	diff.classify(seen)
	return diff, err
}

// classify adds the records that are missing or differ.
func (d *setDifference) classify(seen []presence) {
	for i, found := range seen {
		switch found {
		case keyAbsent:
			d.missing = append(d.missing, i)
		case keyDiffers:
			d.changed = append(d.changed, i)
		}
	}
}

func clone(e *nft.Element) nft.Element {
	return nft.Element{Key: bytes.Clone(e.Key), KeyEnd: bytes.Clone(e.KeyEnd), Data: bytes.Clone(e.Data), Comment: e.Comment}
}

// staleTickets lists the tickets of endpoints that have left their pool.
func (t *tableConn) staleTickets(targets *layout.Records) (list []nft.Element, err error) {
	err = t.conn.Scan(t.Table(), layout.Tickets.Name(), func(e *nft.Element) error {
		if len(e.Key) == len(layout.PoolKey{}) && targets.Find(e.Key) < 0 {
			list = append(list, clone(e))
		}
		return nil
	})
	return withoutDuplicates(list), err
}
