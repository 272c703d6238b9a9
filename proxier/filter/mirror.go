package filter

import (
	"hash/maphash"
	"iter"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/looks"
)

// A mirror is what the kernel holds of ours after the last sync. Syncs update it; looks,
// which run beside them, compare the kernel with it.
type mirror struct {
	looks.Guard[object]

	// Changed only by the goroutine of the syncs, with the lock held; it reads them without.
	chains     map[string]map[string]xtables.Sum // by table and name; nil: unknown
	sets       map[string]uint64                 // checksums of their members
	jumps      map[object][]string               // of built-in chains to ours
	referenced map[object]bool                   // obsolete chains, kept empty because foreign rules jump to them

	damage   looks.Objects[object] // what looks found to differ, and no sync has repaired: changed, missing, or extra
	reported bool                  // by Watch, whose caller requests a sync

	resets int // how often the mirror was forgotten
	writes int // how many have begun
}

var entrySeed = maphash.MakeSeed()

// sumOf returns a checksum of the members of a set, in any order.
func sumOf(entries iter.Seq[ipset.Entry]) (sum uint64) {
	for e := range entries {
		sum += maphash.Comparable(entrySeed, e)
	}
	return sum
}

// A standing is what those beside the syncs may know of a mirror.
type standing struct {
	known    bool                // what the kernel holds
	jumps    map[object][]string // of built-in chains to ours; none while they are unknown
	writing  bool
	damaged  bool // a look found a difference
	reported bool // which Watch has reported
	resets   int  // how often the mirror was forgotten
	writes   int  // how many have begun
}

func (m *mirror) now() standing {
	m.Lock()
	defer m.Unlock()
	return standing{
		known: m.chains != nil, jumps: m.jumps, writing: m.Writing != nil, damaged: len(m.damage.Some) > 0, reported: m.reported,
		resets: m.resets, writes: m.writes,
	}
}

// begin notes what a write is going to change, which is unknown until end.
func (m *mirror) begin(o *looks.Objects[object]) {
	m.Lock()
	defer m.Unlock()
	m.Begin(o)
	m.writes++
}

// end notes that a write succeeded; update sets what the kernel holds now.
func (m *mirror) end(update func(*mirror)) {
	m.Lock()
	defer m.Unlock()
	m.Writing = nil
	update(m)
}

// forget clears the mirror: a write failed, or one begins that changes everything.
func (m *mirror) forget() {
	m.Lock()
	defer m.Unlock()
	m.Forget()
	m.chains, m.sets, m.jumps, m.damage, m.reported = nil, nil, nil, looks.Objects[object]{}, false
	m.resets++
	m.writes++
}

// beginLook begins a look: syncs note in the result what they change from now on.
func (m *mirror) beginLook() *looks.Objects[object] {
	m.Lock()
	defer m.Unlock()
	look := m.BeginLook()
	look.All = look.All || m.chains == nil
	return look
}

// endLook ends a look. found, called with the lock held, notes what differs. The result
// reports whether it covers all chains: syncs changed none meanwhile.
func (m *mirror) endLook(look *looks.Objects[object], found func(*looks.Objects[object])) (allChains bool) {
	m.Lock()
	defer m.Unlock()
	m.EndLook(look)
	if look.All || found == nil {
		return false
	}
	found(&m.damage)
	for o := range look.Some {
		if o.kind == chainKind {
			return false
		}
	}
	return true
}

// differing names what looks have found to differ, sorted.
func (m *mirror) differing(tool string) (names []string) {
	m.Lock()
	defer m.Unlock()
	for o := range m.damage.Some {
		names = append(names, o.text(tool))
	}
	slices.Sort(names)
	return names
}

// markReported notes that the damage is reported, by Watch, to a caller that requests a sync.
func (m *mirror) markReported() {
	m.Lock()
	defer m.Unlock()
	m.reported = len(m.damage.Some) > 0
}

