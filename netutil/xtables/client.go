package xtables

import (
	"fmt"

	"github.com/coreos/go-iptables/iptables"
)

// queryLockWait is how many seconds one query waits for the lock of the legacy
// variant. It cannot be interrupted, and a daemon that stops must do so within a second or so.
const queryLockWait = 1

// client returns the client for single queries, each of which costs a process.
func (t *Tool) client() (*iptables.IPTables, error) {
	t.clientMu.Lock()
	defer t.clientMu.Unlock()
	if t.cachedClient != nil {
		return t.cachedClient, nil
	}
	family := iptables.ProtocolIPv4
	if t.IPv6 {
		family = iptables.ProtocolIPv6
	}
	c, err := iptables.New(iptables.IPFamily(family), iptables.Path(t.program()), iptables.Timeout(queryLockWait))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.program(), err)
	}
	t.cachedClient = c
	return c, nil
}

// ChainExists reports whether a table has a chain.
func (t *Tool) ChainExists(table, chain string) (bool, error) {
	c, err := t.client()
	if err != nil {
		return false, err
	}
	exists, err := c.ChainExists(table, chain)
	if err != nil {
		return false, fmt.Errorf("looking for chain %s of table %s: %w", chain, table, err)
	}
	return exists, nil
}
