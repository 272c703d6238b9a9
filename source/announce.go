package source

// Means is a set of the ways in which a network is told of addresses.
type Means uint8

// BGP: routers are told of routes to them. L2: neighbours are told which link-layer address has them.
const (
	BGP Means = 1 << iota
	L2
)

// EachMeans are the single ways, in the order in which they are shown.
var EachMeans = []Means{BGP, L2}

var meansWords = []string{"bgp", "l2"}

// String returns the ways as files write them, joined by commas.
func (m Means) String() string { return flagText(m, EachMeans, meansWords) }
