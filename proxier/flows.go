package proxier

import (
	"context"
	"net/netip"
)

// A Flow is a UDP flow that connection tracking knows.
type Flow struct {
	Src, Dst netip.AddrPort // as the client sent its first packet
	Reply    netip.AddrPort // where replies come from: the endpoint, or Dst when nothing was translated
}

// Flows is what the Loop needs of connection tracking.
type Flows interface {
	// Prune looks at every UDP flow of a family once and removes, by its full
	// tuple, each for which stale returns true. It returns how many it removed. A
	// flow that is gone already is no error.
	Prune(ctx context.Context, fam Family, stale func(Flow) bool) (int, error)
}
