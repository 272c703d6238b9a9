package layout

import (
	"bytes"
	"iter"
	"slices"

	"svcproxy.dev/svcproxy/netutil/nft"
)

// Edits are what makes the elements of one set what its records say.
type Edits struct {
	Set   Set
	Want  *Records
	seen  []uint8        // of each record, what the set has with its key
	extra []*nft.Element // whose keys no record has
}

const (
	keyAbsent  = iota // no element
	keyEqual          // an equal one
	keyDiffers        // another
)

// NewEdits returns the edits of a set without elements, until these are seen.
func NewEdits(s Set, want *Records) *Edits {
	return &Edits{Set: s, Want: want, seen: make([]uint8, want.Count())}
}

// See takes an element that the set has, and reports whether a record is equal.
func (d *Edits) See(e *nft.Element) bool {
	i := d.Want.Find(e.Key)
	if i < 0 {
		b, k := slices.Concat(e.Key, e.Data), len(e.Key)
		d.extra = append(d.extra, &nft.Element{Key: b[:k], Data: b[k:], Comment: e.Comment})
		return false
	}
	return d.SeeKey(i, e)
}

// SeeKey is See for an element whose key is that of a record.
func (d *Edits) SeeKey(i int, e *nft.Element) bool {
	d.seen[i] = keyDiffers
	if bytes.Equal(d.Want.Data(i), e.Data) && d.Want.comment(i) == e.Comment {
		d.seen[i] = keyEqual
	}
	return d.seen[i] == keyEqual
}

// SeeAll is See for an equal element of each record.
func (d *Edits) SeeAll() {
	for i := range d.seen {
		d.seen[i] = keyEqual
	}
}

// Missing returns the numbers of the records whose keys the set does not have.
func (d *Edits) Missing() (numbers []int) {
	for i, found := range d.seen {
		if found == keyAbsent {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// Empty reports whether the set is as its records say.
func (d *Edits) Empty() bool {
	return len(d.extra) == 0 && !slices.ContainsFunc(d.seen, func(p uint8) bool { return p != keyEqual })
}

// Added returns the elements that the set lacks, Changed those of which it has another with the key.
func (d *Edits) Added() iter.Seq[nft.Element] { return d.records(keyAbsent) }

func (d *Edits) Changed() iter.Seq[nft.Element] { return d.records(keyDiffers) }

func (d *Edits) records(is uint8) iter.Seq[nft.Element] {
	return func(yield func(nft.Element) bool) {
		for i, found := range d.seen {
			if found == is && !yield(d.Want.Element(i)) {
				return
			}
		}
	}
}

// Removed returns the elements that the set should not have, by key. Listings may have one twice.
func (d *Edits) Removed() iter.Seq[nft.Element] {
	slices.SortFunc(d.extra, func(a, b *nft.Element) int { return bytes.Compare(a.Key, b.Key) })
	d.extra = slices.CompactFunc(d.extra, func(a, b *nft.Element) bool { return bytes.Equal(a.Key, b.Key) })
	return func(yield func(nft.Element) bool) {
		for _, e := range d.extra {
			if !yield(*e) {
				return
			}
		}
	}
}
