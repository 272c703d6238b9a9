package layout

import (
	"fmt"

	"github.com/google/nftables/expr"

	"svcproxy.dev/svcproxy/internal/maglev"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Packets to frontends of scheduler maglev take the slot that a hash of their source
// says, out of as many as a table has on every host:
//
//	services ──► pick-maglev-ip-port-2039: jhash of the source's address and port, by 2039,
//	             is the slot, and maglev-ip-port-slots-2039 has its endpoint
//
// The kernel hashes with jhash of Jenkins, and multiplies: the slot is the upper half of
// the product of hash and size, so that a hash is never drawn again.

// regHashed is where what is hashed begins: after a frontend and the hash.
const regHashed register = 8

// clientSlot loads the slot of a client. The hash needs Linux 4.12, or nft_hash of then.
func (d *Dialect) clientSlot(on source.HashOn, size uint32, at register) loadedKey {
	client := d.source(regHashed)
	if on == source.ClientIPPort {
		client = join(client, loadPort(sourcePort, client.next))
	}
	hash := &expr.Hash{
		SourceRegister: regHashed.number(), Length: 4 * uint32(client.next-regHashed), DestRegister: at.number(),
		Modulus: size, Seed: maglev.Seed, Type: expr.HashTypeJenkins,
	}
	return loadedKey{append(client.exprs, hash), at + 1}
}

// pickHashed returns the chain that takes the slot of a client, of the set's frontends.
func (l *chainRenderer) pickHashed(s Set) *Chain {
	c := newChain(s.pickChain(), fmt.Sprintf("of %d slots the client's own", s.size))
	front := l.frontend(s.class)
	c.rule(mapLookup(join(front, l.clientSlot(s.hash, s.size, front.next)), 0, s.slotMap(), 8), l.dnat(8))
	return c
}

func hashedEndpoints(p *policy.Pool) []maglev.Endpoint {
	list := make([]maglev.Endpoint, len(p.Targets))
	for i, t := range p.Targets {
		list[i] = maglev.Endpoint{AddrPort: t.AddrPort(), Weight: t.Weight}
	}
	return list
}
