package announcer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier/policy"
)

const (
	// lookAgain is how often it is asked whether routes are still to be held back.
	lookAgain = time.Second

	// lead is how long before routers drop what they kept over a restart sessions begin at the latest, so that they do
	// not drop what is served. They count from the end of the run before, which an upgrade of the package ends up to
	// twenty seconds before the next; GoBGP takes up to seven to connect, and one more to announce.
	lead = 30 * time.Second
)

// holdBack returns when it is to be asked again whether a Speaker is told its first routes; zero: it is. A router that
// kept routes over a restart drops those that are not among the first. So these wait while the kernel may serve
// addresses, by what an earlier run made, of a family that no sync has succeeded for; but not
// beyond the time for which routers keep routes, for then they drop all.
func (a *Announcer) holdBack(ctx context.Context, run *running, now time.Time) (again time.Time) {
	if run == nil || run.told {
		return again
	}
	kept := a.routers.used.GracefulRestart
	end := a.began.Add(kept - min(kept/2, lead))
	var late []policy.Family
	if a.cfg.Late != nil && now.Before(end) {
		late = a.cfg.Late(ctx)
	}
	a.recordLate(late, end, now)
	if len(late) == 0 {
		run.told = true
		return again
	}
	return times.Due(end, now.Add(lookAgain))
}

// recordLate keeps which families routes are held back for, and logs it when that changes.
func (a *Announcer) recordLate(late []policy.Family, end, now time.Time) {
	if slices.Equal(late, a.late) {
		return
	}
	why := ""
	switch {
	case len(late) > 0:
		why = fmt.Sprintf("held back until %s: %s is not synced since the start, and routers would drop its routes", end.Format(time.TimeOnly), families(late))
		a.cfg.Log.Warn("routes are held back, so that routers keep those of a family that is not synced since the start", "families", families(late), "until", end)
	case now.Before(end):
		a.cfg.Log.Info("routes are not held back any more", "families", families(a.late))
	default:
		a.cfg.Log.Warn("routes are not held back any longer: routers keep those of a family that is not synced no longer", "families", families(a.late))
	}
	a.late = late
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heldBack = why
}

func families(list []policy.Family) string {
	var names []string
	for _, fam := range list {
		names = append(names, fam.String())
	}
	return strings.Join(names, ", ")
}
