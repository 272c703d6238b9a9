package layout

import (
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Content is what our table holds: elements by set, and chains.
type Content struct {
	*Dialect
	Sets   map[Set]*Records
	Chains []*Chain
	Pools  *PoolIDs
	Flows  *nft.Flowtable // nil: none
}

// Render renders a State, without a flow table. It depends on nothing else.
func Render(st *policy.State) *Content { return RenderWith(st, nil) }

// RenderWith renders a State, with a flow table; nil: none.
func RenderWith(st *policy.State, flows *nft.Flowtable) *Content {
	d := Dialects[st.Family]
	c := &Content{Dialect: d, Sets: map[Set]*Records{}, Pools: newPoolIDs(hash32), Flows: flows}
	c.Pools.number(st)
	r := renderer{pools: c.Pools, to: c.addElement}
	for _, res := range st.Services {
		r.service(res)
	}
	r.state(st)
	l := layout{Dialect: d, host: &st.Host, counts: c.Counts(), flows: flows}
	c.Chains = l.chains()
	return c
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

// Tallies returns the checksum of each set.
func (c *Content) Tallies() map[Set]Tally {
	all := make(map[Set]Tally, len(c.Sets))
	for s, rec := range c.Sets {
		var t Tally
		for i := range rec.Count() {
			t.Add(rec.Key(i), rec.Data(i), rec.comment(i), 1)
		}
		all[s] = t
	}
	return all
}

// Listing returns how the kernel lists a table with this content.
func (c *Content) Listing() *nft.Listing {
	l := &nft.Listing{Chains: map[string]*nft.Chain{}, Rules: map[string][]nft.Rule{}, Sets: map[string]*nft.Set{}}
	for _, ch := range c.Chains {
		l.Chains[ch.Name], l.Rules[ch.Name] = &ch.Chain, ch.Rules
	}
	for _, s := range SetsInUse(c.Counts()) {
		l.Sets[s.Name()] = s.Define(c.Fam)
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
