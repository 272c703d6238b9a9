package nft

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"
)

// ScanRules calls each with the rules of a table, chain by chain, in their order, as the
// expressions that a Rule holds. A commit meanwhile does not end it. After an error, also
// of each, the Conn may only be closed: the rest is not read.
func (c *Conn) ScanRules(t Table, each func(chain string, exprs []byte) error) error {
	err := c.ask(listRequest(t, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP), nil, func(m message) error {
		if !m.isOf(t) {
			return nil
		}
		return each(m.string(unix.NFTA_RULE_CHAIN), bytes.Clone(m.find(unix.NFTA_RULE_EXPRESSIONS)))
	})
	if err != nil {
		return fmt.Errorf("listing the rules of table %s: %w", t.Name, err)
	}
	return nil
}