// takeDamage returns what looks have found, and clears it. If there is any, its repair
// begins, which counts as a write of everything until its end: a look may have read
// before it, and the repair changes jumps too.
func (m *mirror) takeDamage() looks.Objects[object] {
	m.Lock()
	defer m.Unlock()
	d := m.damage
	m.damage, m.reported = looks.Objects[object]{}, false
	if len(d.Some) > 0 {
		m.Begin(&looks.Objects[object]{All: true})
		m.writes++
	}
	return d
}

// compareTables notes in d how tables, read while syncs changed t, differ from the mirror.
func (m *mirror) compareTables(tables map[string]*xtables.Table, t, d *looks.Objects[object], o *order) {
	have := chainsOf(tables)
	for table, chains := range m.chains {
		for name, sum := range chains {
			was, exists := have[table][name]
			if id := chainObject(table, name); !t.Has(id) && (!exists || was != sum) {
				d.Add(id)
			}
		}
	}
	for table, chains := range have {
		for name := range chains {
			id := chainObject(table, name)
			if _, ours := m.chains[table][name]; !ours && !t.Has(id) {
				d.Add(id)
			}
		}
	}
	for id := range m.referenced { // can it be removed now?
		if tab := tables[id.table]; tab != nil && len(tab.ReferencedBy(id.name)) == 0 && !t.Has(id) {
			d.Add(id)
		}
	}
	m.compareJumps(tables, d, o)
}

// compareJumps notes built-in chains that do not lead to ours as they should. No
// sync with a delta changes them.
func (m *mirror) compareJumps(tables map[string]*xtables.Table, d *looks.Objects[object], o *order) {
	built := map[object]bool{}
	for id := range m.jumps {
		built[id] = true
	}
	for table, tab := range tables {
		for chain := range tab.Policies {
			built[jumpsObject(table, chain)] = true
		}
	}
	for id := range built {
		tab := tables[id.table]
		if tab == nil {
			tab = &xtables.Table{}
		}
		if !o.inPlace(tab, id, m.jumps[id]) {
			d.Add(id)
		}
	}
}

// compareChanged notes how to change the chains of ch, which are in table nat.
func (d *difference) compareChanged(ch *layout.Changes, m *mirror) {
	d.want = map[string]map[string]xtables.Sum{"nat": {}}
	for name, rules := range ch.Chains {
		was, exists := m.chains["nat"][name]
		switch sum := xtables.SumOf(rules); {
		case rules == nil && exists && !m.referenced[chainObject("nat", name)]:
			d.script.Remove("nat", name)
		case rules != nil && (!exists || was != sum):
			d.script.Set("nat", name, rules)
			d.want["nat"][name] = sum
		}
	}
}

// touches returns the chains and sets that d changes. A full set is first filled under another name, grown.
func (d *difference) touches(grown string) *looks.Objects[object] {
	t := &looks.Objects[object]{}
	d.script.Chains(func(table, name string) { t.Add(chainObject(table, name)) })
	for _, sets := range []map[string][]ipset.Entry{d.gained, d.lost} {
		for name := range sets {
			t.Add(setObject(name))
			t.Add(setObject(grown))
		}
	}
	return t
}

// apply updates the mirror with a difference that was written.
func (m *mirror) apply(d *difference) {
	d.script.Removed(func(table, name string) {
		delete(m.chains[table], name)
		delete(m.referenced, chainObject(table, name))
	})
	for table, chains := range d.want {
		for name, sum := range chains {
			m.chains[table][name] = sum
			delete(m.referenced, chainObject(table, name))
		}
	}
	maps.Copy(m.referenced, d.referenced)
	if d.sets != nil { // which were read
		for name, set := range d.sets {
			m.sets[name] = sumOf(maps.Keys(set.Entries))
		}
		return
	}
	for name, entries := range d.gained {
		m.sets[name] += sumOf(slices.Values(entries))
	}
	for name, entries := range d.lost {
		m.sets[name] -= sumOf(slices.Values(entries))
	}
}
