package nftables

import (
	"fmt"
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

func newModel(t *rapid.T, d *dialect, c *content) *model {
	m := &model{sets: map[string]map[string]string{}, chains: map[string][]nft.Rule{}}
	for _, s := range setsInUse(c.counts()) {
		m.sets[s.name()] = map[string]string{}
	}
	for s, rec := range c.sets {
		for i := range rec.count() {
			if old, ok := m.sets[s.name()][string(rec.key(i))]; ok {
				t.Fatalf("set %s: %x twice, the first with %q", s.name(), rec.key(i), old)
			}
			m.sets[s.name()][string(rec.key(i))] = string(rec.data(i)) + rec.comment(i)
		}
	}
	for _, w := range marshalled(t, d, c) {
		m.chains[w.Name] = w.rules
	}
	return m
}

func marshalled(t *rapid.T, d *dialect, c *content) []*kernelChain {
	list, err := d.marshal(c.chains)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (m *model) apply(t *rapid.T, u *tableUpdate) {
	for _, s := range u.freshSets {
		if m.sets[s.name()] != nil {
			t.Fatalf("set %s is there already", s.name())
		}
		m.sets[s.name()] = map[string]string{}
	}
	m.changeChains(t, u.widened)
	for _, c := range u.elements {
		if _, ok := m.sets[c.set.name()][c.key]; c.existed && !ok {
			t.Fatalf("set %s: removing %x, which is not there", c.set.name(), c.key)
		}
		if c.existed {
			delete(m.sets[c.set.name()], c.key)
		}
	}
	for _, c := range u.elements {
		if _, ok := m.sets[c.set.name()][c.key]; c.exists && ok {
			t.Fatalf("set %s: adding %x, which is there", c.set.name(), c.key)
		}
		if c.exists {
			m.sets[c.set.name()][c.key] = string(c.newData) + c.newComment
		}
	}
	m.changeChains(t, u.narrowed)
	for _, s := range u.unusedSets {
		if n := len(m.sets[s.name()]); n > 0 && !s.isDynamic() {
			t.Fatalf("set %s is removed with %d elements", s.name(), n)
		}
		delete(m.sets, s.name())
	}
}

func (m *model) changeChains(t *rapid.T, ch chainChanges) {
	for _, c := range ch.fresh {
		if _, ok := m.chains[c.Name]; ok {
			t.Fatalf("chain %s is there already", c.Name)
		}
		m.chains[c.Name] = c.rules
	}
	for _, c := range ch.rewritten {
		if _, ok := m.chains[c.Name]; !ok {
			t.Fatalf("chain %s is rewritten, and not there", c.Name)
		}
		m.chains[c.Name] = c.rules
	}
	for _, name := range ch.gone {
		delete(m.chains, name)
	}
}

// hold returns the mirror of a kernel that holds c.
func hold(t *rapid.T, d *dialect, c *content, st *policy.State) *mirror {
	h := &mirror{tallies: c.tallies(), chains: map[string]*kernelChain{}, pools: c.pools, host: st.Host}
	for _, w := range marshalled(t, d, c) {
		h.chains[w.Name] = w
	}
	return h
}

// Whatever changes come one after the other, in transactions however small, the
// table is what one look at the end state makes.
func TestDeltasEqualRender(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fam := rapid.SampledFrom([]policy.Family{policy.IPv4, policy.IPv6}).Draw(t, "family")
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }
		d, w := dialects[fam], backendtest.NewWorld(fam)
		for i := range pick(7) {
			w.Put(named(i), w.Random(pick, i))
		}
		start := render(d, w.State)
		have, h := newModel(t, d, start), hold(t, d, start, w.State)
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
			if !h.pools.renumber(delta.Services) {
				t.Fatal("pools of random names have the same hash")
			}
			most := []int{1, 30, chunkElements}[pick(3)]
			for _, piece := range chunks(delta, most) {
				u, err := h.follow(d, piece)
				if err != nil {
					t.Fatal(err)
				}
				if n := len(u.elements); n > elementsOf(piece) {
					t.Fatalf("%d elements change, %d were estimated", n, elementsOf(piece))
				}
				have.apply(t, u)
			}
		}
		end := render(d, w.State)
		want := newModel(t, d, end)
		if diff := cmp.Diff(want.sets, have.sets); diff != "" {
			t.Fatalf("sets (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want.chains, have.chains); diff != "" {
			t.Fatalf("chains (-want +got):\n%s", diff)
		}
		if !maps.Equal(h.tallies, end.tallies()) {
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
		return len(render(dialects[policy.IPv4], w.State).chains)
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
		return s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Addr: backendtest.Addr(w.Family, "vip", len(name))}, Outside: route, Local: route})
	}
	a, b := sticky("a"), sticky("bb")
	same := func(string) uint32 { return 1<<32 - 1 }
	ids := newPoolIDs(same)
	ids.number(w.State)
	if !ids.renumber(w.Put(a.Key, a).Services) {
		t.Error("a first pool needs a look at all others")
	}
	if ids.renumber(w.Put(b.Key, b).Services) {
		t.Error("a second pool of the same hash was numbered without a look at the first")
	}
	ids = newPoolIDs(same)
	ids.number(w.State)
	if x, y := ids.id(a.Pools[0]), ids.id(b.Pools[0]); x != 1<<32-1 || y != 0 {
		t.Errorf("numbers: got %d and %d", x, y)
	}
	if ids.renumber(w.Put(a.Key, nil).Services) {
		t.Error("a pool went whose number another one wants, without a look at that")
	}
}

// Sets that more frontends are in come first, also once a delta makes it so.
func TestOrderFollowsCounts(t *testing.T) {
	w, d := backendtest.NewWorld(policy.IPv4), dialects[policy.IPv4]
	start := render(d, w.State)
	h := &mirror{tallies: start.tallies(), chains: map[string]*kernelChain{}, pools: start.pools, host: w.Host}
	var order []string
	for n, endpoints := range []int{1, 2, 2, 2, 2} {
		res := backendtest.Web(w.Family, n, endpoints)
		if _, err := h.follow(d, w.Put(res.Key, res)); err != nil {
			t.Fatal(err)
		}
		chains, err := d.marshal(render(d, w.State).chains)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range chains {
			if diff := cmp.Diff(c.rules, h.chains[c.Name].rules); diff != "" {
				t.Errorf("%d services: chain %s (-want +got):\n%s", n+1, c.Name, diff)
			}
		}
		l := layout{dialect: d, host: &w.Host, counts: h.counts()}
		order = append(order, l.ordered(bySize, classAddr)[0].name())
	}
	want := []string{"size-1", "size-1", "size-2", "size-2", "size-2"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("first of the sets (-want +got):\n%s", diff)
	}
}
