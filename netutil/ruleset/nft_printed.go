package ruleset

import (
	"slices"

	"github.com/google/nftables/expr"
)

// mayBePrinted reports whether iptables prints all that a rule matches and does. Its save leaves out
// expressions that it does not make itself, such as the lookup in a set of another program.
func mayBePrinted(exprs []expr.Any, v6 bool) bool {
	return !slices.ContainsFunc(exprs, func(e expr.Any) bool {
		switch e := e.(type) {
		case *expr.Match, *expr.Target, *expr.Counter, *expr.Verdict, *expr.Immediate, *expr.Cmp, *expr.Range, *expr.Bitwise, *expr.Limit, *expr.Log:
			return false
		case *expr.Meta:
			return e.SourceRegister || !slices.Contains(printedMeta, e.Key)
		case *expr.Payload:
			return e.OperationType == expr.PayloadWrite || !printedPayload(e, v6)
		}
		return true
	})
}

// printedMeta are what iptables loads of a packet's surroundings.
var printedMeta = []expr.MetaKey{
	expr.MetaKeyIIF, expr.MetaKeyOIF, expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME, expr.MetaKeyL4PROTO, expr.MetaKeyPROTOCOL, expr.MetaKeyNFPROTO, expr.MetaKeyMARK,
}

// printedPayload reports whether iptables prints what is loaded of a header: addresses, the protocol, IPv4's
// offset of fragments, ports, or the flags of TCP.
func printedPayload(e *expr.Payload, v6 bool) bool {
	offsets := []uint32{6, 9, 12, 16} // struct iphdr
	if v6 {
		offsets = []uint32{6, 8, 24} // struct ipv6hdr
	}
	switch e.Base {
	case expr.PayloadBaseNetworkHeader:
		return slices.Contains(offsets, e.Offset)
	case expr.PayloadBaseTransportHeader:
		return e.Offset == 0 || e.Offset == 2 || e.Offset == 13
	}
	return false
}
