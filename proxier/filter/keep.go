package filter

import "svcproxy/netutil/nft"

// keepTable is a table that does nothing, and which others cannot flush.
const keepTable = "SVCP-KEEP"

// keep has the kernel track and translate connections until Close: without a rule
// that needs it, it stops, and packets of connections then reach the wrong socket,
// which resets them. iptables -F is followed by our repair, but not soon enough for them.
func (k *Kernel) keep() {
	if k.keeper != nil || k.mortal {
		return
	}
	var err error
	k.keeper, err = nft.Keep(nft.Table{Family: family(k.tool.IPv6), Name: keepTable}, "connections survive that all rules are flushed")
	if err != nil {
		k.mortal = true
		k.log.Info("connections will not survive that others flush all rules: this kernel has no table that keeps them", "tool", k.Tool(), "err", err)
	}
}
