package nftables

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// A realm is one way to find what a packet is addressed to. Each has sets and
// chains of its own: packets to addresses of services and to node ports, and of
// both those of local sources where these are treated differently.
type lookupClass uint8

const (
	classAddr lookupClass = iota
	classNodePort
	classLocalAddr
	classLocalNodePort
	lookupClasses
)

func (c lookupClass) isLocal() bool { return c >= classLocalAddr }

func (c lookupClass) isNodePort() bool { return c == classNodePort || c == classLocalNodePort }

// local returns the realm of local sources.
func (c lookupClass) local() lookupClass { return c | classLocalAddr }

// prefix begins the names of a realm's sets and chains.
func (c lookupClass) prefix() string {
	return [...]string{"", "node-port-", "local-", "local-node-port-"}[c]
}

// chain returns the name of the first chain of a realm.
func (c lookupClass) chainName() string {
	return [...]string{"services", "node-ports", "local-services", "local-node-ports"}[c]
}

// A kind is what a set is for.
type kind uint8

const (
	frontends kind = iota // what packets are addressed to
	masquerade
	masqueradeNonLocal
	masqueradeHost
	bySize            // frontends whose pool has a number of slots
	slotMap           // frontend and slot to target
	withAffinity      // frontends whose clients keep their endpoint
	affinityByTimeout // those of a time-out
	affinityBySize    // those whose pool has a number of slots
	affinityPool      // frontend to pool, where a client keeps its target
	restricted
	sourceRanges
	noEndpointsReject
	noEndpointsDrop
	poolSlots   // pool and slot to endpoint
	poolTargets // pool and endpoint to target
	affinity    // client and pool to ticket
	tickets     // pool and endpoint to the ticket that its clients get
	ticketOwner // pool and ticket to endpoint
	newClients  // pools, and how many more clients they may have
	nodeAddrs
	vips
	exempt
	hairpins
)

// A set is one set or map of the table. It is there while it has elements.
type set struct {
	kind   kind
	class  lookupClass   // of kinds before restricted, and of reject and drop
	size   uint32        // of sized, stickySized, and of slotMap: when a rule comes to use a map, the kernel walks through all of it
	expiry time.Duration // of stickyClass: how long a client keeps its target
}

// isOrdered reports whether those with more frontends come first in a chain.
func (s set) isOrdered() bool {
	return s.kind == bySize || s.kind == affinityByTimeout || s.kind == affinityBySize
}

// isFilled reports whether packets make the elements, which time out.
func (s set) isDynamic() bool { return s.kind >= affinity && s.kind <= newClients }

// filled are the sets that packets fill.
var dynamicSets = []set{{kind: affinity}, {kind: tickets}, {kind: ticketOwner}, {kind: newClients}}

var kindNames = [...]string{
	frontends: "frontends", masquerade: "masquerade-all", masqueradeNonLocal: "masquerade-non-local",
	masqueradeHost: "masquerade-host", bySize: "size", slotMap: "slots",
	withAffinity: "sticky", affinityByTimeout: "sticky", affinityBySize: "sticky-size", affinityPool: "pools",
	restricted: "restricted", sourceRanges: "source-ranges", noEndpointsReject: "no-endpoints-reject",
	noEndpointsDrop: "no-endpoints-drop", poolSlots: "pool-slots", poolTargets: "pool-targets", affinity: "affinity",
	tickets: "tickets", ticketOwner: "ticket-endpoints", newClients: "new-clients",
	nodeAddrs: "node-addresses", vips: "vips", exempt: "exempt", hairpins: "hairpin",
}

var kindComments = [...]string{
	frontends:          "what packets are addressed to, and whose it is",
	masquerade:         "every source becomes this node",
	masqueradeNonLocal: "every source but local ones becomes this node",
	masqueradeHost:     "what this host itself sends is masqueraded",
	bySize:             "frontends with so many slots",
	slotMap:            "slots of frontends; a random one is taken",
	withAffinity:       "frontends whose clients keep their endpoint",
	affinityByTimeout:  "frontends whose clients keep their endpoint for so long",
	affinityBySize:     "frontends whose pool has so many slots",
	affinityPool:       "pools of frontends whose clients keep their endpoint",
	restricted:         "only source-ranges may use these",
	sourceRanges:       "who may use restricted frontends",
	noEndpointsReject:  "no endpoint anywhere: refused",
	noEndpointsDrop:    "no endpoint on this node: dropped",
	poolSlots:          "slots of pools with affinity, and the number of their endpoint",
	poolTargets:        "endpoints of pools with affinity",
	affinity:           "client and pool: the ticket of the endpoint it keeps",
	tickets:            "pool and endpoint: the ticket of its clients, until it leaves",
	ticketOwner:        "pool and ticket: the endpoint",
	newClients:         "pools, and how many more clients are remembered",
	nodeAddrs:          "addresses of this node that serve node ports",
	vips:               "ports of these that nobody serves are refused",
	exempt:             "addresses in service_cidrs that are not refused",
	hairpins:           "endpoints that may reach themselves",
}

