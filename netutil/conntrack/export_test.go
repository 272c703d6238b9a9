package conntrack

import "context"

// PruneUnfiltered is Prune on a kernel that cannot filter.
func PruneUnfiltered(ctx context.Context, ipv6 bool, q Query, judge func(Flow) Verdict) (int, error) {
	return prune(ctx, ipv6, q, []filter{{}}, judge)
}
