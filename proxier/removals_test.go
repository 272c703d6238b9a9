package proxier

import (
	"slices"
	"testing"
)

// Who asks is told what was removed, in order; nobody is told of nothing.
func TestRemovalsAreReportedInOrder(t *testing.T) {
	Removed(t.Context(), "what nobody asks about")
	ctx, removals := WithRemovals(t.Context())
	RemovedSome(ctx, "chains", 2)
	Removed(ctx, "table ip svcproxy")
	RemovedSome(ctx, "ipsets", 0)
	if got, want := removals.Lines(), []string{"chains: 2", "table ip svcproxy"}; !slices.Equal(got, want) {
		t.Errorf("removed %q, want %q", got, want)
	}
}
