package nftables

import (
	"cmp"
	"strconv"
	"time"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// A realm is one way to find what a packet is addressed to. Each has sets and
// chains of its own: packets to addresses of services and to node ports, and of
// both those of local sources where these are treated differently.
type realm uint8

const (
	addressed realm = iota
	nodePorts
	localAddressed
	localNodePorts
	realms
)

func (r realm) isLocal() bool    { return r >= localAddressed }
func (r realm) isNodePort() bool { return r == nodePorts || r == localNodePorts }

// local returns the realm of local sources.
func (r realm) local() realm { return r | localAddressed }

// prefix begins the names of a realm's sets and chains.
func (r realm) prefix() string {
	return [...]string{"", "node-port-", "local-", "local-node-port-"}[r]
}

// A kind is what a set is for.
type kind uint8

const (
	frontends kind = iota // what packets are addressed to
	masquerade
	masqueradeNonLocal
	masqueradeHost
	sized      // frontends whose pool has a number of slots
	slotMap    // frontend and slot to target
	affinePool // frontend to pool, where a client keeps its target
	restricted
	sourceRanges
	reject
	drop
	poolSlots   // pool and slot to endpoint
	poolTargets // pool and endpoint to target
	affinity    // client and pool to endpoint
	nodeAddrs
	vips
	exempt
	hairpins
)

// A set is one set or map of the table. It is there while it has elements.
type set struct {
	kind   kind
	realm  realm         // of kinds before restricted, and of reject and drop
	size   uint32        // of sized, and of slotMap: when a rule comes to use a map, the kernel walks through all of it
	sticky time.Duration // of sized: how long a client keeps its target
}

var kindNames = [...]string{
	frontends: "frontends", masquerade: "masquerade-all", masqueradeNonLocal: "masquerade-non-local",
	masqueradeHost: "masquerade-host", sized: "size", slotMap: "slots", affinePool: "pools",
	restricted: "restricted", sourceRanges: "source-ranges", reject: "no-endpoints-reject",
	drop: "no-endpoints-drop", poolSlots: "pool-slots", poolTargets: "pool-targets", affinity: "affinity",
	nodeAddrs: "node-addresses", vips: "vips", exempt: "exempt", hairpins: "hairpin",
}

var kindComments = [...]string{
	frontends:          "what packets are addressed to, and whose it is",
	masquerade:         "every source becomes this node",
	masqueradeNonLocal: "every source but local ones becomes this node",
	masqueradeHost:     "what this host itself sends is masqueraded",
	sized:              "frontends with so many slots",
	slotMap:            "slots of frontends; a random one is taken",
	affinePool:         "frontends whose clients keep their endpoint",
	restricted:         "only source-ranges may use these",
	sourceRanges:       "who may use restricted frontends",
	reject:             "no endpoint anywhere: refused",
	drop:               "no endpoint on this node: dropped",
	poolSlots:          "slots of pools with affinity, and the number of their endpoint",
	poolTargets:        "endpoints of pools with affinity",
	affinity:           "client and pool: the endpoint it keeps",
	nodeAddrs:          "addresses of this node that serve node ports",
	vips:               "ports of these that nobody serves are refused",
	exempt:             "addresses in service_cidrs that are not refused",
	hairpins:           "endpoints that may reach themselves",
}

// compare orders sets by kind, realm, timeout and size.
func (s set) compare(o set) int {
	return cmp.Or(
		cmp.Compare(s.kind, o.kind), cmp.Compare(s.realm, o.realm),
		cmp.Compare(s.sticky, o.sticky), cmp.Compare(s.size, o.size),
	)
}

// name returns the name in the kernel.
func (s set) name() string {
	switch s.kind {
	case frontends:
		return [...]string{"frontends", "node-ports", "local-frontends", "local-node-ports"}[s.realm]
	case sized:
		return s.realm.prefix() + "size-" + s.suffix()
	case slotMap:
		return s.realm.prefix() + "slots-" + s.suffix()
	}
	return s.realm.prefix() + kindNames[s.kind]
}

// suffix ends the names of a sized set and of its chain.
func (s set) suffix() string {
	text := strconv.FormatUint(uint64(s.size), 10)
	if s.sticky > 0 {
		text += "-sticky-" + strconv.FormatInt(int64(s.sticky/time.Second), 10) + "s"
	}
	return text
}

// chain returns the name of the chain that takes one of the slots of a sized set's frontends.
func (s set) chain() string { return s.realm.prefix() + "pick-" + s.suffix() }

// Clients that the kernel remembers at most: beyond it, new ones are balanced
// without affinity. One takes some 150 bytes.
const maxClients = 1 << 20

// layout returns the types of a set's key and data.
func (s set) layout(fam proxier.Family) (key, data []nft.Type) {
	addr := nft.IPv4Addr
	if fam == proxier.IPv6 {
		addr = nft.IPv6Addr
	}
	front := []nft.Type{addr, nft.InetProto, nft.InetService}
	if s.realm.isNodePort() {
		front = front[1:]
	}
	target := []nft.Type{addr, nft.InetService}
	switch s.kind {
	case slotMap:
		return append(front, nft.Mark), target
	case affinePool:
		return front, []nft.Type{nft.Mark}
	case sourceRanges, hairpins:
		return append(front, addr), nil
	case poolSlots:
		return []nft.Type{nft.Mark, nft.Mark}, []nft.Type{nft.Mark}
	case poolTargets:
		return []nft.Type{nft.Mark, nft.Mark}, target
	case affinity:
		return []nft.Type{addr, nft.Mark}, []nft.Type{nft.Mark}
	case nodeAddrs, vips, exempt:
		return []nft.Type{addr}, nil
	}
	return front, nil
}

// isInterval tells whether elements are ranges: their records hold two keys.
func (s set) isInterval() bool { return s.kind == sourceRanges }

// define returns the set as the kernel is told of it.
func (s set) define(fam proxier.Family) *nft.Set {
	key, data := s.layout(fam)
	def := &nft.Set{Name: s.name(), Key: nft.Concat(key...), Comment: kindComments[s.kind], Interval: s.isInterval()}
	if len(data) > 0 {
		def.Data = nft.Concat(data...)
	}
	if def.Interval {
		for _, t := range key {
			def.Fields = append(def.Fields, t.Len)
		}
	}
	if s.kind == affinity {
		def.Dynamic, def.Timeouts, def.Size = true, true, maxClients
	}
	return def
}
