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

func (n Names) relevance(m message) (c relevance) {
	chain, isRule := "", false // what the message is about, or the chain of the rule that it is about
	switch m.Type {
	case nftMessage(unix.NFT_MSG_NEWRULE), nftMessage(unix.NFT_MSG_DELRULE):
		chain, isRule = m.string(unix.NFTA_RULE_CHAIN), true
	case nftMessage(unix.NFT_MSG_NEWCHAIN), nftMessage(unix.NFT_MSG_DELCHAIN):
		chain = m.string(unix.NFTA_CHAIN_NAME)
	}
	switch {
	case !slices.ContainsFunc(n.Tables, m.isOf) || n.Scratch != "" && strings.HasPrefix(chain, n.Scratch):
		return 0
	case m.Type == nftMessage(unix.NFT_MSG_DELTABLE):
		return isChange
	}
	// The event of a deleted rule has all its expressions, and in them the chain that it jumps to.
	if bytes.Contains(m.Body, []byte(n.Ours)) {
		c |= isChange
	}
	if isRule && slices.Contains(n.Others, chain) {
		c |= isTouch
	}
	return c
}
