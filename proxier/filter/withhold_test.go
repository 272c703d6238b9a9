package filter

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"svcproxy/netutil/ipset"
	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
	"svcproxy/source"
)

// Servers are lacking, and are to be had again, whether or not their frontends
// are part of a change.
func TestWithheldMembersFollow(t *testing.T) {
	families(t, func(t *testing.T, fam proxier.Family) {
		rapid.Check(t, func(rt *rapid.T) { checkWithheld(rt, fam) })
	})
}

func checkWithheld(rt *rapid.T, fam proxier.Family) {
	pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "pick") }
	w := filtertest.NewWorld(fam)
	r := NewIPVSRules(fam)
	if err := r.Reset(w.State); err != nil {
		rt.Fatal(err)
	}
	got := pictureOf(r, w.State)
	for range pick(12) {
		number := pick(4)
		key := source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", number)}
		delta := &proxier.Delta{} // a repair comes with none
		if pick(2) == 0 {
			delta = w.Put(key, w.Random(pick, number))
		}
		ch := r.Update(delta)
		late := r.Late(ch)
		checkServed(rt, r, got, ch)
		got.apply(r, ch)
		withheld := lacking(r, pick)
		r.Withhold(withheld, late)
		checkServed(rt, r, got, late)
		got.apply(r, late)

		fresh := NewIPVSRules(fam)
		if err := fresh.Reset(w.State); err != nil {
			rt.Fatal(err)
		}
		fresh.Withhold(withheld, nil)
		want := pictureOf(fresh, w.State)
		if diff := cmp.Diff(want.members, got.members, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			rt.Fatalf("sets (-reset +deltas), withheld %v:\n%s", withheld, diff)
		}
	}
}

// checkServed fails if members come that are there, or go that are not: a mirror
// of the set counts them.
func checkServed(rt *rapid.T, r *Rules, p picture, ch *Changes) {
	name := r.words.set(servedSet)
	for _, e := range ch.Gained[name] {
		if _, has := p.members[name][e]; has {
			rt.Fatalf("%v is gained twice", e)
		}
	}
	for _, e := range ch.Lost[name] {
		if _, has := p.members[name][e]; !has {
			rt.Fatalf("%v is lost, and was not there", e)
		}
	}
}

// lacking returns some of the frontends that would be served.
func lacking(r *Rules, pick func(int) int) map[ipset.Entry]bool {
	out := map[ipset.Entry]bool{}
	members := slices.SortedFunc(maps.Keys(r.members), func(a, b member) int { return slices.Compare([]byte(a.String()), []byte(b.String())) })
	for _, m := range members {
		if m.set == servedSet && pick(3) == 0 {
			out[m.Entry] = true
		}
	}
	return out
}
