package conntrack

import "context"

// PruneManyEntries is Prune where there are many entries.
func PruneManyEntries(ctx context.Context, ipv6 bool, q Query, judge func(Flow) Verdict) (int, error) {
	return prune(ctx, ipv6, q, q.filters(), judge)
}

// Walks returns how many walks a Query needs where there are as many entries.
func (q Query) Walks(entries uint32) int { return len(q.filtersFor(entries)) }

// PruneUnfiltered is Prune on a kernel that cannot filter.
func PruneUnfiltered(ctx context.Context, ipv6 bool, q Query, judge func(Flow) Verdict) (int, error) {
	return prune(ctx, ipv6, q, []Filter{{}}, judge)
}
