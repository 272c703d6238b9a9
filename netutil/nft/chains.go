package nft

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// chainTries is how often a list of chains is asked for that changes meanwhile. One
// of 10,000 takes some ms.
const chainTries = 100

// Chains returns the names of the chains of a table, sorted; nil: there is no such table.
func (c *Conn) Chains(t Table) ([]string, error) {
	exists, _, err := c.Lookup(t)
	if err != nil || !exists {
		return nil, err
	}
	var names []string
	for range chainTries {
		names, err = c.chains(t)
		if !errors.Is(err, ErrChanged) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing chains of table %s: %w", t.Name, err)
	}
	slices.Sort(names)
	return names, nil
}

func (c *Conn) chains(t Table) ([]string, error) {
	names := []string{}
	err := c.request(listRequest(t, unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP), func(m message) error {
		if !m.isOf(t) { // the kernel lists chains of all tables
			return nil
		}
		return m.attrs(func(typ uint16, value []byte) error {
			if typ == unix.NFTA_CHAIN_NAME {
				names = append(names, getString(value))
			}
			return nil
		})
	})
	return names, err
}
