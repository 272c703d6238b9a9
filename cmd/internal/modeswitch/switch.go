// Package modeswitch keeps the mode in use that settings ask for.
//
// Open opens the first mode, for each family beside the others, and Choose tries them in turn
// where settings say auto. Switch.Follow then changes the mode when settings do, make before
// break: the new mode holds everything of a family before what the former one made of it is
// removed. It opens families that failed again and again, repairs what other programs change,
// and removes what earlier runs left in the kernel in other modes; Cleanup does only that.
//
// The main types are the Switch; Active, a mode that is open, with a backend for each family;
// and opening, a backend that is being opened, which may take long.
package modeswitch

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
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Switch has the mode in use follow settings, and removes what other modes made.
type Switch struct {
	Config
	*repairs
	leavings *leavings

	wanted    chan configs.Settings        // the mode changed in these
	holds     chan struct{}                // a family holds everything in its mode now
	opened    chan struct{}                // a family is open, or cannot be opened
	choosing  chan func() (*Active, error) // has the mode that auto takes; nil: it is known
	loopEnded chan struct{}                // closed when no backend is used any more

	sysctls []string               // what the log has said of settings of the kernel
	served  map[policy.Family]bool // what the kernel had of families when Late was first asked for them

	mu     sync.Mutex
	active *Active // in use
	err    error   // why it is not what settings ask for
}

// Open opens the mode to begin with, as far as that takes no longer than OpenPatience.
func Open(ctx context.Context, c Config) (_ *Switch, err error) {
	sw := &Switch{
		Config: c, repairs: newRepairs(c), leavings: &leavings{Config: c}, wanted: make(chan configs.Settings, 1), holds: make(chan struct{}, 1),
		opened: make(chan struct{}, 1), loopEnded: make(chan struct{}), served: make(map[policy.Family]bool),
	}
	if sw.active, err = sw.openWithin(ctx, sw.Fixed); err != nil {
		return nil, err
	}
	sw.warnOfFlowtable(sw.active)
	return sw, nil
}

// Close gives up the mode in use where Follow was never called.
func (sw *Switch) Close() { sw.closeMode(sw.active) }

// LoopEnded says that no backend is used any more.
func (sw *Switch) LoopEnded() { close(sw.loopEnded) }

// Backends returns the backends of the mode in use as the Loop knows them: nil where one is being opened.
func (sw *Switch) Backends() map[policy.Family]proxier.Backend { return sw.active.proxies() }

// openWithin opens the mode that settings ask for. What takes longer than OpenPatience joins later.
func (sw *Switch) openWithin(ctx context.Context, s configs.Settings) (*Active, error) {
	if s.Mode != configs.Auto {
		m, err := modes.Named(s.Mode)
		if err != nil {
			return nil, err
		}
		return openSome(ctx, m, sw.openConfig(s), OpenPatience, func() { wake.Once(sw.opened) })
	}
	chosen, c := make(chan func() (*Active, error), 1), sw.openConfig(s)
	go func() {
		am, err := Choose(ctx, c)
		chosen <- func() (*Active, error) { return am, err }
	}()
	select {
	case choice := <-chosen:
		return choice()
	case <-time.After(OpenPatience):
		sw.choosing = chosen
	}
	first := modes.All[0] // that auto tries first; none of its families is open
	for _, m := range slices.Backward(modes.All) {
		if s.Mode = m.Name; s.Check() == nil {
			first = m
		}
	}
	am := newActiveMode(first)
	am.Why = "no mode has opened yet"
	return am, nil
}

