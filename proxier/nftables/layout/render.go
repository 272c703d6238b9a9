package layout

import (
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Content is what our table holds: elements by set, and chains.
type Content struct {
	*Dialect
	Sets      map[Set]*Records
	Chains    []*Chain
	Pools     *PoolIDs
	Flowtable *nft.Flowtable // nil: none
}

// Render renders a State, without a flowtable. It depends on nothing else.
func Render(st *policy.State) *Content { return RenderWith(st, nil) }

// RenderWith renders a State, with a flowtable; nil: none.
func RenderWith(st *policy.State, flowtable *nft.Flowtable) *Content {
	d := Dialects[st.Family]
	c := newContent(d, newPoolIDs(hash32))
	c.Flowtable = flowtable
	c.Pools.number(st)
	r := renderer{pools: c.Pools, to: c.addElement}
	for _, res := range st.Services {
		r.service(res)
	}
	r.state(st)
	l := chainRenderer{Dialect: d, host: &st.Host, counts: c.Counts(), flowtable: flowtable}
	c.Chains = l.chains()
	return c
}

func newContent(d *Dialect, pools *PoolIDs) *Content {
	return &Content{Dialect: d, Sets: map[Set]*Records{}, Pools: pools}
}

func (c *Content) addElement(s Set, key, data []byte, note string) {
	rec := c.Sets[s]
	if rec == nil {
		rec = newRecords(s, c.Fam)
		c.Sets[s] = rec
	}
	rec.add(key, data, note)
}

// Counts returns the number of elements of each set that has any.
func (c *Content) Counts() map[Set]int {
	counts := make(map[Set]int, len(c.Sets))
	for s, rec := range c.Sets {
		counts[s] = rec.Count()
	}
	return counts
}

// Checksums returns the checksum of each set.
func (c *Content) Checksums() map[Set]Checksum {
	all := make(map[Set]Checksum, len(c.Sets))
	for s, rec := range c.Sets {
		var t Checksum
		for i := range rec.Count() {
			t.addRecord(rec, i, 1)
		}
		all[s] = t
	}
	return all
}

// Listing returns how the kernel lists a table with this content.
func (c *Content) Listing() *nft.Listing {
	return listing(c.Dialect, c.Chains, c.Counts(), c.Flowtable)
}

func listing(d *Dialect, chains []*Chain, counts map[Set]int, flows *nft.Flowtable) *nft.Listing {
	l := nft.NewListing()
	for _, ch := range chains {
		l.Chains[ch.Name], l.Rules[ch.Name] = &ch.Chain, ch.Rules
	}
	for _, s := range SetsInUse(counts) {
		l.Sets[s.Name()] = s.Define(d.Fam)
	}
	if flows != nil {
		l.Flowtables[flows.Name] = flows
	}
	return l
}

// Records returns the elements of a set, which may be none.
func (c *Content) Records(s Set) *Records {
	if c.Sets[s] == nil {
		return newRecords(s, c.Fam)
	}
	return c.Sets[s]
}
