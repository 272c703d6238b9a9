package filter

import (
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/looks"
)

// An edit is an object that a difference changes. Only Plan wants it in words: a sync of
// 10,000 services would format and sort many that nobody reads.
type edit struct {
	op string // as in proxier.Change
	object
}

type editKind uint8

const (
	chainEdit editKind = iota
	jumpsEdit
	setEdit
	membersEdit // of a set, some or none
)

// text names a chain or set, or jumps, as users see them. tool is the name of the programs.
func (o object) text(tool string) string {
	switch o.kind {
	case chainEdit:
		return tool + " chain " + o.table + " " + o.name
	case jumpsEdit:
		return tool + " jumps of " + o.table + " " + o.name
	}
	return "ip set " + o.name
}

// memberChanges returns the same change of members of a set, in order.
func memberChanges(op, set string, members []ipset.Entry) []proxier.Change {
	list := make([]proxier.Change, len(members))
	for i, e := range members {
		list[i] = proxier.Change{Op: op, Object: "ip set " + set + " member " + e.String()}
	}
	slices.SortFunc(list, func(a, b proxier.Change) int { return strings.Compare(a.Object, b.Object) })
	return list
}

type chainID struct{ table, name string }

// An object is a chain of ours, the jumps of a built-in chain, or a set.
type object struct {
	kind        editKind
	table, name string
}

func (id chainID) as(kind editKind) object { return object{kind, id.table, id.name} }

func setObject(name string) object { return object{kind: setEdit, name: name} }

// ofKind returns the chains, or built-in chains, among objects.
func ofKind(o *looks.Objects[object], kind editKind) (list []chainID) {
	for key := range o.Some {
		if key.kind == kind {
			list = append(list, chainID{key.table, key.name})
		}
	}
	return list
}
