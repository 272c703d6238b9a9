// Package ruleset reads the rules that other programs have in netfilter, those of
// nf_tables and of iptables, and says what they would do with a packet: a Ruleset
// gives the Hits of a Packet. It changes nothing and sends nothing.
//
//	ruleset.go   packets, chains, rules, and the walk through them
//	nft.go       rules of nf_tables, expression by expression, also in words
//	value.go     what such rules compare, and sets and maps, as nft prints them
//	xt.go        rules of iptables, from the text of iptables-save
//	read.go      what there is on this host
//
// A match that is not understood may match: what follows from it is not sure.
package ruleset

import (
	"cmp"
	"net/netip"
	"slices"
)

// A Packet is the first packet of a connection, as far as it is known.
type Packet struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16 // 0: not known
	Protocol         uint8
	In, Out          string // interfaces; empty: not known, or there is none at this hook
	NoIn             bool   // this host itself sends it: there is no input interface
	InIndex          uint32 // of In; 0: not known
	OutIndex         uint32
	Mark             uint32
	AnyMark          bool // the mark is not known
	DNAT             bool // its destination was translated
	SrcLocal         bool // its source is an address of this host
	DstLocal         bool
}

// A Match says whether a rule matches.
type Match uint8

// The matches.
const (
	No Match = iota
	Maybe
	Yes
)

func (m Match) not() Match { return Yes - m }

func matchIf(ok bool) Match {
	if ok {
		return Yes
	}
	return No
}

// A Kind is what a rule does.
type Kind uint8

// The kinds of verdicts. Own ends a walk: from there on rules are ours.
const (
	Continue Kind = iota
	Accept
	Return
	Jump
	GoTo
	Drop
	Reject
	Translate // the destination
	NoTrack   // the packet is not tracked, so nothing translates it
	Queue     // another program decides
	Own
	Rewrite    // it writes into the packet's header: what the packet is then is not known
	Unfollowed // there are more rules, or deeper chains, than are followed: what they do is not known
)

// A Verdict is what a rule does with a packet that it matches.
type Verdict struct {
	Kind
	Chain string // of Jump and GoTo
	To    string // of Translate: where to, if known
	Marks bool   // it sets the mark too

	Rewrites bool // it writes other addresses, another port or protocol into the packet too
}

// passes reports whether v ends nothing but the chain.
func (v Verdict) passes() bool { return v.Kind == Continue || v.Kind == Accept || v.Kind == Return }

// leads reports whether v leads to other rules.
func (v Verdict) leads() bool { return v.Kind == Jump || v.Kind == GoTo }

// A Rule is one rule.
type Rule interface {
	// Eval reports whether the rule matches, and what it then does.
	Eval(p *Packet) (Match, Verdict)
	// String is the rule in words of its tool.
	String() string
}

// A Base is a chain with a hook, and the chains that it may jump to.
type Base struct {
	Origin   string // as in "inet filter forward" or "iptables-nft filter FORWARD"
	Chain    string
	Type     string // "filter", "nat" or "route"
	Hook     string // "prerouting", "input", "forward", "output" or "postrouting"
	Priority int
	Drops    bool   // the policy
	Created  uint64 // of nf_tables: a number that grows with each new table
	Chains   map[string][]Rule
	Partial  bool // not all rules were read: no hit is sure
}

// hooks are in the order of their numbers, in which a packet meets them, as far as it does.
var hooks = []string{"prerouting", "input", "forward", "output", "postrouting"}

// Sort brings the chains into the order in which packets meet them.
func (rs *Ruleset) Sort() {
	slices.SortStableFunc(rs.Bases, func(a, b *Base) int {
		return cmp.Or(slices.Index(hooks, a.Hook)-slices.Index(hooks, b.Hook), cmp.Compare(a.Priority, b.Priority))
	})
}

// A Hit is a rule, or a policy, that does not simply let a packet pass.
type Hit struct {
	Base    *Base
	Path    []string // chains from the base to the rule
	Rule    string   // empty: the policy
	Verdict Verdict
	Sure    bool // the packet certainly meets it, and is certainly matched
}

// maxDepth is how deep chains may jump, as in the kernel (NFT_JUMP_STACK_SIZE, 16);
// maxHits is how many possible hits of a chain are reported, maxSteps how many rules of
// one are looked at.
const (
	maxDepth = 16
	maxHits  = 16
	maxSteps = 100_000
)

// Walk returns what a base chain does with a packet: what it may do, in order, up to
// what it does for sure, and the packet as it leaves the chain. Own says what is done by
// chains that are not looked into.
func (b *Base) Walk(p Packet, own map[string]Verdict) ([]Hit, Packet) {
	w := walk{base: b, packet: p, own: own}
	end, sure := w.chain(b.Chain, nil, !b.Partial)
	if (end == Continue || end == Return) && b.Drops {
		w.hit(nil, "", Verdict{Kind: Drop}, sure)
	}
	return w.hits, w.packet
}

type walk struct {
	base   *Base
	packet Packet
	own    map[string]Verdict
	steps  int
	hits   []Hit
	gaveUp bool
}

func (w *walk) hit(path []string, rule string, v Verdict, sure bool) {
	h := Hit{w.base, slices.Clone(path), rule, v, sure}
	switch {
	case len(w.hits) < maxHits:
		w.hits = append(w.hits, h)
	case sure:
		w.hits[maxHits-1] = h
	}
}

// giveUp notes once that rules are not followed.
func (w *walk) giveUp(path []string) (Kind, bool) {
	if !w.gaveUp {
		w.gaveUp = true
		w.hit(path, "", Verdict{Kind: Unfollowed}, false)
	}
	return Continue, false
}

// chain returns how a packet leaves a chain, Continue or a final verdict, and whether it is
// sure that it gets past its end. sure: it certainly got there.
func (w *walk) chain(name string, path []string, sure bool) (Kind, bool) {
	if len(path) >= maxDepth {
		return w.giveUp(path)
	}
	path = append(path, name)
	for _, r := range w.base.Chains[name] {
		if w.steps++; w.steps > maxSteps {
			return w.giveUp(path)
		}
		m, v := r.Eval(&w.packet)
		w.packet.AnyMark = w.packet.AnyMark || v.Marks
		if v.Rewrites {
			w.hit(path, r.String(), Verdict{Kind: Rewrite}, false)
			sure = false // it goes on as another packet
		}
		if m == No {
			continue
		}
		end, after := v.Kind, sure
		switch does, ours := w.own[v.Chain]; {
		case v.leads() && ours:
			end = does.Kind
		case v.leads():
			end, after = w.chain(v.Chain, path, sure && m == Yes)
		case !v.passes():
			w.hit(path, r.String(), v, sure && m == Yes)
		}
		switch {
		case m == Maybe: // or not: it was not the rule for this packet
			sure = sure && end == Continue && after
		case end == Return && v.Kind == Jump, end == Continue && v.Kind != GoTo:
			sure = after
		case end == Continue:
			return Return, after
		default:
			return end, after
		}
	}
	return Continue, sure
}
