package layout

import (
	"fmt"
	"iter"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A model is a table that does what the kernel does with a transaction, and
// refuses what the kernel refuses.
type model struct {
	sets   map[string]map[string]string // name, key, data and comment
	chains map[string][]nft.Rule
}

func newModel(t *rapid.T, c *Content) *model {
	m := &model{sets: map[string]map[string]string{}, chains: map[string][]nft.Rule{}}
	for _, s := range SetsInUse(c.Counts()) {
		m.sets[s.Name()] = map[string]string{}
	}
	for s, rec := range c.Sets {
		for i := range rec.Count() {
			if old, ok := m.sets[s.Name()][string(rec.Key(i))]; ok {
				t.Fatalf("set %s: %x twice, the first with %q", s.Name(), rec.Key(i), old)
			}
			m.sets[s.Name()][string(rec.Key(i))] = string(rec.Data(i)) + rec.comment(i)
		}
	}
	for _, w := range c.Chains {
		m.chains[w.Name] = w.Rules
	}
	return m
}

func (m *model) apply(t *rapid.T, u *TableUpdate) {
	for _, s := range u.FreshSets {
		if m.sets[s.Name()] != nil {
			t.Fatalf("set %s is there already", s.Name())
		}
		m.sets[s.Name()] = map[string]string{}
	}
	m.changeChains(t, u.Widened)
	for _, e := range u.Edits {
		set := m.sets[e.Set.Name()]
		for gone := range chain(e.Removed(), e.Changed()) {
			if _, ok := set[keyOf(gone)]; !ok {
				t.Fatalf("set %s: removing %x, which is not there", e.Set.Name(), gone.Key)
			}
			delete(set, keyOf(gone))
		}
	}
	for _, e := range u.Edits {
		set := m.sets[e.Set.Name()]
		for added := range chain(e.Added(), e.Changed()) {
			if _, ok := set[keyOf(added)]; ok {
				t.Fatalf("set %s: adding %x, which is there", e.Set.Name(), added.Key)
			}
			set[keyOf(added)] = string(added.Data) + added.Comment
		}
	}
	m.changeChains(t, u.Narrowed)
	for _, s := range u.UnusedSets {
		if n := len(m.sets[s.Name()]); n > 0 && !s.IsDynamic() {
			t.Fatalf("set %s is removed with %d elements", s.Name(), n)
		}
		delete(m.sets, s.Name())
	}
}

func keyOf(e nft.Element) string { return string(e.Key) }

// chain yields what each of two yields.
func chain(a, b iter.Seq[nft.Element]) iter.Seq[nft.Element] {
	return func(yield func(nft.Element) bool) {
		for e := range a {
			yield(e)
		}
		for e := range b {
			yield(e)
		}
	}
}

// sizeOf returns how many elements a change adds, replaces and removes.
func sizeOf(u *TableUpdate) (n int) {
	for _, e := range u.Edits {
		for range chain(e.Removed(), chain(e.Added(), e.Changed())) {
			n++
		}
	}
	return n
}

func (m *model) changeChains(t *rapid.T, ch ChainChanges) {
	for _, c := range ch.Fresh {
		if _, ok := m.chains[c.Name]; ok {
			t.Fatalf("chain %s is there already", c.Name)
		}
		m.chains[c.Name] = c.Rules
	}
	for _, c := range ch.Rewritten {
		if _, ok := m.chains[c.Name]; !ok {
			t.Fatalf("chain %s is rewritten, and not there", c.Name)
		}
		m.chains[c.Name] = c.Rules
	}
	for _, name := range ch.Gone {
		delete(m.chains, name)
	}
}

// Whatever changes come one after the other, in transactions however small, the
// table is what one look at the end state makes.
func TestDeltasEqualRender(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fam := rapid.SampledFrom([]policy.Family{policy.IPv4, policy.IPv6}).Draw(t, "family")
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }
		d, w := Dialects[fam], backendtest.NewWorld(fam)
		for i := range pick(7) {
			w.Put(named(i), w.Random(pick, i))
		}
		start := Render(w.State)
		have, h := newModel(t, start), NewMirror(start, start.Checksums(), &w.Host)
		for range 1 + pick(6) {
			changed := map[source.Key]*policy.Resolved{}
			if i := pick(5); pick(4) == 0 {
				changed[named(i)] = nil
			} else {
				changed[named(i)] = w.Random(pick, i)
			}
			changed[named(5+pick(2))] = nil // others go in the same step
			from, to := named(pick(9)), named(7+pick(2))
			if _, again := changed[from]; !again && from != to && w.Services[from] != nil {
				changed[from], changed[to] = nil, renamed(w.Services[from], to)
			}
			delta := w.PutAll(changed)
			if !h.Pools.Renumber(delta.Services) {
				t.Fatal("pools of random names have the same hash")
			}
			most := []int{1, 30, ChunkElements}[pick(3)]
			for _, piece := range Chunks(delta, most) {
				u := h.Follow(d, piece)
				if n := sizeOf(u); n > elementsOf(piece) {
					t.Fatalf("%d elements change, %d were estimated", n, elementsOf(piece))
				}
				have.apply(t, u)
			}
		}
		end := Render(w.State)
		want := newModel(t, end)
		if diff := cmp.Diff(want.sets, have.sets); diff != "" {
			t.Fatalf("sets (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want.chains, have.chains); diff != "" {
			t.Fatalf("chains (-want +got):\n%s", diff)
		}
		if !maps.Equal(h.Checksums, end.Checksums()) {
			t.Fatal("the tallies differ from those of the end state")
		}
	})
}

