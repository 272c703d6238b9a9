package layout

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// FlowtableName is the name of our flow table.
const FlowtableName = "forwarded"

// assured matches connections that were answered and go on: IPS_ASSURED, <linux/netfilter/nf_conntrack_common.h>.
var assured = flag(expr.CtKeySTATUS, 1<<2)

func flowAdd(f *nft.Flowtable) []expr.Any { return []expr.Any{nft.FlowOffload(f.Name)} }

// connectionTo loads what the first packet of a connection was addressed to, as the sets of a
// class have it.
func (d *Dialect) connectionTo(class lookupClass) loadedKey {
	key := loadProtocol(0)
	if !class.isNodePort() {
		addr := d.originalDst(0)
		key = join(addr, loadProtocol(addr.next))
	}
	return join(key, loadedKey{[]expr.Any{nft.CtOriginal(key.next.number(), unix.NFT_CT_PROTO_DST)}, key.next + 1})
}

func (d *Dialect) originalDst(at register) loadedKey {
	key := uint32(unix.NFT_CT_DST_IP)
	if d.Fam == policy.IPv6 {
		key = unix.NFT_CT_DST_IP6
	}
	return loadedKey{[]expr.Any{nft.CtOriginal(at.number(), key)}, at + d.addrRegisters()}
}
