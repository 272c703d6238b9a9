package layout

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A lookupClass is one way to find what a packet is addressed to. Each has sets and
// chains of its own: packets to addresses of services and to node ports, and of
// both those of local sources where these are treated differently. The last one is of node ports
// that only some addresses serve.
type lookupClass uint8

const (
	classAddr lookupClass = iota
	classNodePort
	classLocalAddr     // classAddr for local sources, see local
	classLocalNodePort // classNodePort for local sources

	// classPlaced finds what is of classNodePort where a service says which addresses serve it: by
	// address too. It leads to the chains of classNodePort and has none of its own.
	classPlaced
)

func (c lookupClass) isLocal() bool { return c == classLocalAddr || c == classLocalNodePort }

func (c lookupClass) isNodePort() bool { return c == classNodePort || c == classLocalNodePort }

// local returns the class in which local sources find what others find in c.
func (c lookupClass) local() lookupClass {
	switch c {
	case classAddr:
		return classLocalAddr
	case classNodePort:
		return classLocalNodePort
	}
	return c
}

// prefix begins the names of a class's sets and chains.
func (c lookupClass) prefix() string {
	return [...]string{"", "node-port-", "local-", "local-node-port-", "placed-node-port-"}[c]
}

// chainName returns the name of the first chain of a class.
func (c lookupClass) chainName() string {
	return [...]string{"services", "node-ports", "local-services", "local-node-ports", "node-ports"}[c]
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
	affinityByTimeout // those of a timeout
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
	around      // connections of which this host sees the answers alone, and lets them pass
	held        // connections whose answers are held back
	nodeAddrs
	vips
	exempt
	hairpins
)

// A Set is one set or map of the table. It exists while it has elements.
type Set struct {
	kind   kind
	class  lookupClass   // of kinds before poolSlots
	size   uint32        // of bySize, affinityBySize and slotMap: when a rule starts to use a map, the kernel walks all of it
	expiry time.Duration // of affinityByTimeout: how long a client keeps its target
	hash   source.HashOn // of bySize and slotMap: what of a client is hashed, where chance does not pick
	bits   uint8         // of sourceRanges: how long the prefixes are
}

// Structure stands for the chains, their rules, and which sets exist, where what changes is listed by sets.
var Structure = Set{class: 1<<8 - 1}

// slotMap returns the map of slotMap of the frontends of a set of kind bySize.
func (s Set) slotMap() Set {
	s.kind = slotMap
	return s
}

// Fronts returns the set of the frontends of a map of slots, and how many slots each has.
func (s Set) Fronts() (of Set, slots int) {
	s.kind = bySize
	return s, int(s.size)
}

// HasSlots reports whether it is a map of slots of frontends.
func (s Set) HasSlots() bool { return s.kind == slotMap }

// FullSlots reports whether it is a map in which every frontend of its size has each slot.
func (s Set) FullSlots() bool {
	return s.kind == slotMap && (s.size <= exactSizes || s.hash != source.NotHashed)
}

// isOrdered reports whether such sets are looked up in the order of their counts.
func (s Set) isOrdered() bool {
	return s.kind == bySize || s.kind == affinityByTimeout || s.kind == affinityBySize
}

// AdmitsSources reports whether an element that should not be there lets in clients that source_ranges keep out.
func (s Set) AdmitsSources() bool { return s.kind == sourceRanges }

// IsDynamic reports whether packets add the elements, which time out.
func (s Set) IsDynamic() bool { return s.kind >= affinity && s.kind <= held }

// The sets of session affinity that are read by their keys.
var (
	Affinity    = Set{kind: affinity}
	Tickets     = Set{kind: tickets}
	TicketOwner = Set{kind: ticketOwner}
	PoolTargets = Set{kind: poolTargets}
)

// dynamicSets are the sets to which packets add elements.
var dynamicSets = []Set{{kind: affinity}, {kind: tickets}, {kind: ticketOwner}, {kind: newClients}, {kind: around}, {kind: held}}

