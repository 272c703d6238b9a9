package layout

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A chainRenderer renders the chains. They depend on this host and on which sets exist;
// the number of services changes only the number of elements.
type chainRenderer struct {
	*Dialect
	host      *policy.Host
	counts    map[Set]int // elements of each set; a set without elements does not exist
	flowtable *nft.Flowtable
}

func (l *chainRenderer) has(s Set) bool { return l.counts[s] > 0 }

// A Chain is one chain with its rules.
type Chain struct {
	nft.Chain
	Rules    []nft.Rule
	Deferred int // how many of the last rules are added only after all elements
}

// rule appends a rule of lists of expressions.
func (c *Chain) rule(parts ...[]expr.Any) { c.commented("", parts...) }

// commented appends a rule with a comment. No expression of ours depends on the family, or can fail to be written.
func (c *Chain) commented(comment string, parts ...[]expr.Any) {
	r, err := nft.NewRule(unix.NFPROTO_UNSPEC, comment, slices.Concat(parts...)...)
	if err != nil {
		panic(fmt.Sprintf("a rule of chain %s: %v", c.Name, err))
	}
	c.Rules = append(c.Rules, r)
}

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
func (l *chainRenderer) ordered(k kind, class lookupClass) []Set {
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
func (l *chainRenderer) localSources() (list [][]expr.Any) {
	for _, p := range l.host.LocalCIDRs {
		list = append(list, l.matchPrefix(l.source(0), p))
	}
	for _, name := range l.host.LocalInterfaces {
		list = append(list, fromInterface(name))
	}
	return list
}

// mark appends a rule for packets to frontends in a set of a kind, if there is one.
func (l *chainRenderer) mark(c *Chain, class lookupClass, k kind, do ...[]expr.Any) {
	if s := (Set{kind: k, class: class}); l.has(s) {
		c.rule(inSet(l.frontend(class), s), slices.Concat(do...))
	}
}

// dispatch appends the jumps to the chain of a frontend's number of slots, or to
// the chain of session affinity.
func (l *chainRenderer) dispatch(c *Chain, class lookupClass) {
	if s := (Set{kind: withAffinity, class: class}); l.has(s) {
		c.rule(inSet(l.frontend(class), s), goTo(class.prefix()+"sticky"))
	}
	for _, s := range l.ordered(bySize, class) {
		c.rule(inSet(l.frontend(class), s), goTo(s.pickChain()))
	}
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
