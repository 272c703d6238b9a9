package modeswitch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A remnant is what earlier runs may have left in the kernel of a mode, in one family.
type remnant struct {
	mode modes.Mode
	fam  policy.Family
	err  error // why it cannot be removed; nil: that was not tried
}

// remnants returns those of all modes and families that this host has, except for what is in use.
func remnants(inUse func(mode string, fam policy.Family) bool) (list []remnant) {
	for _, m := range modes.All {
		for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
			if !inUse(m.Name, fam) && supported(fam) == nil {
				list = append(list, remnant{mode: m, fam: fam})
			}
		}
	}
	return list
}

// remove removes remnants, and returns those that may still be there.
func remove(ctx context.Context, c modes.OpenConfig, list []remnant) (left []remnant) {
	for _, r := range list {
		if r.err = cleanUp(ctx, r.mode, r.fam, c); r.err != nil {
			left = append(left, r)
		}
	}
	return left
}

// errorOf says why remnants may still be there; nil: there are none.
func errorOf(left []remnant) error {
	var errs []error
	for _, r := range left {
		if r.err != nil {
			errs = append(errs, fmt.Errorf("cleaning up %s mode, %s: %w", r.mode.Name, r.fam, r.err))
		}
	}
	return errors.Join(errs...)
}

func cleanUp(ctx context.Context, m modes.Mode, fam policy.Family, c modes.OpenConfig) error {
	if m.Remove != nil {
		return m.Remove(ctx, fam, c)
	}
	b, err := m.Open(ctx, fam, c)
	if err != nil {
		return err
	}
	return errors.Join(b.Cleanup(ctx), b.Close())
}

// uses reports whether a mode of open has its objects in a family: then they are no remnant.
func (sw *Switch) uses(open []*Active) func(mode string, fam policy.Family) bool {
	return func(mode string, fam policy.Family) bool {
		return slices.ContainsFunc(open, func(am *Active) bool {
			if am.leaving[fam] {
				return mode == am.Name
			}
			return (mode == am.Name || mode == am.RulesOf) && slices.Contains(node.Families(sw.Fixed), fam)
		})
	}
}

// findLeftovers returns what an earlier run with another mode or other families may
// have left in the kernel, after the first complete sync: make before break. A
// mode that is left for a while, for connections to end, is open now.
func (sw *Switch) findLeftovers(ctx context.Context, open []*Active) ([]*Active, []remnant) {
	for _, m := range modes.All {
		if former := sw.leftDraining(ctx, m, open); former != nil {
			open = append([]*Active{former}, open...)
		}
	}
	return open, remnants(sw.uses(open))
}

// removeLeftovers removes what has not come into use again, of families that the mode
// in use holds or that are not in use, and returns what may still be there. It logs what is new.
func (sw *Switch) removeLeftovers(ctx context.Context, open []*Active, left []remnant) []remnant {
	if len(left) == 0 {
		return nil
	}
	before, inUse := errorOf(left), sw.uses(open)
	left = slices.DeleteFunc(left, func(r remnant) bool { return inUse(r.mode.Name, r.fam) })
	due, later := sw.divide(left, open[len(open)-1])
	left = append(later, remove(ctx, sw.openConfig(sw.Fixed), due)...)
	err := errorOf(left)
	switch {
	case ctx.Err() != nil:
	case len(left) == 0:
		sw.Log.Info("nothing is left in the kernel of what an earlier run made in another mode")
	case err != nil && (before == nil || before.Error() != err.Error()):
		sw.Log.Warn("objects of an earlier run may be left in the kernel: removing them is tried again and again", "err", err)
	}
	return left
}

// divide tells remnants that can be removed now from those of families that are in
// use and not yet held by another mode.
func (sw *Switch) divide(left []remnant, current *Active) (due, later []remnant) {
	for _, r := range left {
		if slices.Contains(node.Families(sw.Fixed), r.fam) && !sw.holdsAll(current, r.fam) {
			later = append(later, r)
		} else {
			due = append(due, r)
		}
	}
	return due, later
}

// tellMode says which mode is in use and what others still have in the kernel: to
// systemd, and to status where something cannot be removed.
func (sw *Switch) tellMode(open []*Active, left []remnant) {
	last := open[len(open)-1]
	text := last.Name + " mode"
	var problems []string
	for _, am := range open[:len(open)-1] {
		text += am.leavingText()
		for _, fam := range slices.Sorted(maps.Keys(am.failed)) {
			problems = append(problems, fmt.Sprintf("objects of the former mode may be left in the kernel: %s mode, %s: %s", am.Name, fam, am.failed[fam]))
		}
	}
	if len(left) > 0 {
		text += "; removing what an earlier run may have left of others"
	}
	if err := errorOf(left); err != nil {
		problems = append(problems, "objects of an earlier run may be left in the kernel: "+strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	sw.mu.Lock()
	sw.left = problems
	sw.mu.Unlock()
	sw.Tell(text)
}

// leftDraining returns a mode as it was left by an earlier run, so that its connections
// can end, and lets go of the families that the mode in use holds. Nil: it is open,
// cannot be opened, or has nothing to wait for; then all of it can be removed.
func (sw *Switch) leftDraining(ctx context.Context, m modes.Mode, open []*Active) *Active {
	if !m.Drains || opened(open, m.Name) != nil {
		return nil
	}
	c := sw.openConfig(sw.Fixed)
	c.Leaving = true
	am, err := openAll(ctx, m, c, DecidePatience)
	if err != nil {
		return nil
	}
	for _, fam := range node.Families(sw.Fixed) {
		if sw.holdsAll(sw.active, fam) {
			am.leaving[fam] = true
		}
	}
	for _, fam := range am.due() {
		err = errors.Join(err, am.leave(ctx, fam, sw.active))
	}
	if am.isGone() || err != nil {
		_ = am.Close() // Cleanup comes next
		return nil
	}
	return am
}

// RetireInterval is how often a mode that is leaving is asked whether its
// connections have ended.
var RetireInterval = 5 * time.Second

// leaveFormer retires the modes before the last of open in the families of which
// that holds everything now.
func (sw *Switch) leaveFormer(ctx context.Context, open []*Active) []*Active {
	last := open[len(open)-1]
	for _, fam := range node.Families(sw.Fixed) {
		if !sw.holdsAll(last, fam) {
			continue
		}
		for _, former := range open[:len(open)-1] {
			former.leaving[fam] = true
		}
	}
	return sw.retire(ctx, open)
}

// retire removes what former modes made, except for the last of open, of the families
// that the last holds everything of. It returns open without those that are gone.
func (sw *Switch) retire(ctx context.Context, open []*Active) []*Active {
	last := open[len(open)-1]
	return slices.DeleteFunc(open, func(am *Active) bool {
		if am == last {
			return false
		}
		for _, fam := range am.due() {
			sw.noteLeaving(ctx, am, fam, am.leave(ctx, fam, last))
		}
		if !am.isGone() {
			return false
		}
		sw.closeMode(am)
		sw.Log.Info("removed what the former mode made", "mode", am.Name)
		return true
	})
}

// noteLeaving keeps why a mode cannot be removed yet, and logs it when that is new.
func (sw *Switch) noteLeaving(ctx context.Context, am *Active, fam policy.Family, err error) {
	if ctx.Err() != nil {
		return
	}
	was := am.failed[fam]
	delete(am.failed, fam)
	if err == nil {
		return
	}
	if am.failed[fam] = err.Error(); am.failed[fam] != was {
		sw.Log.Warn("objects of the former mode may be left in the kernel: removing them is tried again and again", "mode", am.Name, "family", fam, "err", err)
	}
}
