package layout

import (
	"svcproxy.dev/svcproxy/internal/maglev"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A hashTable has the slots of a pool whose clients are hashed. Frontends of one pool come
// one after another, and its table is filled once.
type hashTable struct {
	slots []uint32
	of    *policy.Pool
}

// fill returns the targets of a pool's slots.
func (t *hashTable) fill(p *policy.Pool) []uint32 {
	if t.of != p {
		t.slots, t.of = maglev.Fill(t.slots[:0], maglev.Size(p.Hash.Endpoints), hashedEndpoints(p)), p
	}
	return t.slots
}

func hashedEndpoints(p *policy.Pool) []maglev.Endpoint {
	list := make([]maglev.Endpoint, len(p.Targets))
	for i, t := range p.Targets {
		list[i] = maglev.Endpoint{AddrPort: t.AddrPort, Weight: t.Weight}
	}
	return list
}