// kinds has what sets of each kind are called, and their comment.
var kinds = [...]struct{ name, comment string }{
	frontends:          {"frontends", "what packets are addressed to, and whose it is"},
	masquerade:         {"masquerade-all", "every source becomes this node"},
	masqueradeNonLocal: {"masquerade-non-local", "every source but local ones becomes this node"},
	masqueradeHost:     {"masquerade-host", "what this host itself sends is masqueraded"},
	bySize:             {"size", "frontends with so many slots"},
	slotMap:            {"slots", "slots of frontends; a random one is taken"},
	withAffinity:       {"sticky", "frontends whose clients keep their endpoint"},
	affinityByTimeout:  {"sticky", "frontends whose clients keep their endpoint for so long"},
	affinityBySize:     {"sticky-size", "frontends whose pool has so many slots"},
	affinityPool:       {"pools", "pools of frontends whose clients keep their endpoint"},
	restricted:         {"restricted", "only source-ranges may use these"},
	sourceRanges:       {"source-ranges", "restricted frontends, and first addresses of prefixes that may use them"},
	noEndpointsReject:  {"no-endpoints-reject", "no endpoint anywhere: refused"},
	noEndpointsDrop:    {"no-endpoints-drop", "no endpoint on this node: dropped"},
	poolSlots:          {"pool-slots", "slots of pools with affinity, and the number of their endpoint"},
	poolTargets:        {"pool-targets", "endpoints of pools with affinity"},
	affinity:           {"affinity", "client and pool: the ticket of the endpoint it keeps"},
	tickets:            {"tickets", "pool and endpoint: the ticket of its clients, until it leaves"},
	ticketOwner:        {"ticket-endpoints", "pool and ticket: the endpoint"},
	newClients:         {"new-clients", "pools, and how many more clients are remembered"},
	around:             {"around", "connections to endpoints of which the answers alone are by this host"},
	held:               {"held", "connections whose answers wait for a word of the client"},
	nodeAddrs:          {"node-addresses", "addresses of this node that serve node ports"},
	vips:               {"vips", "ports of these that nobody serves are refused"},
	exempt:             {"exempt", "addresses of this host in service_cidrs"},
	hairpins:           {"hairpin", "endpoints that may reach themselves"},
}

// Compare orders sets by kind, class, timeout and size.
func (s Set) Compare(o Set) int {
	return cmp.Or(
		cmp.Compare(s.kind, o.kind), cmp.Compare(s.class, o.class),
		cmp.Compare(s.expiry, o.expiry), cmp.Compare(s.hash, o.hash), cmp.Compare(s.size, o.size), cmp.Compare(s.bits, o.bits),
	)
}

// loadOrder is the order in which elements are added to sets that packets meet, and
// the reverse of that in which they are removed, where they are too many for one
// transaction. A frontend comes first: from then on packets to it that find no slot
// are dropped, and sent again, rather than refused. What restricts and marks its
// packets comes before its size, from which on they are balanced.
var loadOrder = []kind{
	nodeAddrs, exempt, frontends, sourceRanges, restricted, masquerade, masqueradeNonLocal, masqueradeHost,
	noEndpointsReject, noEndpointsDrop, hairpins, poolTargets, poolSlots, affinityPool, slotMap, affinityBySize, affinityByTimeout, withAffinity, bySize, vips,
}

// CompareLoading orders sets by loadOrder.
func (s Set) CompareLoading(o Set) int {
	return cmp.Or(cmp.Compare(slices.Index(loadOrder, s.kind), slices.Index(loadOrder, o.kind)), s.Compare(o))
}

// Name returns the name in the kernel.
func (s Set) Name() string {
	switch s.kind {
	case frontends:
		return [...]string{"frontends", "node-ports", "local-frontends", "local-node-ports", "placed-node-ports"}[s.class]
	case bySize, slotMap, affinityBySize, affinityByTimeout, sourceRanges:
		return s.class.prefix() + s.kindName() + "-" + s.suffix()
	}
	return s.class.prefix() + kinds[s.kind].name
}

