package modeswitch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/cmd/internal/trace"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
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
		if r.mode.Remove != nil {
			r.err = r.mode.Remove(ctx, r.fam, c)
		} else if b, err := r.mode.Open(ctx, r.fam, c); err != nil {
			r.err = err
		} else {
			r.err = errors.Join(b.Cleanup(ctx), b.Close())
		}
		if r.err != nil {
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

// leavings are what is to be removed from the kernel: what earlier runs left, and modes that are left for another one.
type leavings struct {
	Config
	open []*Active // all but the last are to be removed; no two of a mode, which share what they made
	left []remnant

	mu       sync.Mutex
	problems []string // what cannot be removed yet, and why
}

// current returns the mode in use.
func (l *leavings) current() *Active { return l.open[len(l.open)-1] }

// uses reports whether a mode that is open has its objects in a family: then they are no remnant.
func (l *leavings) uses(mode string, fam policy.Family) bool {
	return slices.ContainsFunc(l.open, func(am *Active) bool {
		if am.leaving[fam] {
			return mode == am.Name
		}
		return (mode == am.Name || mode == am.RulesOf) && slices.Contains(node.Families(l.Fixed), fam)
	})
}

// find finds what an earlier run with another mode or other families may
// have left in the kernel, after the first complete sync: make before break. A
// mode that is left for a while, for connections to end, is open now.
func (l *leavings) find(ctx context.Context) {
	for _, m := range modes.All {
		if former := l.leftDraining(ctx, m); former != nil {
			l.open = append([]*Active{former}, l.open...)
		}
	}
	l.left = remnants(l.uses)
}

// remove removes what has not come into use again, of families that the mode
// in use holds or that are not in use. It logs what is new.
func (l *leavings) remove(ctx context.Context) {
	if len(l.left) == 0 {
		return
	}
	before := errorOf(l.left)
	l.left = slices.DeleteFunc(l.left, func(r remnant) bool { return l.uses(r.mode.Name, r.fam) })
	var due, later []remnant // later: of families that are in use and not yet held by another mode
	for _, r := range l.left {
		if slices.Contains(node.Families(l.Fixed), r.fam) && !l.holdsAll(l.current(), r.fam) {
			later = append(later, r)
		} else {
			due = append(due, r)
		}
	}
	l.left = append(later, remove(ctx, l.openConfig(l.Fixed), due)...)
	err := errorOf(l.left)
	switch {
	case ctx.Err() != nil:
	case len(l.left) == 0:
		l.Log.Info("nothing of an earlier run in another mode is left in the kernel")
	case err != nil && (before == nil || before.Error() != err.Error()):
		l.Log.Warn("cannot remove all objects of an earlier run from the kernel; retrying", "err", err)
	}
}

// reportMode says which mode is in use and what others still have in the kernel: to
// systemd, and to status where something cannot be removed.
func (l *leavings) reportMode() {
	text := l.current().Name + " mode"
	var problems []string
	for _, am := range l.open[:len(l.open)-1] {
		text += am.leavingText()
		for _, fam := range slices.Sorted(maps.Keys(am.failed)) {
			problems = append(problems, fmt.Sprintf("cannot remove all objects of the previous mode from the kernel: %s mode, %s: %s", am.Name, fam, am.failed[fam]))
		}
	}
	if len(l.left) > 0 {
		text += "; removing what an earlier run may have left of others"
	}
	if err := errorOf(l.left); err != nil {
		problems = append(problems, "cannot remove all objects of an earlier run from the kernel: "+strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	l.mu.Lock()
	l.problems = problems
	l.mu.Unlock()
	l.Tell(text)
}

// warnings says what cannot be removed yet, and why.
func (l *leavings) warnings() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problems
}

// leftDraining returns a mode as it was left by an earlier run, so that its connections
// can end, and lets go of the families that the mode in use holds. Nil: it is open,
// cannot be opened, or has nothing to wait for; then all of it can be removed.
func (l *leavings) leftDraining(ctx context.Context, m modes.Mode) *Active {
	if m.DrainTimeout == nil || opened(l.open, m.Name) != nil {
		return nil
	}
	c := l.openConfig(l.Fixed)
	c.Leaving = true
	am, err := openAll(ctx, m, c, DecidePatience)
	if err != nil {
		return nil
	}
	for _, fam := range node.Families(l.Fixed) {
		if l.holdsAll(l.current(), fam) {
			am.leaving[fam] = true
		}
	}
	for _, fam := range am.due() {
		err = errors.Join(err, am.leave(ctx, fam, l.current()))
	}
	if am.isGone() || err != nil {
		_ = am.Close() // Cleanup comes next
		return nil
	}
	return am
}

// Cleanup removes what any mode may have left in the kernel, of both families.
// The state directory says what of IPVS is ours; stderr gets warnings.
func Cleanup(ctx context.Context, stateDir string, stderr io.Writer) error {
	log, _ := journal.NewLog(stderr, configs.Default().Log)
	all := remnants(func(string, policy.Family) bool { return false })
	left := remove(ctx, modes.OpenConfig{Settings: configs.Default(), StateDir: stateDir, Log: log}, all)
	return errors.Join(errorOf(left), trace.Remove(ctx))
}

// RetireInterval is how often a mode that is leaving is asked whether its
// connections have ended.
var RetireInterval = 5 * time.Second

// leaveFormer retires the modes before the last of open in the families of which
// that holds everything now.
func (l *leavings) leaveFormer(ctx context.Context) {
	for _, fam := range node.Families(l.Fixed) {
		if !l.holdsAll(l.current(), fam) {
			continue
		}
		for _, former := range l.open[:len(l.open)-1] {
			former.leaving[fam] = true
		}
	}
	l.retire(ctx)
}

// retire removes what former modes made, except for the last of open, of the families
// that the last holds everything of.
func (l *leavings) retire(ctx context.Context) {
	last := l.current()
	l.open = slices.DeleteFunc(l.open, func(am *Active) bool {
		if am == last {
			return false
		}
		for _, fam := range am.due() {
			err, was := am.leave(ctx, fam, last), am.failed[fam]
			if ctx.Err() != nil {
				continue
			}
			delete(am.failed, fam)
			if err == nil {
				continue
			}
			if am.failed[fam] = err.Error(); am.failed[fam] != was {
				l.Log.Warn("cannot remove all objects of the previous mode from the kernel; retrying", "mode", am.Name, "family", fam, "err", err)
			}
		}
		if !am.isGone() {
			return false
		}
		l.closeMode(am)
		l.Log.Info("removed the objects of the previous mode", "mode", am.Name)
		return true
	})
}

// Late returns the families of unsynced, which no sync has succeeded for, of which the kernel may serve addresses
// that are announced by BGP, as an earlier run left it. A host that was booted has nothing of that kind. One goroutine
// at a time calls it.
func (sw *Switch) Late(ctx context.Context, unsynced []*policy.State) (late []policy.Family) {
	for _, st := range unsynced {
		served, known := sw.served[st.Family]
		if !known {
			served = mayServe(ctx, sw.Current().Name, st)
			sw.served[st.Family] = served
		}
		if served {
			late = append(late, st.Family)
		}
	}
	return late
}

// lateTime is how long the kernel of a mode may take to tell what it has.
const lateTime = 2 * time.Second

// mayServe reports whether the kernel has something of a State, in whatever mode an earlier run was. Where the
// mode in use does not tell, it may.
func mayServe(ctx context.Context, inUse string, st *policy.State) bool {
	for _, m := range modes.All {
		ctx, cancel := context.WithTimeout(ctx, lateTime)
		objects, err := m.Objects(ctx, st)
		cancel()
		present := slices.ContainsFunc(objects, func(o proxier.Object) bool { return o.Present })
		if present || err != nil && m.Name == inUse {
			return true
		}
	}
	return false
}
