package nft

import (
	"bytes"
	"strings"

	"golang.org/x/sys/unix"
)

// Names say which changes a monitor tells of.
type Names struct {
	Tables []Table
	Ours   string // is part of the names of our chains and sets

	// Own reports whether a transaction is one of ours, by its sender and the generation
	// that it gave: iptables-restore sends from the port that is its process id, in
	// its own pid namespace.
	Own func(port, generation uint32) bool

	Scratch string // begins the names of those of our chains that are none of anybody's business

	Others  string // is part of other names, whose changes are no event: Touched is called
	Touched func()
}

// NewNameMonitor watches tables, in the network namespace of the caller, for changes
// by others of what has our names: chains, sets, rules in them or that lead to
// them, or all of a table.
func NewNameMonitor(n Names) (*Monitor, error) {
	m, _, err := newMonitor(n.concern)
	if err == nil {
		m.own, m.touched = n.Own, n.Touched
	}
	return m, err
}

func (n Names) concern(m message) concern {
	switch {
	case !m.isOfOne(n.Tables) || n.isScratch(m):
		return 0
	case m.typ == nftMessage(unix.NFT_MSG_DELTABLE):
		return changes
	}
	var c concern
	if m.names(n.Ours) {
		c |= changes
	}
	if m.names(n.Others) {
		c |= touches
	}
	return c
}

// isScratch reports whether a message is about a scratch chain or a rule of one.
func (n Names) isScratch(m message) bool {
	var name uint16
	switch m.typ {
	case nftMessage(unix.NFT_MSG_NEWCHAIN), nftMessage(unix.NFT_MSG_DELCHAIN):
		name = unix.NFTA_CHAIN_NAME
	case nftMessage(unix.NFT_MSG_NEWRULE), nftMessage(unix.NFT_MSG_DELRULE):
		name = unix.NFTA_RULE_CHAIN
	default:
		return false
	}
	return n.Scratch != "" && strings.HasPrefix(getString(find(m.body[genLen:], name)), n.Scratch)
}

func (m message) isOfOne(tables []Table) bool {
	for _, t := range tables {
		if m.isOf(t) {
			return true
		}
	}
	return false
}

// names reports whether a text is in a message, wherever: a rule that is deleted is
// told with all its expressions, the chain that it leads to among them.
func (m message) names(text string) bool { return bytes.Contains(m.body, []byte(text)) }
