package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier"
)

// A modeSwitch has the mode in use follow settings, and removes what other modes made.
type modeSwitch struct {
	log      *slog.Logger
	loop     *proxier.Loop
	stateDir string
	fixed    configs.Settings        // as they were at start
	settings func() configs.Settings // in use
	tell     func(modes string)      // shows in systemctl status which modes are in use
	changed  func()                  // another mode is in use
	foreign  *foreignChanges

	wanted    chan configs.Settings // the mode changed in these
	holds     chan struct{}         // a family holds everything in its mode now
	loopEnded chan struct{}         // closed when no backend is used any more

	taken   familySet // of which clients of earlier runs were taken over
	sysctls []string  // what the log has said of settings of the kernel

	mu     sync.Mutex
	active *activeMode // in use
	err    error       // why it is not what settings ask for
	left   []string    // what other modes made and cannot be removed yet, and why
}

// openFirst opens the mode to begin with.
func (sw *modeSwitch) openFirst(ctx context.Context) (err error) {
	sw.wanted, sw.holds, sw.loopEnded = make(chan configs.Settings, 1), make(chan struct{}, 1), make(chan struct{})
	if sw.active, err = choose(ctx, sw.openConfig(sw.fixed)); err == nil {
		sw.tellFlowtable(sw.active)
	}
	return err
}

func (sw *modeSwitch) openConfig(s configs.Settings) modes.OpenConfig {
	return modes.OpenConfig{Settings: s, StateDir: sw.stateDir, Log: sw.log}
}

// follow removes what earlier runs left and changes the mode when settings
// do, one change at a time, until ctx ends: make before break. The new mode holds
// everything of a family before what the former one made of it is removed; one
// family that fails keeps no other from that. What earlier runs left stays until the
// first complete sync, which a mode that does not work never has: it can be changed
// before.
func (sw *modeSwitch) follow(ctx context.Context) {
	sw.watch(ctx, sw.active)
	open := []*activeMode{sw.active} // all but the last are to be removed; no two of a mode, which share what they made
	var left []remnant
	ready := sw.loop.Ready() // nil: it is
	again, more := time.NewTicker(retireInterval), time.NewTicker(missingInterval)
	defer again.Stop()
	defer more.Stop()
	for {
		if ready == nil {
			sw.tellMode(open, left)
		}
		select {
		case <-ctx.Done():
			<-sw.loopEnded
			for _, am := range open {
				sw.closeMode(am)
			}
			return
		case <-ready:
			ready = nil
			open, left = sw.leaveEarlier(ctx, open)
		case s := <-sw.wanted:
			open = sw.changeMode(ctx, open, s)
		case <-sw.holds:
			sw.takeOver(ctx)
			open = sw.leaveFormer(ctx, open)
			left = sw.removeLeftovers(ctx, open, left)
		case <-again.C:
			open = sw.retire(ctx, open)
		case <-more.C:
			left = sw.removeLeftovers(ctx, open, left)
			sw.warnOfSysctls()
			if s, failed := sw.failed(); failed {
				open = sw.changeMode(ctx, open, s)
			}
			if len(open) == 1 && len(open[0].missing) > 0 { // no change of mode is under way
				sw.tryMissing(ctx, open[0])
			}
		}
	}
}

// leaveEarlier begins to remove what earlier runs left. It returns the modes that are
// then open, the last one in use, and what could not be removed.
func (sw *modeSwitch) leaveEarlier(ctx context.Context, open []*activeMode) ([]*activeMode, []remnant) {
	open, left := sw.findLeftovers(ctx, open)
	sw.tellMode(open, left)
	return open, sw.removeLeftovers(ctx, open, left)
}

// changeMode goes on with the mode of s. It stays with the present one where that cannot be.
func (sw *modeSwitch) changeMode(ctx context.Context, open []*activeMode, s configs.Settings) []*activeMode {
	last := open[len(open)-1]
	sw.noteHeld(last)
	am, err := sw.openWanted(ctx, open, s)
	if news := sw.noteError(err); err != nil && news {
		sw.log.Error("the mode cannot be changed: it stays", "wanted", s.Mode, "err", err)
	}
	if err != nil || am == last {
		return open
	}
	am.stop()
	am.leaving, am.rulesGone, am.gone, am.held, am.failed = nil, nil, nil, nil, nil
	sw.watch(ctx, am) // of one that was leaving nobody listened to changes
	open = append(slices.DeleteFunc(open, func(o *activeMode) bool { return o == am }), am)
	sw.log.Info("changing mode", "to", am.Name, "why", am.why)
	for _, w := range am.missing {
		sw.log.Warn(w)
	}
	sw.tellFlowtable(am)
	sw.setActive(am)
	sw.changed()
	sw.loop.SetBackends(am.proxies())
	sw.familyHolds() // one that is back before the loop knew of another holds everything already
	return open
}