// compare orders sets by kind, realm, time-out and size.
func (s set) compare(o set) int {
	return cmp.Or(
		cmp.Compare(s.kind, o.kind), cmp.Compare(s.class, o.class),
		cmp.Compare(s.expiry, o.expiry), cmp.Compare(s.size, o.size),
	)
}

// name returns the name in the kernel.
func (s set) name() string {
	switch s.kind {
	case frontends:
		return [...]string{"frontends", "node-ports", "local-frontends", "local-node-ports"}[s.class]
	case bySize, slotMap, affinityBySize, affinityByTimeout:
		return s.class.prefix() + kindNames[s.kind] + "-" + s.suffix()
	}
	return s.class.prefix() + kindNames[s.kind]
}

// suffix ends the names of a sized set or one of a time-out, and of its chains.
func (s set) suffix() string {
	if s.kind == affinityByTimeout {
		return strconv.FormatInt(int64(s.expiry/time.Second), 10) + "s"
	}
	return strconv.FormatUint(uint64(s.size), 10)
}

// chain returns the name of the chain that takes one of the slots of a sized set's frontends.
func (s set) pickChain() string { return s.class.prefix() + "pick-" + s.suffix() }

// A client that is remembered takes about 150 bytes of the kernel's memory.
var (
	// maxClients is how many are remembered at most: beyond it, new ones are
	// balanced without affinity.
	maxClients uint32 = 1 << 21

	// poolClients is how many clients a pool may get within its time-out, and once
	// as many if it had none before. So one that is flooded from forged addresses has half
	// of maxClients at most, and takes affinity from no other.
	poolClients = maxClients / 4
)

// layout returns the types of a set's key and data.
func (s set) fieldTypes(fam proxier.Family) (key, data []nft.Type) {
	addr := nft.IPv4Addr
	if fam == proxier.IPv6 {
		addr = nft.IPv6Addr
	}
	front := []nft.Type{addr, nft.InetProto, nft.InetService}
	if s.class.isNodePort() {
		front = front[1:]
	}
	target := []nft.Type{addr, nft.InetService}
	switch s.kind {
	case slotMap:
		return append(front, nft.Mark), target
	case affinityPool:
		return front, []nft.Type{nft.Mark}
	case sourceRanges, hairpins:
		return append(front, addr), nil
	case poolSlots:
		return []nft.Type{nft.Mark, nft.Mark}, []nft.Type{nft.Mark}
	case poolTargets:
		return []nft.Type{nft.Mark, nft.Mark}, target
	case affinity:
		return []nft.Type{addr, nft.Mark}, []nft.Type{nft.Mark}
	case tickets, ticketOwner:
		return []nft.Type{nft.Mark, nft.Mark}, []nft.Type{nft.Mark}
	case newClients:
		return []nft.Type{nft.Mark}, nil
	case nodeAddrs, vips, exempt:
		return []nft.Type{addr}, nil
	}
	return front, nil
}

// isInterval tells whether elements are ranges: their records hold two keys.
func (s set) isInterval() bool { return s.kind == sourceRanges }

// define returns the set as the kernel is told of it.
func (s set) define(fam proxier.Family) *nft.Set {
	key, data := s.fieldTypes(fam)
	def := &nft.Set{Name: s.name(), Key: nft.Concat(key...), Comment: kindComments[s.kind], Interval: s.isInterval()}
	if len(data) > 0 {
		def.Data = nft.Concat(data...)
	}
	if def.Interval {
		for _, t := range key {
			def.Fields = append(def.Fields, t.Len)
		}
	}
	if s.isDynamic() {
		def.Dynamic, def.Timeouts, def.Size = true, true, maxClients
	}
	return def
}

// setsInUse returns the sets that have elements, in order, with those that packets
// fill where clients keep their endpoint.
func setsInUse(counts map[set]int) []set {
	var list []set
	keeps := false
	for s, n := range counts {
		if n > 0 {
			list = append(list, s)
			keeps = keeps || s.kind == withAffinity
		}
	}
	if keeps {
		list = append(list, dynamicSets...)
	}
	slices.SortFunc(list, set.compare)
	return list
}
