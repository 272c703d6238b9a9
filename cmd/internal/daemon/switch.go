package daemon

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"svcproxy/cmd/internal/modes"
	"svcproxy/cmd/internal/node"
	"svcproxy/configs"
	"svcproxy/proxier"
)

// followMode removes what earlier runs left and changes the mode when settings
// do, one change at a time, until ctx ends: make before break. The new mode holds
// everything of a family before what the former one made of it is removed; one
// family that fails keeps no other from that. What earlier runs left stays until the
// first complete sync, which a mode that does not work never has: it can be changed
// before.
func (d *daemon) followMode(ctx context.Context) {
	d.watch(ctx, d.kernel)
	open := []*activeMode{d.kernel} // all but the last are to be removed; no two of a mode, which share what they made
	var left []remnant
	ready := d.loop.Ready() // nil: it is
	again, more := time.NewTicker(retireInterval), time.NewTicker(missingInterval)
	defer again.Stop()
	defer more.Stop()
	for {
		if ready == nil {
			d.tellMode(open, left)
		}
		select {
		case <-ctx.Done():
			<-d.loopEnded
			for _, in := range open {
				d.closeMode(in)
			}
			return
		case <-ready:
			ready = nil
			open, left = d.leaveEarlier(ctx, open)
		case s := <-d.modeWanted:
			open = d.changeMode(ctx, open, s)
		case <-d.modeHolds:
			d.takeOver(ctx)
			open = d.leaveFormer(ctx, open)
			left = d.removeLeftovers(ctx, open, left)
		case <-again.C:
			open = d.retire(ctx, open)
		case <-more.C:
			left = d.removeLeftovers(ctx, open, left)
			d.warnOfSysctls()
			if s, failed := d.modeFailed(); failed {
				open = d.changeMode(ctx, open, s)
			}
			if len(open) == 1 && len(open[0].missing) > 0 { // no change of mode is under way
				d.tryMissing(ctx, open[0])
			}
		}
	}
}

// leaveEarlier begins to remove what earlier runs left. It returns the modes that are
// then open, the last one in use, and what could not be removed.
func (d *daemon) leaveEarlier(ctx context.Context, open []*activeMode) ([]*activeMode, []remnant) {
	open, left := d.findLeftovers(ctx, open)
	d.tellMode(open, left)
	return open, d.removeLeftovers(ctx, open, left)
}

func (d *daemon) waitReady(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-d.loop.Ready():
		return true
	}
}

// changeMode goes on with the mode of s. It stays with the present one where that cannot be.
func (d *daemon) changeMode(ctx context.Context, open []*activeMode, s configs.Settings) []*activeMode {
	last := open[len(open)-1]
	d.noteHeld(last)
	in, err := d.wanted(ctx, open, s)
	if news := d.noteMode(err); err != nil && news {
		d.log.Error("the mode cannot be changed: it stays", "wanted", s.Mode, "err", err)
	}
	if err != nil || in == last {
		return open
	}
	in.stop()
	in.leaving, in.rulesGone, in.gone, in.held, in.failed = nil, nil, nil, nil, nil
	d.watch(ctx, in) // of one that was leaving nobody listened to changes
	open = append(slices.DeleteFunc(open, func(o *activeMode) bool { return o == in }), in)
	d.log.Info("changing mode", "to", in.Name, "why", in.why)
	for _, w := range in.missing {
		d.log.Warn(w)
	}
	d.setKernel(in)
	d.files.Judge() // modes differ in what they can do
	d.loop.SetBackends(in.proxies())
	return open
}

// wanted returns the mode that settings ask for: that of open, where there is one, for
// another would not know what it made.
func (d *daemon) wanted(ctx context.Context, open []*activeMode, s configs.Settings) (*activeMode, error) {
	if in := opened(open, s.Mode); in != nil {
		return in, nil
	}
	in, err := choose(ctx, d.openConfig(s))
	if err != nil {
		return nil, err
	}
	had := opened(open, in.Name) // auto may choose it
	if had == nil {
		return in, nil
	}
	had.why = in.why
	d.closeMode(in)
	return had, nil
}

