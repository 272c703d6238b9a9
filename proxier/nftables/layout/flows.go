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
var assured = flag("ct status assured", expr.CtKeySTATUS, 1<<2)

func flowAdd(f *nft.Flowtable) stmt {
	return stmt{"flow add @" + f.Name, []expr.Any{nft.FlowOffload(f.Name)}}
}

// connectionTo loads what the first packet of a connection was addressed to, as the sets of a
// class have it.
func (d *Dialect) connectionTo(class lookupClass) loadedKey {
	port := func(at register) loadedKey {
		return loadedKey{stmt{"ct original proto-dst", []expr.Any{nft.CtOriginal(at.number(), unix.NFT_CT_PROTO_DST)}}, at + 1}
	}
	if class.isNodePort() {
		return join(loadProtocol(0), port(1))
	}
	addr := d.originalDst(0)
	return join(addr, loadProtocol(addr.next), port(addr.next+1))
}

func (d *Dialect) originalDst(at register) loadedKey {
	key := uint32(unix.NFT_CT_DST_IP)
	if d.Fam == policy.IPv6 {
		key = unix.NFT_CT_DST_IP6
	}
	return loadedKey{stmt{"ct original " + d.Keyword + " daddr", []expr.Any{nft.CtOriginal(at.number(), key)}}, at + d.addrRegisters()}
}