// Follow removes what earlier runs left and changes the mode when settings
// do, one change at a time, until ctx ends: make before break. The new mode holds
// everything of a family before what the former one made of it is removed; one
// family that fails keeps no other from that. What earlier runs left stays until the
// first complete sync, which a mode that does not work never has: it can be changed
// before. It fails if the mode to begin with has no family that opens.
func (sw *Switch) Follow(ctx context.Context) error {
	sw.sysctls = hostsetup.VerifySysctls(sw.Fixed, sw.active.Mode)
	sw.watch(ctx, sw.active)
	former := sw.leavings
	former.open = []*Active{sw.active}
	ready := sw.Loop().Ready() // nil: it is
	again, more := time.NewTicker(RetireInterval), time.NewTicker(MissingInterval)
	defer again.Stop()
	defer more.Stop()
	for {
		if ready == nil {
			former.reportMode()
		}
		wanted := sw.wanted
		if sw.choosing != nil {
			wanted = nil // first the one that auto takes is known
		}
		select {
		case <-ctx.Done():
			<-sw.loopEnded
			for _, am := range former.open {
				sw.closeMode(am)
			}
			return nil
		case <-ready:
			ready = nil
			former.find(ctx)
			former.reportMode()
			former.remove(ctx)
		case choice := <-sw.choosing:
			am, err := choice()
			sw.useChoice(ctx, am, err)
		case <-sw.opened:
			if err := sw.useOpened(ctx, former.current()); err != nil {
				return err
			}
		case s := <-wanted:
			sw.changeMode(ctx, s)
		case <-sw.holds:
			former.leaveFormer(ctx)
			former.remove(ctx)
		case <-again.C:
			former.retire(ctx)
		case <-more.C:
			former.remove(ctx)
			sw.warnOfSysctls()
			if s, failed := sw.failed(); failed {
				sw.changeMode(ctx, s)
			}
			if am := former.current(); len(former.open) == 1 && len(am.lacks) > 0 { // no change of mode is under way
				s := sw.Settings()
				am.begin(ctx, sw.openConfig(s), node.Families(s), func() { wake.Once(sw.opened) })
			}
		}
	}
}

// changeMode goes on with the mode of s. It stays with the present one where that cannot be.
func (sw *Switch) changeMode(ctx context.Context, s configs.Settings) {
	open := sw.leavings.open
	last := sw.leavings.current()
	am, err := sw.openWanted(ctx, open, s)
	if news := sw.recordError(err); err != nil && news {
		sw.Log.Error("cannot switch mode; staying in the current one", "wanted", s.Mode, "err", err)
	}
	if err != nil || am == last {
		return
	}
	last.giveUp()
	am.stop()
	clear(am.leaving)
	clear(am.rulesGone)
	clear(am.gone)
	clear(am.failed)
	sw.leavings.open = append(slices.DeleteFunc(open, func(o *Active) bool { return o == am }), am)
	sw.Log.Info("changing mode", "to", am.Name, "why", am.Why)
	sw.begin(ctx, am)
	// The loop calls Observer.Holds once for each backend. If the settings left this mode and came back to it before the loop took
	// over the backends of the mode in between, its backends hold everything already, and Holds is not called again.
	sw.FamilyHolds()
}

// begin begins to use a mode. Of one that was leaving nobody listened to changes.
func (sw *Switch) begin(ctx context.Context, am *Active) {
	sw.watch(ctx, am)
	for _, w := range am.Missing() {
		sw.Log.Warn(w)
	}
	sw.warnOfFlowtable(am)
	sw.mu.Lock()
	sw.active = am
	sw.mu.Unlock()
	sw.Changed()
	sw.Loop().SetBackends(am.proxies())
}

// useChoice begins to use the mode that auto takes, now that this is known. The one that was presumed has nothing.
func (sw *Switch) useChoice(ctx context.Context, am *Active, err error) {
	sw.choosing = nil
	if news := sw.recordError(err); err != nil {
		if news {
			sw.Log.Error("cannot open any mode; retrying", "err", err)
		}
		return
	}
	sw.Log.Info("mode chosen", "mode", am.Name, "why", am.Why)
	sw.begin(ctx, am)
	sw.leavings.open = []*Active{am}
}

// useOpened begins to use the families of a mode that have been opened meanwhile. It fails if none is in use, and none
// is being opened any more.
func (sw *Switch) useOpened(ctx context.Context, am *Active) error {
	before := am.Missing()
	opened, failed := am.collect()
	now := am.Missing()
	if failed && len(am.opening) == 0 {
		if err := am.works(); err != nil {
			return err
		}
	}
	for _, w := range now {
		if failed && !slices.Contains(before, w) {
			sw.Log.Warn(w)
		}
	}
	for fam, b := range opened {
		sw.Log.Info("a family that was left out is synced again", "family", fam, "mode", am.Name)
		sw.watchBackend(ctx, am, fam, b)
	}
	if len(opened) > 0 || failed {
		sw.Loop().SetBackends(am.proxies())
	}
	return nil
}

// openWanted returns the mode that settings ask for: that of open, where there is one, for
// another would not know what it made.
func (sw *Switch) openWanted(ctx context.Context, open []*Active, s configs.Settings) (*Active, error) {
	if am := opened(open, s.Mode); am != nil {
		am.Why = setBySettings
		return am, nil
	}
	am, err := Choose(ctx, sw.openConfig(s))
	if err != nil {
		return nil, err
	}
	had := opened(open, am.Name) // auto may choose it
	if had == nil {
		return am, nil
	}
	had.Why = am.Why
	sw.closeMode(am)
	return had, nil
}