// opened returns the active mode of that name; nil: none is open.
func opened(open []*activeMode, mode string) *activeMode {
	if i := slices.IndexFunc(open, func(in *activeMode) bool { return in.Name == mode }); i >= 0 {
		return open[i]
	}
	return nil
}

// familyHolds has followMode look which families hold everything.
func (d *daemon) familyHolds() {
	select {
	case d.modeHolds <- struct{}{}:
	default: // it will look
	}
}

// holds reports whether everything of a family is in the kernel by in, which is in
// use. A family that its mode cannot have waits for the others.
func (d *daemon) holds(in *activeMode, fam proxier.Family) bool {
	if b := in.backends[fam]; b != nil {
		return d.loop.Holds(fam, b)
	}
	for fam, b := range in.backends {
		if !d.loop.Holds(fam, b) {
			return false
		}
	}
	return true
}

// noteHeld notes of which families in, which is in use, has held everything.
func (d *daemon) noteHeld(in *activeMode) {
	for fam, b := range in.backends {
		if d.loop.Holds(fam, b) {
			in.held.add(fam)
		}
	}
}

// leaveFormer retires the modes before the last of open in the families of which
// that holds everything now. Clients come from the last mode that held these too.
func (d *daemon) leaveFormer(ctx context.Context, open []*activeMode) []*activeMode {
	last := open[len(open)-1]
	d.noteHeld(last)
	for _, fam := range node.Families(d.fixed) {
		if !d.holds(last, fam) {
			continue
		}
		if former := served(open[:len(open)-1], fam); former != nil {
			d.handOver(ctx, fam, former.Mode, last.Mode)
		}
		for _, former := range open[:len(open)-1] {
			former.leaving.add(fam)
		}
	}
	return d.retire(ctx, open)
}

// served returns the last of former modes that held all of a family and has not
// been left; nil: none. One that was wanted for too short a time held none of it.
func served(former []*activeMode, fam proxier.Family) *activeMode {
	for _, in := range slices.Backward(former) {
		if in.held[fam] && !in.leaving[fam] {
			return in
		}
	}
	return nil
}

// setKernel makes in the one that status tells of.
func (d *daemon) setKernel(in *activeMode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kernel = in
}

// noteMode keeps for status why the mode that settings ask for is not in use; nil: it
// is. It reports whether that is new.
func (d *daemon) noteMode(err error) (news bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.modeErr
	d.modeErr = err
	return (was == nil) != (err == nil) || err != nil && was.Error() != err.Error()
}

// modeFailed reports whether the mode that settings ask for could not be had when it
// was last tried.
func (d *daemon) modeFailed() (s configs.Settings, failed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.settings, d.modeErr != nil
}

// retireInterval is how often a mode that is leaving is asked whether its
// connections have ended.
var retireInterval = 5 * time.Second

// missingInterval is how often a family that cannot be had is tried again: its
// module may be loaded now, or IPv6 switched on. Settings of the kernel are looked
// at as often.
var missingInterval = 30 * time.Second

// retire removes what former modes made, but for the last of open, of the families
// that the last holds everything of. It returns open without those that are gone.
func (d *daemon) retire(ctx context.Context, open []*activeMode) []*activeMode {
	last := open[len(open)-1]
	return slices.DeleteFunc(open, func(in *activeMode) bool {
		if in == last {
			return false
		}
		for _, fam := range in.due() {
			d.noteLeaving(ctx, in, fam, in.leave(ctx, fam, last))
		}
		if !in.isGone() {
			return false
		}
		d.closeMode(in)
		d.log.Info("removed what the former mode made", "mode", in.Name)
		return true
	})
}

// noteLeaving keeps why a mode cannot be removed yet, and logs it when that is new.
func (d *daemon) noteLeaving(ctx context.Context, in *activeMode, fam proxier.Family, err error) {
	if ctx.Err() != nil {
		return
	}
	was := in.failed[fam]
	delete(in.failed, fam)
	if err == nil {
		return
	}
	if in.failed == nil {
		in.failed = make(map[proxier.Family]string)
	}
	if in.failed[fam] = err.Error(); in.failed[fam] != was {
		d.log.Warn("objects of the former mode may be left in the kernel: removing them is tried again and again", "mode", in.Name, "family", fam, "err", err)
	}
}

