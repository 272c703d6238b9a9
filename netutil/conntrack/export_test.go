package conntrack

import "context"

// PruneUDPUnfiltered is PruneUDP on a kernel that cannot filter.
func PruneUDPUnfiltered(ctx context.Context, ipv6 bool, q Query, stale func(Flow) bool) (int, error) {
	return prune(ctx, ipv6, q, []filter{{}}, stale)
}