// hashNames are in the names of sets and chains.
var hashNames = map[source.HashOn]string{source.ClientIP: "maglev-ip", source.ClientIPPort: "maglev-ip-port"}

// kindName returns the name of the kind in names of sets that have a suffix.
func (s Set) kindName() string {
	switch {
	case s.hash == source.NotHashed:
		return kinds[s.kind].name
	case s.kind == slotMap:
		return hashNames[s.hash] + "-" + kinds[slotMap].name
	}
	return hashNames[s.hash]
}

// suffix ends the names of a set of a size, a timeout or a length of prefixes, and of its chains.
func (s Set) suffix() string {
	switch s.kind {
	case sourceRanges:
		return strconv.Itoa(int(s.bits))
	case affinityByTimeout:
		return strconv.FormatInt(int64(s.expiry/time.Second), 10) + "s"
	}
	return strconv.FormatUint(uint64(s.size), 10)
}

// pickChain returns the name of the chain that picks one of the slots of the set's frontends.
func (s Set) pickChain() string {
	if s.hash != source.NotHashed {
		return s.class.prefix() + "pick-" + hashNames[s.hash] + "-" + s.suffix()
	}
	return s.class.prefix() + "pick-" + s.suffix()
}

// A remembered client takes about 150 bytes of kernel memory.
var (
	// MaxClients is how many are remembered at most: beyond that, new clients are
	// balanced without affinity.
	MaxClients uint32 = 1 << 21

	// PoolClients is how many new clients a pool may remember within its timeout,
	// after a burst of as many. So a pool that is flooded from forged addresses takes
	// at most half of MaxClients, and no other pool loses affinity.
	PoolClients = MaxClients / 4
)

// maxAround is how many connections are held or go around this host at most, of some 120 bytes each. Of more,
// answers are not held back.
const maxAround = 1 << 18

// fieldTypes returns the types of a set's key and data.
func (s Set) fieldTypes(fam policy.Family) (key, data []nft.Type) {
	addr := nft.IPv4Addr
	if fam == policy.IPv6 {
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
	case around, held:
		return []nft.Type{addr, addr, nft.InetService, nft.InetService}, nil
	case nodeAddrs, vips, exempt:
		return []nft.Type{addr}, nil
	}
	return front, nil
}

func (s Set) comment() string {
	switch {
	case s.kind == frontends && s.class == classPlaced:
		return "node ports on addresses of their own, and whose they are"
	case s.hash == source.NotHashed:
		return kinds[s.kind].comment
	case s.kind == slotMap:
		return "slots of frontends; the hash of a client picks one"
	}
	return "frontends of scheduler maglev with so many slots"
}

// Define returns the set's definition for the kernel.
func (s Set) Define(fam policy.Family) *nft.Set {
	key, data := s.fieldTypes(fam)
	def := &nft.Set{Name: s.Name(), Key: nft.Concat(key...), Comment: s.comment()}
	if len(data) > 0 {
		def.Data = nft.Concat(data...)
	}
	if s.IsDynamic() {
		def.Dynamic, def.Timeouts, def.Size = true, true, MaxClients
		if s.kind >= around {
			def.Size = maxAround
		}
	}
	return def
}

// SetsInUse returns the sets that have elements, in order, and the dynamic sets that rules
// use: where any frontend has session affinity, and where connections are taken over.
func SetsInUse(counts map[Set]int) []Set {
	var list []Set
	affinityUsed := false
	for s, n := range counts {
		if n > 0 {
			list = append(list, s)
			affinityUsed = affinityUsed || s.kind == withAffinity
		}
	}
	for _, s := range dynamicSets {
		if s.kind >= around && takesOver(counts) || s.kind < around && affinityUsed {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, Set.Compare)
	return list
}

// takesOver reports whether this host may have to go on with connections of another, whose
// endpoints see the addresses of clients.
func takesOver(counts map[Set]int) bool {
	if counts[Set{kind: hairpins}] == 0 {
		return false
	}
	for s, n := range counts {
		if s.kind == bySize && s.hash != source.NotHashed && n > 0 {
			return true
		}
	}
	return false
}
