package layout

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// Pools with affinity and their endpoints have numbers of 32 bits in place of names:
// nft of Debian 12 can print a rule that looks up the result of a lookup only if it
// went through the packet's mark. The numbers are hashes, so that a restart finds
// what an earlier run left.

// PoolIDs number the pools with affinity. Where two have the same hash, the numbers
// depend on which pools there are, not on which came first.
type PoolIDs struct {
	hash  func(string) uint32
	names map[uint32]string
	ids   map[string]uint32 // of pools whose hash another one has; of all others the hash is the number
}

func newPoolIDs(hash func(string) uint32) *PoolIDs {
	return &PoolIDs{hash: hash, names: map[uint32]string{}, ids: map[string]uint32{}}
}

// affinityPools returns the pools of a service whose clients keep their endpoint;
// none where there is no service.
func affinityPools(res *policy.Resolved) iter.Seq[*policy.Pool] {
	return func(yield func(*policy.Pool) bool) {
		if res == nil {
			return
		}
		for _, p := range res.Pools {
			if p.Affinity > 0 && !yield(p) {
				return
			}
		}
	}
}

// poolName names a pool, for its number and in the comments of the table.
func poolName(p *policy.Pool) string {
	return p.ServicePort.String() + "/" + p.Protocol.String() + " " + p.Scope.String()
}

// PoolHash returns the number of a pool of which no other one has the hash.
func PoolHash(p *policy.Pool) uint32 { return hash32(poolName(p)) }

func hash32(s string) uint32 {
	sum := sha256.Sum256([]byte(s))
	return binary.BigEndian.Uint32(sum[:])
}

// number numbers the pools of a State.
func (n *PoolIDs) number(st *policy.State) {
	var names []string
	for _, res := range st.Services {
		for p := range affinityPools(res) {
			names = append(names, poolName(p))
		}
	}
	slices.Sort(names)
	for _, name := range names {
		id, shifted := n.hash(name), false
		for n.names[id] != "" {
			id, shifted = id+1, true
		}
		n.names[id] = name
		if shifted {
			n.ids[name] = id
		}
	}
}

// Renumber numbers the pools that a change adds. It returns false when that may change
// the numbers of others: a hash is taken, or was, so that all must be numbered again.
func (n *PoolIDs) Renumber(changes []policy.ServiceChange) bool {
	touched, clash := false, false
	for _, c := range changes {
		for p := range affinityPools(c.Old) {
			touched = true
			delete(n.names, n.hash(poolName(p)))
		}
	}
	for _, c := range changes {
		for p := range affinityPools(c.New) {
			name := poolName(p)
			id := n.hash(name)
			touched, clash = true, clash || n.names[id] != ""
			n.names[id] = name
		}
	}
	return !clash && (!touched || len(n.ids) == 0)
}

func (n *PoolIDs) id(p *policy.Pool) uint32 {
	name := poolName(p)
	if id, ok := n.ids[name]; ok {
		return id
	}
	return n.hash(name)
}

// EndpointIDs numbers the targets of a pool. A number is an endpoint's own, as
// long as no two of the pool have the same hash.
func EndpointIDs(p *policy.Pool) []uint32 {
	ids, taken := make([]uint32, len(p.Targets)), make(map[uint32]bool, len(p.Targets))
	for i, t := range p.Targets {
		b, _ := t.AddrPort().MarshalBinary()
		id := hash32(string(b))
		for taken[id] {
			id++
		}
		ids[i], taken[id] = id, true
	}
	return ids
}

// A PoolKey is a pool, and the number of an endpoint or a ticket of it: a key of
// the maps of tickets.
type PoolKey [8]byte

// EachEndpoint calls do with each endpoint of a service's pools with affinity.
func (n *PoolIDs) EachEndpoint(res *policy.Resolved, do func(PoolKey)) {
	for p := range affinityPools(res) {
		id := n.id(p)
		for _, endpoint := range EndpointIDs(p) {
			do(PoolKey(PutNumber(PutNumber(nil, id), endpoint)))
		}
	}
}
