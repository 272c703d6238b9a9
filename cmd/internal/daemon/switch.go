package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
)

// A modeSwitch has the mode in use follow settings, and removes what other modes made.
type modeSwitch struct {
	log      *slog.Logger
	stateDir string
	fixed    configs.Settings        // as they were at start
	settings func() configs.Settings // in use
	tell     func(modes string)      // shows in systemctl status which modes are in use
	changed  func()                  // another mode is in use

	loop    *loop.Loop // made once the mode is open, as is foreign
	foreign *foreignChanges

	wanted    chan configs.Settings // the mode changed in these
	holds     chan struct{}         // a family holds everything in its mode now
	opened    chan struct{}         // a family is open, or cannot be opened
	choosing  chan choice           // has the mode that auto takes; nil: it is known
	loopEnded chan struct{}         // closed when no backend is used any more

	sysctls []string // what the log has said of settings of the kernel

	mu     sync.Mutex
	active *activeMode // in use
	err    error       // why it is not what settings ask for
	left   []string    // what other modes made and cannot be removed yet, and why
}

// A choice is the mode that auto takes, or why there is none.
type choice struct {
	am  *activeMode
	err error
}

// openFirst opens the mode to begin with, as far as that takes no longer than openPatience.
func (sw *modeSwitch) openFirst(ctx context.Context) (err error) {
	sw.wanted, sw.holds, sw.loopEnded = make(chan configs.Settings, 1), make(chan struct{}, 1), make(chan struct{})
	sw.opened = make(chan struct{}, 1)
	if sw.active, err = sw.openWithin(ctx, sw.fixed); err == nil {
		sw.tellFlowtable(sw.active)
	}
	return err
}

// openWithin opens the mode that settings ask for. What takes longer than openPatience joins later.
func (sw *modeSwitch) openWithin(ctx context.Context, s configs.Settings) (*activeMode, error) {
	if s.Mode != configs.Auto {
		return sw.openNamed(ctx, s)
	}
	chosen := make(chan choice, 1)
	go func() {
		am, err := choose(ctx, sw.openConfig(s))
		chosen <- choice{am, err}
	}()
	select {
	case c := <-chosen:
		return c.am, c.err
	case <-time.After(openPatience):
		sw.choosing = chosen
		return presumed(s), nil
	}
}

// openNamed opens the mode that settings name.
func (sw *modeSwitch) openNamed(ctx context.Context, s configs.Settings) (*activeMode, error) {
	m, err := modeNamed(s.Mode)
	if err != nil {
		return nil, err
	}
	am, err := openSome(ctx, m, sw.openConfig(s), openPatience, func() { wake.Once(sw.opened) })
	if err != nil {
		return nil, err
	}
	am.why = setBySettings
	return am, nil
}

// presumed returns the mode that auto tries first, of which nothing is open.
func presumed(s configs.Settings) *activeMode {
	first := available[0]
	for _, m := range slices.Backward(available) {
		if s.Mode = m.Name; s.Check() == nil {
			first = m
		}
	}
	am := newActiveMode(first)
	am.why = "no mode has opened yet"
	return am
}

func (sw *modeSwitch) openConfig(s configs.Settings) modes.OpenConfig {
	return modes.OpenConfig{Settings: s, StateDir: sw.stateDir, Log: sw.log}
}

