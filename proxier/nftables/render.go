package nftables

import (
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// content is what our table holds: elements by set, and chains.
type content struct {
	*dialect
	sets   map[set]*records
	chains []*chain
	pools  *poolIDs
	flows  *nft.Flowtable // nil: none
}

// render renders a State, without a flow table. It depends on nothing else.
func render(d *dialect, st *policy.State) *content { return renderWith(d, st, nil) }

func renderWith(d *dialect, st *policy.State, flows *nft.Flowtable) *content {
	c := &content{dialect: d, sets: map[set]*records{}, pools: newPoolIDs(hash32), flows: flows}
	c.pools.number(st)
	r := renderer{pools: c.pools, emit: truncateComments(c.addElement)}
	for _, res := range st.Services {
		r.service(res)
	}
	r.state(st)
	l := layout{dialect: d, host: &st.Host, counts: c.counts(), flows: flows}
	c.chains = l.chains()
	return c
}

// truncateComments returns an emit whose comments are as they will be read back.
func truncateComments(to emit) emit {
	return func(s set, key, data []byte, note string) { to(s, key, data, nft.Comment(note)) }
}

func (c *content) addElement(s set, key, data []byte, note string) {
	rec := c.sets[s]
	if rec == nil {
		rec = newRecords(s, c.fam)
		c.sets[s] = rec
	}
	rec.add(key, data, note)
}

func (c *content) counts() map[set]int {
	counts := make(map[set]int, len(c.sets))
	for s, rec := range c.sets {
		counts[s] = rec.count()
	}
	return counts
}

// tallies returns the checksum of each set.
func (c *content) tallies() map[set]tally {
	all := make(map[set]tally, len(c.sets))
	for s, rec := range c.sets {
		var t tally
		for i := range rec.count() {
			t.add(rec.key(i), rec.data(i), rec.comment(i), 1)
		}
		all[s] = t
	}
	return all
}
