package loop

import (
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/report"
)

// familyNews is what other goroutines may read of a family.
type familyNews struct {
	lastInState   uint64 // the last order that is in the State
	lastInKernel  uint64 // the last order that the kernel holds, with all before
	lastSynced    uint64 // the same, except for large services that are not complete
	failures      int    // Syncs that failed in a row
	good          time.Time
	took          time.Duration
	since         time.Time             // of the first failure in a row
	err           error                 // of the last Sync
	kernelUnknown bool                  // Syncs fail since a foreign change, or since all of the kernel's rules were to change
	unserved      *proxier.PartialError // what the last successful Sync could not make
	working       *progress             // of the Sync or Plan that runs; nil: none
	looking       *progress             // of the Look that runs; nil: none
}

// holdsAny reports whether it is known what the kernel holds.
func (n *familyNews) holdsAny() bool { return n.lastSynced > 0 && !n.kernelUnknown }

// stalls returns the work whose present part has taken at least so long.
func (n *familyNews) stalls(least time.Duration) (list []report.Stall) {
	for _, p := range []*progress{n.working, n.looking} {
		if s, stalled := p.stall(least); stalled {
			list = append(list, s)
		}
	}
	return list
}

// A family that fails this many Syncs in a row, or whose Sync makes no progress for too long, is no
// longer waited for: what the others hold is ready. It keeps being tried.
const leftOutAfter = 3

// leftOutStall is how long a family that makes no progress is waited for.
func leftOutStall() time.Duration { return stallSteps[len(stallSteps)-1] }

// leftOut reports whether the family is no longer waited for.
func (n *familyNews) leftOut() bool {
	_, stalled := n.working.stall(leftOutStall())
	return stalled || n.failures >= leftOutAfter
}

// failure returns why the family does not hold what it should.
func (n *familyNews) failure() error {
	if s, stalled := n.working.stall(stallSteps[0]); stalled {
		return s
	}
	return n.err
}
