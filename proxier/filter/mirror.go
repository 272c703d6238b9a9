package filter

import (
	"hash/maphash"
	"sync"

	"svcproxy/netutil/ipset"
	"svcproxy/netutil/xtables"
)

// A mirror is what the kernel was last made to hold of ours. Syncs keep it; a
// look at the kernel, which runs beside them, is compared with it.
type mirror struct {
	// Changed by the goroutine of the syncs only, with the lock held: it reads without.
	chains     sums // nil: unknown
	sets       map[string]setSum
	jumps      []Jump
	referenced map[chainID]bool // chains to be removed, empty, but for rules of others that lead to them

	mu      sync.Mutex
	writing *touched              // what the write under way changes; nil: there is none
	looks   map[*touched]struct{} // what has been changed since each look began
	damage  damage

	resets int // how often
	writes int // that have begun
}

type chainID struct{ table, name string }

// A tally stands for the members of a set, in any order.
type setSum struct {
	n   int
	sum uint64
}

var entrySeed = maphash.MakeSeed()

func (t *setSum) add(e ipset.Entry)    { t.n++; t.sum += maphash.Comparable(entrySeed, e) }
func (t *setSum) remove(e ipset.Entry) { t.n--; t.sum -= maphash.Comparable(entrySeed, e) }

func sumOfSet(entries []ipset.Entry) (t setSum) {
	for _, e := range entries {
		t.add(e)
	}
	return t
}

// touched are chains and sets that syncs have changed, or may have.
type touched struct {
	all    bool
	chains map[chainID]bool
	sets   map[string]bool
}

func newTouched() *touched {
	return &touched{chains: map[chainID]bool{}, sets: map[string]bool{}}
}

func (t *touched) chain(id chainID) bool { return t.all || t.chains[id] }
func (t *touched) set(name string) bool  { return t.all || t.sets[name] }

func (t *touched) merge(u *touched) {
	t.all = t.all || u.all
	for id := range u.chains {
		t.chains[id] = true
	}
	for name := range u.sets {
		t.sets[name] = true
	}
}

// known reports whether the mirror says what the kernel holds.
func (m *mirror) known() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.chains != nil
}

// begin says what a write is going to change. Until end nobody knows it.
func (m *mirror) begin(t *touched) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writing = t
	m.writes++
	for l := range m.looks {
		l.merge(t)
	}
}

// end says that a write has succeeded, and what the kernel holds now.
func (m *mirror) end(update func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writing = nil
	update()
}

// forget says that a write has failed, or that one begins which changes everything.
func (m *mirror) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writing, m.chains, m.sets, m.damage = nil, nil, nil, damage{}
	m.resets++
	m.writes++
	for l := range m.looks {
		l.all = true
	}
}

// count returns how often the mirror has been forgotten.
func (m *mirror) resetCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resets
}

// writesNow returns how many writes have begun.
func (m *mirror) writeCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

// look begins a look: what syncs change from now on is noted in the result.
func (m *mirror) beginLook() *touched {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := newTouched()
	t.all = m.chains == nil
	if m.writing != nil {
		t.merge(m.writing)
	}
	if m.looks == nil {
		m.looks = map[*touched]struct{}{}
	}
	m.looks[t] = struct{}{}
	return t
}

// looked ends a look. found, called with the lock held, notes what differs. The
// result is whether that says something of all chains: syncs have changed none meanwhile.
func (m *mirror) endLook(t *touched, found func(*damage)) (allChains bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.looks, t)
	if t.all || found == nil {
		return false
	}
	found(&m.damage)
	return len(t.chains) == 0
}

// damaged reports whether a look has found something that differs.
func (m *mirror) damaged() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.damage.empty()
}

// unsettled reports whether something is being written, or waits to be repaired.
func (m *mirror) unsettled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writing != nil || !m.damage.empty()
}

// tell says that somebody hears of the damage, who will have it repaired.
func (m *mirror) markReported() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.damage.reported = !m.damage.empty()
}

// isTold reports whether somebody has heard of the damage.
func (m *mirror) reported() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.damage.reported
}

// takeDamage returns what looks have found, and forgets it.
func (m *mirror) takeDamage() damage {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.damage
	m.damage = damage{}
	return d
}

// damage is what differs from the mirror: found by a look, repaired by a sync.
type damage struct {
	chains   map[chainID]bool // changed, missing, or too many
	jumps    map[chainID]bool // built-in chains whose rules that lead to ours differ
	sets     map[string]bool  // changed, missing, or too many
	whole    bool             // only a full comparison can repair it
	reported bool             // somebody was told of it, and has it repaired
}

func (d *damage) empty() bool {
	return len(d.chains)+len(d.jumps)+len(d.sets) == 0 && !d.whole
}

func note[T comparable](m *map[T]bool, v T) {
	if *m == nil {
		*m = map[T]bool{}
	}
	(*m)[v] = true
}

// compareTables notes in d how tables, read while t was touched, differ from the mirror.
func (m *mirror) compareTables(tables map[string]*xtables.Table, t *touched, d *damage) {
	for table, chains := range m.chains {
		var have map[string]xtables.Sum
		if tab := tables[table]; tab != nil {
			have = tab.Chains
		}
		for name, sum := range chains {
			was, exists := have[name]
			if id := (chainID{table, name}); !t.chain(id) && (!exists || was != sum) {
				note(&d.chains, id)
			}
		}
	}
	for table, tab := range tables {
		for name := range tab.Chains {
			id := chainID{table, name}
			if _, ours := m.chains[table][name]; !ours && !t.chain(id) {
				note(&d.chains, id)
			}
		}
	}
	m.compareReferenced(tables, t, d)
	m.compareJumps(tables, d)
}

// compareKept notes chains that can be removed at last.
func (m *mirror) compareReferenced(tables map[string]*xtables.Table, t *touched, d *damage) {
	for id := range m.referenced {
		if tab := tables[id.table]; tab != nil && len(tab.ReferencedBy(id.name)) == 0 && !t.chain(id) {
			note(&d.chains, id)
		}
	}
}

// compareJumps notes built-in chains that do not lead to ours as they should. No
// sync with a delta changes them.
func (m *mirror) compareJumps(tables map[string]*xtables.Table, d *damage) {
	built := map[chainID]bool{}
	for _, j := range m.jumps {
		built[chainID{j.Table, j.Chain}] = true
	}
	for table, tab := range tables {
		for chain := range tab.Policies {
			built[chainID{table, chain}] = true
		}
	}
	for id := range built {
		var tab xtables.Table
		if t := tables[id.table]; t != nil {
			tab = *t
		}
		if !inPlace(&tab, id.name, wantedJumps(m.jumps, id)) {
			note(&d.jumps, id)
		}
	}
}
