package nftables

import (
	"fmt"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Compare returns what Plan says where the kernel holds one State exactly, without
// clients that keep endpoints, and is to hold another of the same family. It needs no kernel.
func Compare(before, after *policy.State) ([]proxier.Change, error) {
	d, err := compareStates(dialects[after.Family], before, after)
	if err != nil {
		return nil, fmt.Errorf("nftables, %s: %w", after.Family, err)
	}
	return d.changes(), nil
}

func compareStates(words *dialect, before, after *policy.State) (*difference, error) {
	if err := checkHost(&after.Host); err != nil {
		return nil, err
	}
	have, want := render(words, before), render(words, after)
	chains, err := words.marshal(want.chains)
	if err != nil {
		return nil, err
	}
	d := &difference{want: want, counts: want.counts(), chains: chains, elements: map[set]*setDifference{}}
	if d.have, err = have.listing(); err != nil {
		return nil, err
	}
	for _, s := range setsInUse(d.counts) {
		if d.hasSet(s) && !s.isDynamic() {
			d.elements[s] = have.records(s).until(want.records(s))
		}
	}
	return d, nil
}

// listing returns how the kernel lists a table with this content.
func (c *content) listing() (*nft.Listing, error) {
	chains, err := c.marshal(c.chains)
	if err != nil {
		return nil, err
	}
	l := &nft.Listing{Chains: map[string]*nft.Chain{}, Rules: map[string][]nft.Rule{}, Sets: map[string]*nft.Set{}}
	for _, ch := range chains {
		l.Chains[ch.Name], l.Rules[ch.Name] = &ch.Chain, ch.rules
	}
	for _, s := range setsInUse(c.counts()) {
		l.Sets[s.name()] = s.define(c.fam)
	}
	return l, nil
}

// records returns the elements of a set, which may be none.
func (c *content) records(s set) *records {
	if c.sets[s] == nil {
		return newRecords(s, c.fam)
	}
	return c.sets[s]
}

// until returns what differs from other records of the same set.
func (r *records) until(want *records) *setDifference {
	seen, diff := make([]presence, want.count()), &setDifference{}
	for i := range r.count() {
		e := r.element(i)
		if n := want.find(r.key(i)); n >= 0 {
			seen[n] = want.presence(n, &e)
		} else {
			diff.extra = append(diff.extra, e)
		}
	}
	diff.extra = withoutDuplicates(diff.extra)
	diff.classify(seen)
	return diff
}
