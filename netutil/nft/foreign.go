package nft

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
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

// ScanRaw is Scan with elements as the kernel lists them: attributes NFTA_SET_ELEM_*,
// which are valid until each returns.
func (c *Conn) ScanRaw(t Table, set string, each func(attrs []byte) error) error {
	m := startMessage(nil, nftMessage(unix.NFT_MSG_GETSETELEM), unix.NLM_F_DUMP, t.Family, 0)
	m = putString(m, unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	m = putString(m, unix.NFTA_SET_ELEM_LIST_SET, set)
	err := c.ask(endMessage(m, 0), nil, func(m message) error {
		for _, element := range nlmsg.Attrs(m.find(unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if err := each(element.Value()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("listing the elements of set %s: %w", set, err)
	}
	return nil
}
