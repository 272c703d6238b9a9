package layout

import (
	"bytes"
	"cmp"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// An elementDiff finds what differs between the elements before a delta and after it. A
// pool has thousands, of which most stay: those take no memory of their own.
type elementDiff struct {
	fam  policy.Family
	old  map[Set]*oldElements
	list []*elementChange
}

// oldElements are those of a set before the delta, each at most once.
type oldElements struct {
	*Records
	seen []bool // which ones exist after it too
}

// before takes an element as it was; all of them come before those after the delta.
func (d *elementDiff) before(s Set, key, data []byte, note string) {
	old := d.old[s]
	if old == nil {
		old = &oldElements{Records: newRecords(s, d.fam)}
		d.old[s] = old
	}
	old.add(key, data, note)
	old.seen = append(old.seen, false)
}

// after takes an element as it will be.
func (d *elementDiff) after(s Set, key, data []byte, note string) {
	old, i := d.find(s, key)
	if i >= 0 {
		old.seen[i] = true
		if bytes.Equal(old.Data(i), data) && old.comment(i) == note {
			return
		}
	}
	c := &elementChange{set: s, key: string(key), exists: true, newData: slices.Clone(data), newComment: note}
	if i >= 0 {
		c.existed, c.oldData, c.oldComment = true, old.Data(i), old.comment(i)
	}
	d.list = append(d.list, c)
}

// find returns where an element was before the delta; -1: nowhere.
func (d *elementDiff) find(s Set, key []byte) (*oldElements, int) {
	old := d.old[s]
	if old == nil {
		return nil, -1
	}
	return old, old.Find(key)
}

// changes returns the elements that differ, by set.
func (d *elementDiff) changes() []*elementChange {
	for s, old := range d.old {
		for i, seen := range old.seen {
			if !seen {
				d.list = append(d.list, &elementChange{
					set: s, key: string(old.Key(i)), existed: true, oldData: old.Data(i), oldComment: old.comment(i),
				})
			}
		}
	}
	slices.SortFunc(d.list, func(x, y *elementChange) int {
		return cmp.Or(x.set.Compare(y.set), cmp.Compare(x.key, y.key))
	})
	return d.list
}
