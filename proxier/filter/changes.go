package filter

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
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

func (d *difference) edit(op string, kind editKind, table, name string) {
	d.edits = append(d.edits, edit{op, object{kind, table, name}})
}

// Changes returns what Resync would change.
func (k *Kernel) Changes(ctx context.Context, h *layout.Actual, c layout.Desired, st *policy.State) ([]proxier.Change, error) {
	list := k.compare(h, c, st).changes()
	for _, tool := range k.stale {
		tables, err := readAll(ctx, tool)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
		list = append(list, purged(tool, tables)...)
	}
	if there, err := nft.Exists(k.keepTable()); err == nil && !there && !k.keepFailed.Load() {
		list = append(list, proxier.Change{Op: "add", Object: "table inet " + k.keepTable().Name})
	}
	return list, nil
}

// purged returns what is removed of the variant that is not in use.
func purged(tool *xtables.Tool, tables map[string]*xtables.Table) []proxier.Change {
	d := &difference{tool: tool.String(), script: xtables.Script{}, want: sums{}, referenced: map[chainID]bool{}}
	for name, tab := range tables {
		d.want[name] = map[string]xtables.Sum{}
		for _, chain := range slices.Sorted(maps.Keys(tab.Chains)) {
			d.removeOrEmpty(chainID{name, chain}, tab.Chains[chain], func(id chainID) bool { return len(tab.ReferencedBy(id.name)) > 0 })
		}
	}
	d.compareJumps(tables, nil, &order{})
	return d.changes()
}

// changes returns the difference as Plan reports it.
func (d *difference) changes() (list []proxier.Change) {
	for _, e := range d.edits {
		switch e.kind {
		case chainEdit, jumpsEdit, setEdit:
			list = append(list, proxier.Change{Op: e.op, Object: e.text(d.tool)})
		case membersEdit:
			list = append(list, memberChanges("add", e.name, d.gained[e.name])...)
			list = append(list, memberChanges("remove", e.name, d.lost[e.name])...)
		}
	}
	return list
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
