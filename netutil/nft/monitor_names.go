package nft

import (
	"bytes"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Names say which changes a monitor reports.
type Names struct {
	Tables []Table
	Ours   string // part of the names of our chains and sets

	// Own reports whether a transaction is one of ours, by its sender and the generation
	// that it gave: iptables-restore sends from the port that is its process id, in
	// its own pid namespace.
	Own func(port, generation uint32) bool

	Scratch string // prefix of the names of our chains whose changes are ignored

	Others  []string // other chains, of which a change of the rules calls Touched and is no event
	Touched func(Event)
}

// NewNameMonitor watches tables, in the network namespace of the caller, for foreign
// changes of what has our names: chains, sets, rules in them or that jump to them,
// or whole tables.
func NewNameMonitor(n Names) (*Monitor, error) {
	m, _, err := newMonitor(n.relevance)
	if err == nil {
		m.own, m.touched = n.Own, n.Touched
	}
	return m, err
}

func (n Names) relevance(m message) relevance {
	switch {
	case !slices.ContainsFunc(n.Tables, m.isOf) || n.isScratch(m):
		return 0
	case m.Type == nftMessage(unix.NFT_MSG_DELTABLE):
		return isChange
	}
	var c relevance
	if m.contains(n.Ours) {
		c |= isChange
	}
	if chain, of := ruleChain(m); of && slices.Contains(n.Others, chain) {
		c |= isTouch
	}
	return c
}

// isScratch reports whether a message is about a scratch chain or a rule of one.
func (n Names) isScratch(m message) bool {
	chain, is := ruleChain(m)
	if m.Type == nftMessage(unix.NFT_MSG_NEWCHAIN) || m.Type == nftMessage(unix.NFT_MSG_DELCHAIN) {
		chain, is = m.string(unix.NFTA_CHAIN_NAME), true
	}
	return is && n.Scratch != "" && strings.HasPrefix(chain, n.Scratch)
}

// ruleChain returns the chain of the rule that a message is about; not ok: it is about another thing.
func ruleChain(m message) (chain string, ok bool) {
	if m.Type != nftMessage(unix.NFT_MSG_NEWRULE) && m.Type != nftMessage(unix.NFT_MSG_DELRULE) {
		return "", false
	}
	return m.string(unix.NFTA_RULE_CHAIN), true
}

// contains reports whether a message contains a text anywhere: the event of a deleted
// rule has all its expressions, and in them the chain that it jumps to.
func (m message) contains(text string) bool { return bytes.Contains(m.Body, []byte(text)) }
