package filter

import (
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier"
)

// An edit is an object that a difference changes. Only Plan wants it in words: a sync of
// 10,000 services would format and sort many that nobody reads.
type edit struct {
	op          string // as in proxier.Change
	kind        editKind
	table, name string
}

type editKind uint8

const (
	chainEdit editKind = iota
	jumpsEdit
	setEdit
	membersEdit // of a set, some or none
)

func (d *difference) edit(op string, kind editKind, table, name string) {
	d.edits = append(d.edits, edit{op, kind, table, name})
}

// changes returns the difference as Plan reports it.
func (d *difference) changes() (list []proxier.Change) {
	for _, e := range d.edits {
		switch e.kind {
		case chainEdit:
			list = append(list, proxier.Change{Op: e.op, Object: d.tool + " chain " + e.table + " " + e.name})
		case jumpsEdit:
			list = append(list, proxier.Change{Op: e.op, Object: d.tool + " jumps of " + e.table + " " + e.name})
		case setEdit:
			list = append(list, proxier.Change{Op: e.op, Object: "ip set " + e.name})
		case membersEdit:
			list = append(list, memberChanges("add", e.name, d.gained[e.name])...)
			list = append(list, memberChanges("remove", e.name, d.lost[e.name])...)
		}
	}
	return list
}

// memberChanges returns the same change of members of a set, in order.
func memberChanges(op, set string, members []ipset.Entry) []proxier.Change {
	lines := make([]string, len(members))
	for i, e := range members {
		lines[i] = "ip set " + set + " member " + e.String()
	}
	slices.Sort(lines)
	list := make([]proxier.Change, len(lines))
	for i, l := range lines {
		list[i] = proxier.Change{Op: op, Object: l}
	}
	return list
}