// follow removes what earlier runs left and changes the mode when settings
// do, one change at a time, until ctx ends: make before break. The new mode holds
// everything of a family before what the former one made of it is removed; one
// family that fails keeps no other from that. What earlier runs left stays until the
// first complete sync, which a mode that does not work never has: it can be changed
// before. It fails if the mode to begin with has no family that opens.
func (sw *modeSwitch) follow(ctx context.Context) error {
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
		wanted := sw.wanted
		if sw.choosing != nil {
			wanted = nil // first the one that auto takes is known
		}
		select {
		case <-ctx.Done():
			<-sw.loopEnded
			for _, am := range open {
				sw.closeMode(am)
			}
			return nil
		case <-ready:
			ready = nil
			open, left = sw.leaveEarlier(ctx, open)
		case c := <-sw.choosing:
			open = sw.useChoice(ctx, open, c)
		case <-sw.opened:
			if err := sw.useOpened(ctx, open[len(open)-1]); err != nil {
				return err
			}
		case s := <-wanted:
			open = sw.changeMode(ctx, open, s)
		case <-sw.holds:
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
			if len(open) == 1 && len(open[0].lacks) > 0 { // no change of mode is under way
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
	am, err := sw.openWanted(ctx, open, s)
	if news := sw.noteError(err); err != nil && news {
		sw.log.Error("the mode cannot be changed: it stays", "wanted", s.Mode, "err", err)
	}
	if err != nil || am == last {
		return open
	}
	sw.mu.Lock()
	last.giveUp()
	sw.mu.Unlock()
	am.stop()
	am.leaving, am.rulesGone, am.gone, am.failed = nil, nil, nil, nil
	open = append(slices.DeleteFunc(open, func(o *activeMode) bool { return o == am }), am)
	sw.log.Info("changing mode", "to", am.Name, "why", am.why)
	sw.begin(ctx, am)
	// The loop calls OnHolds once for each backend. If the settings left this mode and came back to it before the loop took
	// over the backends of the mode in between, its backends hold everything already, and OnHolds is not called again.
	sw.familyHolds()
	return open
}

// begin begins to use a mode. Of one that was leaving nobody listened to changes.
func (sw *modeSwitch) begin(ctx context.Context, am *activeMode) {
	sw.watch(ctx, am)
	for _, w := range am.missing() {
		sw.log.Warn(w)
	}
	sw.tellFlowtable(am)
	sw.setActive(am)
	sw.changed()
	sw.loop.SetBackends(am.proxies())
}

// useChoice begins to use the mode that auto takes, now that this is known. The one that was presumed has nothing.
func (sw *modeSwitch) useChoice(ctx context.Context, open []*activeMode, c choice) []*activeMode {
	sw.choosing = nil
	if news := sw.noteError(c.err); c.err != nil {
		if news {
			sw.log.Error("no mode can be opened: trying again", "err", c.err)
		}
		return open
	}
	sw.log.Info("mode chosen", "mode", c.am.Name, "why", c.am.why)
	sw.begin(ctx, c.am)
	return []*activeMode{c.am}
}

// useOpened begins to use the families of a mode that have been opened meanwhile. It fails if none is in use, and none
// is being opened any more.
func (sw *modeSwitch) useOpened(ctx context.Context, am *activeMode) error {
	sw.mu.Lock()
	before := am.missing()
	opened, failed := am.collect()
	now := am.missing()
	ended := failed && len(am.opening) == 0
	sw.mu.Unlock()
	if ended {
		if err := am.works(); err != nil {
			return err
		}
	}
	for _, w := range now {
		if failed && !slices.Contains(before, w) {
			sw.log.Warn(w)
		}
	}
	for fam, b := range opened {
		sw.log.Info("a family that was left out works now", "family", fam, "mode", am.Name)
		sw.watchBackend(ctx, am, fam, b)
	}
	if len(opened) > 0 || failed {
		sw.loop.SetBackends(am.proxies())
	}
	return nil
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

// familyHolds wakes follow, which then removes what other modes made of each family that the mode in use holds
// completely. It does not block.
func (sw *modeSwitch) familyHolds() { wake.Once(sw.holds) }

// holdsAll reports whether everything of a family is in the kernel by am, which is in
// use. A family that its mode cannot have waits for the others.
func (sw *modeSwitch) holdsAll(am *activeMode, fam policy.Family) bool {
	if b := am.backends[fam]; b != nil {
		return sw.loop.Holds(fam, b)
	}
	if am.opening[fam] != nil || len(am.backends) == 0 {
		return false
	}
	for fam, b := range am.backends {
		if !sw.loop.Holds(fam, b) {
			return false
		}
	}
	return true
}

// setActive makes am the mode that status names.
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
	sw.mu.Lock()
	am.giveUp()
	sw.mu.Unlock()
	if err := am.close(); err != nil {
		sw.log.Warn("closing a mode", "mode", am.Name, "err", err)
	}
}

// tryMissing begins to open families that could not be opened so far.
func (sw *modeSwitch) tryMissing(ctx context.Context, am *activeMode) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	s := sw.settings()
	am.begin(ctx, sw.openConfig(s), node.Families(s), func() { wake.Once(sw.opened) })
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
	return sw.active.missing()
}

// stalls returns what the families that are being opened wait for.
func (sw *modeSwitch) stalls() (list []report.Stall) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	for fam, o := range sw.active.opening {
		if sw.active.opensLong(fam) {
			list = append(list, o.stall())
		}
	}
	return list
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
	return slices.Concat(list, modeWarnings(used, sw.active), sw.left)
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
