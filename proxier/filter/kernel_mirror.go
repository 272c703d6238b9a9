package filter

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
)

// A mirror is what the kernel holds of ours after the last sync. Syncs update it; looks,
// which run beside them, compare the kernel with it.
type mirror struct {
	// Changed only by the goroutine of the syncs, with mu held; it reads them without.
	chains     sums // nil: unknown
	sets       map[string]setSum
	jumps      []Jump
	referenced map[chainID]bool // obsolete chains, kept empty because foreign rules jump to them

	mu      sync.Mutex
	writing *touched              // what the current write changes; nil: none
	looks   map[*touched]struct{} // what has been changed since each look began
	damage  damage

	resets int // how often the mirror was forgotten
	writes int // how many have begun
}

type chainID struct{ table, name string }

// A setSum is a checksum of the members of a set, in any order.
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

// touched are chains and sets that syncs changed, or may have changed.
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
	maps.Copy(t.chains, u.chains)
	maps.Copy(t.sets, u.sets)
}

// A standing is what those beside the syncs may know of a mirror.
type standing struct {
	known    bool   // what the kernel holds
	jumps    []Jump // of built-in chains to ours; none while they are unknown
	writing  bool
	damaged  bool // a look found a difference
	reported bool // which Watch has reported
	resets   int  // how often the mirror was forgotten
	writes   int  // how many have begun
}

func (m *mirror) now() standing {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := standing{
		known: m.chains != nil, writing: m.writing != nil, damaged: !m.damage.empty(), reported: m.damage.reported,
		resets: m.resets, writes: m.writes,
	}
	if s.known {
		s.jumps = m.jumps
	}
	return s
}

// begin notes what a write is going to change, which is unknown until end.
func (m *mirror) begin(t *touched) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beginLocked(t)
}

func (m *mirror) beginLocked(t *touched) {
	m.writing = t
	m.writes++
	for l := range m.looks {
		l.merge(t)
	}
}

// end notes that a write succeeded; update sets what the kernel holds now.
func (m *mirror) end(update func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writing = nil
	update()
}

// forget clears the mirror: a write failed, or one begins that changes everything.
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

// beginLook begins a look: syncs note in the result what they change from now on.
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

// endLook ends a look. found, called with mu held, notes what differs. The result
// reports whether it covers all chains: syncs changed none meanwhile.
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

// differing names what looks have found to differ, sorted.
func (m *mirror) differing(tool string) (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.damage.chains {
		names = append(names, edit{kind: chainEdit, table: id.table, name: id.name}.object(tool))
	}
	for id := range m.damage.jumps {
		names = append(names, edit{kind: jumpsEdit, table: id.table, name: id.name}.object(tool))
	}
	for name := range m.damage.sets {
		names = append(names, edit{kind: setEdit, name: name}.object(tool))
	}
	slices.Sort(names)
	return names
}

// markReported notes that the damage is reported, by Watch, to a caller that requests a sync.
func (m *mirror) markReported() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.damage.reported = !m.damage.empty()
}

// takeDamage returns what looks have found, and clears it. If there is any, its repair
// begins, which counts as a write of everything until its end: a look may have read
// before it, and the repair changes jumps too.
func (m *mirror) takeDamage() damage {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.damage
	m.damage = damage{}
	if !d.empty() {
		m.beginLocked(&touched{all: true})
	}
	return d
}

// damage is what differs from the mirror: found by a look, repaired by a sync.
type damage struct {
	chains   map[chainID]bool // changed, missing, or extra
	jumps    map[chainID]bool // built-in chains whose jumps to ours differ
	sets     map[string]bool  // changed, missing, or extra
	reported bool             // by Watch, whose caller requests a sync
}

func (d *damage) empty() bool {
	return len(d.chains)+len(d.jumps)+len(d.sets) == 0
}

// add notes in d what a reading of the tables found.
func (d *damage) add(found damage) {
	for id := range found.chains {
		note(&d.chains, id)
	}
	for id := range found.jumps {
		note(&d.jumps, id)
	}
}

// and returns what two readings of the tables found.
func (d damage) and(e *damage) (both damage) {
	for id := range d.chains {
		if e.chains[id] {
			note(&both.chains, id)
		}
	}
	for id := range d.jumps {
		if e.jumps[id] {
			note(&both.jumps, id)
		}
	}
	return both
}

func note[T comparable](m *map[T]bool, v T) {
	if *m == nil {
		*m = map[T]bool{}
	}
	(*m)[v] = true
}

// compareTables notes in d how tables, read while t was touched, differ from the mirror.
func (m *mirror) compareTables(tables map[string]*xtables.Table, t *touched, d *damage, o *order) {
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
	m.compareJumps(tables, d, o)
}

// compareReferenced notes obsolete chains that can be removed now.
func (m *mirror) compareReferenced(tables map[string]*xtables.Table, t *touched, d *damage) {
	for id := range m.referenced {
		if tab := tables[id.table]; tab != nil && len(tab.ReferencedBy(id.name)) == 0 && !t.chain(id) {
			note(&d.chains, id)
		}
	}
}

// compareJumps notes built-in chains that do not lead to ours as they should. No
// sync with a delta changes them.
func (m *mirror) compareJumps(tables map[string]*xtables.Table, d *damage, o *order) {
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
		if !o.inPlace(&tab, id, wantedJumps(m.jumps, id)) {
			note(&d.jumps, id)
		}
	}
}
