package filter

import (
	"fmt"

	"svcproxy/netutil/nft"
)

// keepTable is a table that does nothing, and which programs of iptables do not see.
const keepTable = "SVCP-KEEP"

// keep has the kernel go on tracking and translating connections when others flush
// all rules. Without a rule that needs it, it stops, and packets of connections then
// reach the wrong socket, which resets them: our repair comes too late for them.
func (k *Kernel) keep() {
	err := nft.Keep(k.keepTable(), "connections survive that all rules of iptables are flushed")
	if err != nil && !k.mortal {
		k.log.Info("connections will not survive that others flush all rules: the kernel does not take a table that keeps them", "tool", k.Tool(), "err", err)
	}
	k.mortal = err != nil
}

// unkeep removes what keep has made.
func (k *Kernel) unkeep() error {
	if err := nft.RemoveTable(k.keepTable()); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	return nil
}

func (k *Kernel) keepTable() nft.Table {
	return nft.Table{Family: family(k.tool.IPv6), Name: keepTable}
}
