package layout

import (
	"cmp"
	"slices"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A layout renders the chains. They depend on this host and on which sets exist;
// the number of services changes only the number of elements.
type layout struct {
	*Dialect
	host   *policy.Host
	counts map[Set]int // elements of each set; a set without elements does not exist
	flows  *nft.Flowtable
}

func (l *layout) has(s Set) bool { return l.counts[s] > 0 }

// A Chain is one chain with its rules.
type Chain struct {
	nft.Chain
	rules    []rule
	deferred int // how many of the last rules are added only after all elements
}

func (c *Chain) rule(stmts ...stmt) { c.rules = append(c.rules, rule{stmts: stmts}) }

func newChain(name, comment string) *Chain {
	return &Chain{Chain: nft.Chain{Name: name, Comment: comment}}
}

func newBaseChain(name, typ string, hook uint32, priority int32) *Chain {
	return &Chain{Chain: nft.Chain{Name: name, Hook: &nft.Hook{Type: typ, Number: hook, Priority: priority, Policy: nft.Accept}}}
}

// Chains that always exist, and that others jump to.
const (
	markNonLocalChain = "mark-non-local"
	refusalsChain     = "refusals"
	refusedChain      = "refused"
)

// ordered returns the sets of a kind and class, those with more frontends first.
// Counts are compared by their magnitude, so that the order seldom changes.
func (l *layout) ordered(k kind, class lookupClass) []Set {
	var list []Set
	for s, n := range l.counts {
		if s.kind == k && s.class == class && n > 0 {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b Set) int {
		return cmp.Or(cmp.Compare(magnitude(l.counts[b]), magnitude(l.counts[a])), a.Compare(b))
	})
	return list
}

// localSources returns what matches each kind of local source.
func (l *layout) localSources() (list []stmt) {
	for _, p := range l.host.LocalCIDRs {
		list = append(list, l.fromPrefix(p))
	}
	for _, name := range l.host.LocalInterfaces {
		list = append(list, fromInterface(name))
	}
	return list
}

// mark appends a rule for packets to frontends in a set of a kind, if there is one.
func (l *layout) mark(c *Chain, class lookupClass, k kind, do ...stmt) {
	if s := (Set{kind: k, class: class}); l.has(s) {
		c.rule(append([]stmt{inSet(l.frontend(class), s)}, do...)...)
	}
}

// dispatch appends the jumps to the chain of a frontend's number of slots, or to
// the chain of session affinity.
func (l *layout) dispatch(c *Chain, class lookupClass) {
	if s := (Set{kind: withAffinity, class: class}); l.has(s) {
		c.rule(inSet(l.frontend(class), s), goTo(class.prefix()+"sticky"))
	}
	for _, s := range l.ordered(bySize, class) {
		c.rule(inSet(l.frontend(class), s), goTo(s.pickChain()))
	}
}

// A KernelChain is a chain in the form that the kernel takes.
type KernelChain struct {
	nft.Chain
	Rules    []nft.Rule
	Deferred int // how many of the last rules are added only after all elements
}

// IsIn reports whether a table has the chain with its rules.
func (c *KernelChain) IsIn(l *nft.Listing) bool {
	have := l.Chains[c.Name]
	return have != nil && have.Equal(&c.Chain) && slices.EqualFunc(l.Rules[c.Name], c.Rules, nft.Rule.Equal)
}

// Marshal returns the chains in the form that the kernel takes, in order.
func (d *Dialect) Marshal(chains []*Chain) (list []*KernelChain, err error) {
	for _, c := range chains {
		w := &KernelChain{Chain: c.Chain, Deferred: c.deferred}
		for _, r := range c.rules {
			m, err := r.marshal(d.Family)
			if err != nil {
				return nil, err
			}
			w.Rules = append(w.Rules, m)
		}
		list = append(list, w)
	}
	return list, nil
}

// sameLayout reports whether two counts are known to give the same chains.
func sameLayout(a, b map[Set]int) bool {
	if len(a) != len(b) {
		return false
	}
	for s, n := range a {
		if m := b[s]; m == 0 || s.isOrdered() && magnitude(n) != magnitude(m) {
			return false
		}
	}
	return true
}
