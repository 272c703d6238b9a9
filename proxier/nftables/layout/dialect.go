package layout

import (
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// TableName is the name of our table, in each family.
const TableName = "svcproxy"

// TableComment is the comment of our table.
const TableComment = "made and kept by svcproxy: changes by others are undone"

// A Dialect is what differs between the families.
type Dialect struct {
	Fam             policy.Family
	Family          byte   // in netlink
	Keyword         string // in nft
	saddr, daddr    uint32 // offsets in the header
	portUnreachable uint8  // code of ICMP
}

// Dialects has that of each family.
var Dialects = map[policy.Family]*Dialect{
	policy.IPv4: {policy.IPv4, unix.NFPROTO_IPV4, "ip", 12, 16, 3},
	policy.IPv6: {policy.IPv6, unix.NFPROTO_IPV6, "ip6", 8, 24, 4},
}

// Table names our table.
func (d *Dialect) Table() nft.Table { return nft.Table{Family: d.Family, Name: TableName} }

// Scratch names the table of transactions that are only tried.
func (d *Dialect) Scratch() nft.Table { return nft.Table{Family: d.Family, Name: TableName + "-probe"} }

// Registers hold 4 bytes and are counted from 0 to 15. The kernel gives every
// fourth another number, from the time when a register held 16 bytes.
type register uint32

func (r register) number() uint32 {
	if r%4 == 0 {
		return unix.NFT_REG_1 + uint32(r)/4
	}
	return 8 + uint32(r) // NFT_REG32_00 + r
}

// addrRegisters is how many registers an address takes.
func (d *Dialect) addrRegisters() register { return register(d.Fam.Bits() / 32) }