func named(i int) source.Key { return source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)} }

// The number of chains depends on what services need, not on how many there are.
func TestChainsAreConstant(t *testing.T) {
	count := func(services int) int {
		w := backendtest.NewWorld(policy.IPv4)
		for i := range services {
			res := backendtest.Web(policy.IPv4, i, 1+i%3)
			w.Put(res.Key, res)
		}
		return len(Render(w.State).Chains)
	}
	if few, many := count(3), count(300); few != many {
		t.Errorf("chains of 3 services: %d, of 300: %d", few, many)
	}
}

// Pools whose names have the same hash are told apart, alike in every order, and
// a change among them needs a look at all.
func TestPoolsOfOneHash(t *testing.T) {
	w := backendtest.NewWorld(policy.IPv4)
	sticky := func(name string) *policy.Resolved {
		s := backendtest.Service{Name: name, Protocol: source.TCP, Affinity: 1, Targets: weighted(1, 1)}
		pool, _ := s.Pools()
		route := backendtest.Route(pool, policy.NoOne, policy.Reject)
		return s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Addr: backendtest.Addr(w.Family, "vip", len(name))}, Outside: route, FromLocal: route})
	}
	a, b := sticky("a"), sticky("bb")
	same := func(string) uint32 { return 1<<32 - 1 }
	ids := newPoolIDs(same)
	ids.number(w.State)
	if !ids.Renumber(w.Put(a.Key, a).Services) {
		t.Error("a first pool needs a look at all others")
	}
	if ids.Renumber(w.Put(b.Key, b).Services) {
		t.Error("a second pool of the same hash was numbered without a look at the first")
	}
	ids = newPoolIDs(same)
	ids.number(w.State)
	if x, y := ids.id(a.Pools[0]), ids.id(b.Pools[0]); x != 1<<32-1 || y != 0 {
		t.Errorf("numbers: got %d and %d", x, y)
	}
	if ids.Renumber(w.Put(a.Key, nil).Services) {
		t.Error("a pool went whose number another one wants, without a look at that")
	}
}

// Sets that more frontends are in come first, also once a delta makes it so.
func TestOrderFollowsCounts(t *testing.T) {
	w, d := backendtest.NewWorld(policy.IPv4), Dialects[policy.IPv4]
	start := Render(w.State)
	h := NewMirror(start, start.Checksums(), &w.Host)
	var order []string
	for n, endpoints := range []int{1, 2, 2, 2, 2} {
		res := backendtest.Web(w.Family, n, endpoints)
		h.Follow(d, w.Put(res.Key, res))
		for _, c := range Render(w.State).Chains {
			if diff := cmp.Diff(c.Rules, h.Chains[c.Name].Rules); diff != "" {
				t.Errorf("%d services: chain %s (-want +got):\n%s", n+1, c.Name, diff)
			}
		}
		l := chainRenderer{Dialect: d, host: &w.Host, counts: h.Counts()}
		order = append(order, l.ordered(bySize, classAddr)[0].Name())
	}
	want := []string{"size-1", "size-1", "size-2", "size-2", "size-2"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("first of the sets (-want +got):\n%s", diff)
	}
}
