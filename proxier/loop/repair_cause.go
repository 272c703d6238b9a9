package loop

import "slices"

// A RepairCause says why a sync repaired what the kernel held.
type RepairCause string

// The causes, in every mode.
const (
	Foreign    RepairCause = "foreign"     // the kernel told of a change by another program
	Difference RepairCause = "difference"  // a comparison beside the syncs found one
	Unreadable RepairCause = "unreadable"  // such a comparison failed: the sync compared everything
	FailedSync RepairCause = "failed_sync" // an earlier sync failed: the sync compared everything
)

// RepairCauses returns all of them.
func RepairCauses() []RepairCause { return []RepairCause{Foreign, Difference, Unreadable, FailedSync} }

// cause notes why the next Sync repairs.
func (f *family) cause(c RepairCause) {
	if !slices.Contains(f.causes, c) {
		f.causes = append(f.causes, c)
	}
}
