package nft

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// NewNameMonitor watches tables, in the network namespace of the caller, for changes
// that name something of ours: a chain or a set, or a rule in it or that leads to it,
// whose name has one of the given parts in it. A table that is deleted counts too. own
// reports whether a sender is one of us: iptables-restore sends from the port that
// is its process id, as this process sees it.
func NewNameMonitor(tables []Table, parts []string, own func(port uint32) bool) (*Monitor, error) {
	m, _, err := newMonitor(func(msg message) bool {
		return !own(msg.port) && msg.isOfOne(tables) && (msg.typ == nftMessage(unix.NFT_MSG_DELTABLE) || msg.names(parts))
	})
	return m, err
}

func (m message) isOfOne(tables []Table) bool {
	for _, t := range tables {
		if m.isOf(t) {
			return true
		}
	}
	return false
}

// names reports whether one of parts is in a message, wherever: a rule that is
// deleted is told with all its expressions, the chain that it leads to among them.
func (m message) names(parts []string) bool {
	for _, p := range parts {
		if bytes.Contains(m.body, []byte(p)) {
			return true
		}
	}
	return false
}