func (d *daemon) closeMode(in *activeMode) {
	if err := in.close(); err != nil {
		d.log.Warn("closing a mode", "mode", in.Name, "err", err)
	}
}

// watch repairs at once what others change, where the kernel tells of it.
func (d *daemon) watch(ctx context.Context, in *activeMode) {
	for fam, b := range in.backends {
		d.watchBackend(ctx, in, fam, b)
	}
}

func (d *daemon) watchBackend(ctx context.Context, in *activeMode, fam proxier.Family, b modes.Backend) {
	w, tells := b.(proxier.Watcher)
	if !tells {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { d.watchFamily(ctx, fam, w) })
	in.watched[fam] = func() { cancel(); watching.Wait() }
}

func (d *daemon) watchFamily(ctx context.Context, fam proxier.Family, w proxier.Watcher) {
	err := w.Watch(ctx, func(e proxier.ForeignChange) { d.changedByOthers(fam, e) })
	if ctx.Err() == nil {
		d.log.Warn("changes by others are noticed at the next resync only", "family", fam, "err", err)
	}
}

// tryMissing opens families that could not be had so far.
func (d *daemon) tryMissing(ctx context.Context, in *activeMode) {
	d.mu.Lock()
	c := d.openConfig(d.settings)
	d.mu.Unlock()
	opened, missing := openMore(ctx, in.Mode, c, in.backends)
	d.mu.Lock()
	in.missing = missing
	d.mu.Unlock()
	if len(opened) == 0 {
		return
	}
	for fam, b := range opened {
		d.log.Info("a family that was left out can be had now", "family", fam, "mode", in.Name)
		in.backends[fam] = b
		d.watchBackend(ctx, in, fam, b)
	}
	d.loop.SetBackends(in.proxies())
}

// A disturbance is a kind of event that makes us compare and repair what a family has.
type disturbance struct {
	fam  proxier.Family
	lost bool // it is not known whether what is ours was changed
}

// disturbances returns who looks, or repairs what is known to differ, after each kind.
func disturbances(l *proxier.Loop) map[disturbance]*proxier.Contention {
	all := make(map[disturbance]*proxier.Contention)
	for _, fam := range []proxier.Family{proxier.IPv4, proxier.IPv6} {
		all[disturbance{fam, false}] = proxier.NewContention(func() { l.Repair(fam) })
		all[disturbance{fam, true}] = proxier.NewContention(func() { l.Look(fam) })
	}
	return all
}

func (d *daemon) changedByOthers(fam proxier.Family, e proxier.ForeignChange) {
	d.metrics.Disturbed(fam)
	who := "another program" // the kernel does not always say which
	if e.PID != 0 {
		who = fmt.Sprintf("process %d (%s)", e.PID, e.Process)
	}
	wait, news := d.contention[disturbance{fam, e.Lost}].Changed(who)
	switch {
	case !news:
	case e.Lost && wait > 0:
		d.log.Warn("events of the kernel are lost again and again: comparing everything less often from now on", "family", fam, "wait", wait)
	case e.Lost:
		d.log.Warn("events of the kernel were lost: comparing everything", "family", fam)
	case wait > 0:
		d.log.Warn("another program changes our table again and again: repairs wait from now on, longer each time",
			"family", fam, "who", who, "wait", wait)
	case e.PID == 0:
		d.log.Warn("rules were changed by another program: repairing them", "family", fam)
	default:
		d.log.Warn("somebody else changed our table: mending it", "family", fam, "process", e.Process, "pid", e.PID)
	}
}

// contended says who changes what is ours again and again.
func (d *daemon) contended() (problems []string) {
	for _, fam := range node.Families(d.fixed) {
		if p := d.contention[disturbance{fam: fam}].Problem(); p != "" {
			problems = append(problems, fam.String()+": "+p)
		}
	}
	return problems
}