// openWanted returns the mode that settings ask for: that of open, where there is one, for
// another would not know what it made.
func (sw *modeSwitch) openWanted(ctx context.Context, open []*activeMode, s configs.Settings) (*activeMode, error) {
	if am := opened(open, s.Mode); am != nil {
		am.why = setBySettings
		return am, nil
	}
	am, err := choose(ctx, sw.openConfig(s))
	if err != nil {
		return nil, err
	}
	had := opened(open, am.Name) // auto may choose it
	if had == nil {
		return am, nil
	}
	had.why = am.why
	sw.closeMode(am)
	return had, nil
}

// opened returns the active mode of that name; nil: none is open.
func opened(open []*activeMode, mode string) *activeMode {
	if i := slices.IndexFunc(open, func(am *activeMode) bool { return am.Name == mode }); i >= 0 {
		return open[i]
	}
	return nil
}

// familyHolds has follow look which families hold everything.
func (sw *modeSwitch) familyHolds() { wake.Once(sw.holds) }

// holdsAll reports whether everything of a family is in the kernel by in, which is in
// use. A family that its mode cannot have waits for the others.
func (sw *modeSwitch) holdsAll(am *activeMode, fam proxier.Family) bool {
	if b := am.backends[fam]; b != nil {
		return sw.loop.Holds(fam, b)
	}
	for fam, b := range am.backends {
		if !sw.loop.Holds(fam, b) {
			return false
		}
	}
	return true
}

// setActive makes in the one that status tells of.
func (sw *modeSwitch) setActive(am *activeMode) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.active = am
}

// noteError keeps for status why the mode that settings ask for is not in use; nil: it
// is. It reports whether that is new.
func (sw *modeSwitch) noteError(err error) (news bool) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	was := sw.err
	sw.err = err
	return (was == nil) != (err == nil) || err != nil && was.Error() != err.Error()
}

// failed reports whether the mode that settings ask for could not be opened when it
// was last tried.
func (sw *modeSwitch) failed() (s configs.Settings, failed bool) {
	s = sw.settings()
	sw.mu.Lock()
	defer sw.mu.Unlock()
	return s, sw.err != nil
}

// missingInterval is how often a family that fails is tried again: its
// module may be loaded now, or IPv6 switched on. Settings of the kernel are looked
// at as often.
var missingInterval = 30 * time.Second

func (sw *modeSwitch) closeMode(am *activeMode) {
	if err := am.close(); err != nil {
		sw.log.Warn("closing a mode", "mode", am.Name, "err", err)
	}
}

// tryMissing opens families that could not be opened so far.
func (sw *modeSwitch) tryMissing(ctx context.Context, am *activeMode) {
	opened, missing := openMore(ctx, am.Mode, sw.openConfig(sw.settings()), am.backends)
	sw.mu.Lock()
	am.missing = missing
	maps.Copy(am.backends, opened)
	sw.mu.Unlock()
	if len(opened) == 0 {
		return
	}
	for fam, b := range opened {
		sw.log.Info("a family that was left out works now", "family", fam, "mode", am.Name)
		sw.watchBackend(ctx, am, fam, b)
	}
	sw.loop.SetBackends(am.proxies())
}

// want has the mode of s used, in place of one asked for but not yet looked at.
func (sw *modeSwitch) want(s configs.Settings) {
	select {
	case <-sw.wanted:
	default:
	}
	sw.wanted <- s
}

// retry has the mode that settings ask for tried again, if it could not be opened.
func (sw *modeSwitch) retry() {
	if s, failed := sw.failed(); failed {
		sw.want(s)
	}
}

// current returns the mode in use.
func (sw *modeSwitch) current() *activeMode {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	return sw.active
}

// missing says which families the mode in use leaves out.
func (sw *modeSwitch) missing() []string {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	return sw.active.missing
}

// warnings says why the mode in use is not the one that settings ask for, and what
// it does not do of what they ask for, and what others have left.
func (sw *modeSwitch) warnings() (list []string) {
	used := sw.settings()
	sw.mu.Lock()
	defer sw.mu.Unlock()
	if sw.err != nil {
		list = append(list, fmt.Sprintf("mode %q is not in use: %v", used.Mode, sw.err))
	}
	used.Mode = sw.active.Name
	if err := used.Check(); err != nil {
		list = append(list, err.Error())
	}
	return slices.Concat(list, flowtableWarnings(used, sw.active), sw.left)
}

// warnOfSysctls says which settings of the kernel keep traffic from flowing, and did
// not when it was last called: others change them, and an ip_vs that was removed and
// reloaded has the kernel's defaults. It is of the goroutine of follow.
func (sw *modeSwitch) warnOfSysctls() {
	now := hostsetup.VerifySysctls(sw.settings(), sw.current().Mode)
	for _, w := range now {
		if !slices.Contains(sw.sysctls, w) {
			sw.log.Warn(w)
		}
	}
	sw.sysctls = now
}
