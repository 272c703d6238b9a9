package xtables

import (
	"fmt"

	"github.com/coreos/go-iptables/iptables"
)

// lockPatience is how many seconds one question waits for the lock of the legacy
// variant. Nobody can interrupt it, and a program that ends must do so within a second or so.
const lockPatience = 1

// client returns what asks single questions, each of which costs a process.
func (t *Tool) client() (*iptables.IPTables, error) {
	t.asking.Lock()
	defer t.asking.Unlock()
	if t.asker != nil {
		return t.asker, nil
	}
	c, err := t.newClient(lockPatience)
	if err != nil {
		return nil, err
	}
	t.asker = c
	return c, nil
}

// newClient returns what waits so many seconds for the lock.
func (t *Tool) newClient(patience int) (*iptables.IPTables, error) {
	family := iptables.ProtocolIPv4
	if t.IPv6 {
		family = iptables.ProtocolIPv6
	}
	c, err := iptables.New(iptables.IPFamily(family), iptables.Path(t.program()), iptables.Timeout(patience))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.program(), err)
	}
	return c, nil
}

// RuleExists reports whether a chain has a rule of the given words.
func (t *Tool) RuleExists(table, chain string, words ...string) (bool, error) {
	c, err := t.client()
	if err != nil {
		return false, err
	}
	exists, err := c.Exists(table, chain, words...)
	if err != nil {
		return false, fmt.Errorf("looking for a rule of chain %s of table %s: %w", chain, table, err)
	}
	return exists, nil
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