// FamilyHolds wakes Follow, which then removes what other modes made of each family that the mode in use holds
// completely. It does not block.
func (sw *Switch) FamilyHolds() { wake.Once(sw.holds) }

// recordError keeps for status why the mode that settings ask for is not in use; nil: it
// is. It reports whether that is new.
func (sw *Switch) recordError(err error) (news bool) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	was := sw.err
	sw.err = err
	return (was == nil) != (err == nil) || err != nil && was.Error() != err.Error()
}

// failed reports whether the mode that settings ask for could not be opened when it
// was last tried.
func (sw *Switch) failed() (s configs.Settings, failed bool) {
	s = sw.Settings()
	sw.mu.Lock()
	defer sw.mu.Unlock()
	return s, sw.err != nil
}

// MissingInterval is how often a family that fails is tried again: its
// module may be loaded now, or IPv6 switched on. Settings of the kernel are looked
// at as often.
var MissingInterval = 30 * time.Second

// Want has the mode of s used, in place of one asked for but not yet looked at.
func (sw *Switch) Want(s configs.Settings) {
	select {
	case <-sw.wanted:
	default:
	}
	sw.wanted <- s
}

// Retry has the mode that settings ask for tried again, if it could not be opened.
func (sw *Switch) Retry() {
	if s, failed := sw.failed(); failed {
		sw.Want(s)
	}
}

// Current returns the mode in use.
func (sw *Switch) Current() *Active {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	return sw.active
}

// Warnings says why the mode in use is not the one that settings ask for, and what
// it does not do of what they ask for, and what others have left.
func (sw *Switch) Warnings() (list []string) {
	used := sw.Settings()
	sw.mu.Lock()
	defer sw.mu.Unlock()
	if sw.err != nil {
		list = append(list, fmt.Sprintf("mode %q is not in use: %v", used.Mode, sw.err))
	}
	used.Mode = sw.active.Name
	if err := used.Check(); err != nil {
		list = append(list, err.Error())
	}
	return slices.Concat(list, modeWarnings(used, sw.active), sw.leavings.warnings())
}

// warnOfSysctls says which settings of the kernel keep traffic from flowing, and did
// not when it was last called: others change them, and an ip_vs that was removed and
// reloaded has the kernel's defaults. Only the goroutine of Follow uses it.
func (sw *Switch) warnOfSysctls() {
	now := hostsetup.VerifySysctls(sw.Settings(), sw.Current().Mode)
	for _, w := range now {
		if !slices.Contains(sw.sysctls, w) {
			sw.Log.Warn(w)
		}
	}
	sw.sysctls = now
}

// A Config is what a Switch is made of.
type Config struct {
	Log      *slog.Logger
	StateDir string
	Fixed    configs.Settings        // as they were at start
	Settings func() configs.Settings // in use
	Tell     func(modes string)      // shows in systemctl status which modes are in use
	Changed  func()                  // another mode is in use
	Foreign  func(policy.Family)     // another program has changed what is ours

	// Loop returns what uses the backends. It is not called before Follow.
	Loop func() *loop.Loop
}

func (c Config) openConfig(s configs.Settings) modes.OpenConfig {
	return modes.OpenConfig{Settings: s, StateDir: c.StateDir, Log: c.Log}
}

// warnOfFlowtable has the log say that a mode has no flow table, where settings ask for one.
func (c Config) warnOfFlowtable(am *Active) {
	if len(c.Fixed.WarnOfMode(am.Mode.Mode)) > 0 {
		c.Log.Warn("the settings ask for a flowtable, which this mode does not have", "mode", am.Name)
	}
}

// holdsAll reports whether everything of a family is in the kernel by am, which is in
// use. A family that its mode cannot have waits for the others.
func (c Config) holdsAll(am *Active, fam policy.Family) bool {
	if b := am.Backends[fam]; b != nil {
		return c.Loop().Holds(fam, b)
	}
	if am.opening[fam] != nil || len(am.Backends) == 0 {
		return false
	}
	for fam, b := range am.Backends {
		if !c.Loop().Holds(fam, b) {
			return false
		}
	}
	return true
}

func (c Config) closeMode(am *Active) {
	if err := am.Close(); err != nil {
		c.Log.Warn("closing a mode", "mode", am.Name, "err", err)
	}
}
