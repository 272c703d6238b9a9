package nftables

import (
	"fmt"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Compare returns what Plan says where the kernel holds one State exactly, without
// clients that keep endpoints, and is to hold another of the same family. It needs no kernel.
func Compare(before, after *policy.State) ([]proxier.Change, error) {
	if err := layout.CheckHost(&after.Host); err != nil {
		return nil, fmt.Errorf("nftables, %s: %w", after.Family, err)
	}
	have, want := layout.Render(before), layout.Render(after)
	d := &difference{want: want, have: have.Listing(), counts: want.Counts(), elements: map[layout.Set]*setDifference{}}
	for _, s := range layout.SetsInUse(d.counts) {
		if d.hasSet(s) && !s.IsDynamic() {
			d.elements[s] = differenceOf(have.Records(s), want.Records(s))
		}
	}
	return d.changes(), nil
}

// differenceOf returns what differs between two records of the same set.
func differenceOf(have, want *layout.Records) *setDifference {
	seen, diff := make([]presence, want.Count()), &setDifference{}
	for i := range have.Count() {
		e := have.Element(i)
		if n := want.Find(have.Key(i)); n >= 0 {
			seen[n] = presenceOf(want, n, &e)
		} else {
			diff.extra = append(diff.extra, e)
		}
	}
	diff.extra = withoutDuplicates(diff.extra)
	diff.classify(seen)
	return diff
}
