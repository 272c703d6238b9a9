package modeswitch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/awaited"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
)

// An Active is a mode that is open: in use, or left for another one and not yet gone.
type Active struct {
	modes.Mode
	mu       sync.Mutex
	Backends map[policy.Family]modes.Backend // those in use are added to with mu held
	opening  map[policy.Family]*opening      // the same
	lacks    map[policy.Family]error         // why families could not be opened when last tried; the same
	Why      string                          // it was chosen

	watched map[policy.Family]func() // each ends what hears of changes by others

	leaving   map[policy.Family]bool   // of which another mode holds everything
	rulesGone map[policy.Family]bool   // of which what Retire leaves to RemoveRules is removed
	gone      map[policy.Family]bool   // of which nothing is left
	failed    map[policy.Family]string // why what it made could not be removed when last tried
}

// setBySettings is why a mode is used that settings name.
const setBySettings = "it is set"

// newActiveMode returns a mode of which nothing is open.
func newActiveMode(m modes.Mode) *Active {
	return &Active{
		Mode: m, Why: setBySettings, watched: make(map[policy.Family]func()), Backends: make(map[policy.Family]modes.Backend),
		opening: make(map[policy.Family]*opening), lacks: make(map[policy.Family]error),
		leaving: make(map[policy.Family]bool), rulesGone: make(map[policy.Family]bool), gone: make(map[policy.Family]bool),
		failed: make(map[policy.Family]string),
	}
}

// openAll opens a mode for the families that this host has. Those that take longer than patience are left out.
func openAll(ctx context.Context, m modes.Mode, c modes.OpenConfig, patience time.Duration) (*Active, error) {
	am, err := openSome(ctx, m, c, patience, func() {})
	if err != nil {
		return nil, err
	}
	am.giveUp()
	return am, am.works()
}

// openSome opens a mode for the families that this host has. Those that take longer than patience are still being
// opened when it returns; ended is called each time that a family is open, or cannot be opened.
func openSome(ctx context.Context, m modes.Mode, c modes.OpenConfig, patience time.Duration, ended func()) (*Active, error) {
	am := newActiveMode(m)
	am.begin(ctx, c, node.Families(c.Settings), ended)
	am.await(ctx, patience)
	am.collect()
	if len(am.opening) > 0 {
		return am, nil
	}
	return am, am.works()
}

// works returns why no family of a mode is open; nil: one is.
func (am *Active) works() error {
	if len(am.Backends) > 0 {
		return nil
	}
	return fmt.Errorf("%s mode: %s", am.Name, strings.Join(am.Missing(), "; "))
}

// proxies returns the backends as the Loop knows them: nil where one is being opened.
func (am *Active) proxies() map[policy.Family]proxier.Backend {
	out := make(map[policy.Family]proxier.Backend, len(am.Backends)+len(am.opening))
	for fam := range am.opening {
		out[fam] = nil
	}
	for fam, b := range am.Backends {
		out[fam] = b
	}
	return out
}

// stop ends what hears of changes by others.
func (am *Active) stop() {
	for fam := range am.watched {
		am.stopFamily(fam)
	}
}

func (am *Active) stopFamily(fam policy.Family) {
	if stop := am.watched[fam]; stop != nil {
		stop()
	}
	delete(am.watched, fam)
}

// Close gives up what is open. The kernel stays as it is.
func (am *Active) Close() error {
	am.stop()
	am.giveUp()
	var errs []error
	for _, b := range am.Backends {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

// leave removes what a mode made of a family from the kernel, now that next holds
// everything of it. It is called again until all is gone. Chains and sets are not removed where they are the next
// mode's by now; connections of a mode that drains may end first.
func (am *Active) leave(ctx context.Context, fam policy.Family, next *Active) (err error) {
	am.stopFamily(fam)
	b, done := am.Backends[fam], true
	shared := am.SharesRules(next.Mode) && next.Backends[fam] != nil
	r, drains := b.(proxier.Retirer)
	switch {
	case drains:
		done, err = r.Retire(ctx)
		if !shared && !am.rulesGone[fam] {
			rulesErr := r.RemoveRules(ctx)
			am.rulesGone[fam] = rulesErr == nil
			err = errors.Join(err, rulesErr)
		}
	case !shared:
		err = b.Cleanup(ctx)
	}
	if done && err == nil {
		am.gone[fam] = true
	}
	return err
}

// due returns the families that are being left and of which something is there.
func (am *Active) due() (list []policy.Family) {
	for _, fam := range slices.Sorted(maps.Keys(am.Backends)) {
		if am.leaving[fam] && !am.gone[fam] {
			list = append(list, fam)
		}
	}
	return list
}

// isGone reports whether nothing is left of any family.
func (am *Active) isGone() bool {
	return !slices.ContainsFunc(slices.Collect(maps.Keys(am.Backends)), func(fam policy.Family) bool { return !am.gone[fam] })
}

// leavingText says how far a former mode has been left.
func (am *Active) leavingText() string {
	var waits, leaves []string
	for _, fam := range slices.Sorted(maps.Keys(am.Backends)) {
		switch {
		case am.gone[fam]:
		case am.leaving[fam]:
			leaves = append(leaves, fam.String())
		default:
			waits = append(waits, fam.String())
		}
	}
	switch {
	case len(waits) == 0:
		return "; " + am.Name + " mode is leaving"
	case len(waits) == len(am.Backends):
		return ", taking over from " + am.Name + " mode"
	}
	text := ", taking over " + strings.Join(waits, " and ") + " from " + am.Name + " mode"
	if len(leaves) > 0 {
		text += ", which is leaving " + strings.Join(leaves, " and ")
	}
	return text
}

// modeWarnings says what of the settings a mode does not do, and what its backends warn of.
func modeWarnings(s configs.Settings, am *Active) []string {
	am.mu.Lock()
	defer am.mu.Unlock()
	var list []string
	for _, b := range am.Backends {
		if w, warns := b.(proxier.Warner); warns {
			list = append(list, w.Warnings()...)
		}
	}
	slices.Sort(list)
	return append(s.WarnOfMode(am.Mode.Mode), list...)
}

// begin opens the families that settings ask for and that are neither open nor being opened. ended is called
// when one is, or cannot be.
func (am *Active) begin(ctx context.Context, c modes.OpenConfig, families []policy.Family, ended func()) {
	am.mu.Lock()
	defer am.mu.Unlock()
	for _, fam := range families {
		if am.Backends[fam] == nil && am.opening[fam] == nil {
			am.opening[fam] = beginOpening(ctx, am.Mode, fam, c, ended)
		}
	}
}

// await waits until no family is being opened any more, but not for long: after the end of ctx for EndPatience.
func (am *Active) await(ctx context.Context, patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	defer context.AfterFunc(ctx, func() { timer.Reset(min(patience, EndPatience)) })()
	for _, o := range am.opening {
		select {
		case <-o.done:
		case <-timer.C:
			return
		}
	}
}

// collect takes over the families that were opened, which it returns, and why others cannot be.
func (am *Active) collect() (opened map[policy.Family]modes.Backend, failed bool) {
	am.mu.Lock()
	defer am.mu.Unlock()
	opened = make(map[policy.Family]modes.Backend)
	for fam, o := range am.opening {
		select {
		case <-o.done:
		default:
			continue
		}
		delete(am.opening, fam)
		delete(am.lacks, fam)
		if o.err != nil {
			am.lacks[fam], failed = o.err, true
			continue
		}
		opened[fam] = o.backend
	}
	maps.Copy(am.Backends, opened)
	return opened, failed
}

// giveUp gives up the families that are being opened, and waits for nothing.
func (am *Active) giveUp() {
	am.mu.Lock()
	defer am.mu.Unlock()
	for fam, o := range am.opening {
		am.lacks[fam] = o.stall()
		delete(am.opening, fam)
		o.cancel()
		go func() {
			if <-o.done; o.backend != nil {
				_ = o.backend.Close() // nobody has used it
			}
		}()
	}
}

// Missing returns which families are left out or not open yet, and why.
func (am *Active) Missing() (list []string) {
	am.mu.Lock()
	defer am.mu.Unlock()
	for _, fam := range slices.Sorted(maps.Keys(am.lacks)) {
		if !am.opensLong(fam) {
			list = append(list, fmt.Sprintf("%s is left out: %v", fam, am.lacks[fam]))
		}
	}
	for _, fam := range slices.Sorted(maps.Keys(am.opening)) {
		if am.opensLong(fam) {
			list = append(list, fmt.Sprintf("%s is not in use yet: %v", fam, am.opening[fam].stall()))
		}
	}
	return list
}

// Stalls returns what the families that are being opened wait for.
func (am *Active) Stalls() (list []report.Stall) {
	am.mu.Lock()
	defer am.mu.Unlock()
	for fam, o := range am.opening {
		if am.opensLong(fam) {
			list = append(list, o.stall())
		}
	}
	return list
}

// opensLong reports whether a family has been opening for so long that this is a problem.
func (am *Active) opensLong(fam policy.Family) bool {
	o := am.opening[fam]
	return o != nil && time.Since(o.began) >= openingTold
}

// opened returns the active mode of that name; nil: none is open.
func opened(open []*Active, mode string) *Active {
	if i := slices.IndexFunc(open, func(am *Active) bool { return am.Name == mode }); i >= 0 {
		return open[i]
	}
	return nil
}

// EndPatience is how long a program, or a disk, that does not answer can keep svcproxy from ending,
// half of what all of that may take.
const EndPatience = 500 * time.Millisecond

// OpenPatience is how long the start, and a change of mode, wait for families to open. Those that take longer
// join later: a program or the kernel may hang.
var OpenPatience = 700 * time.Millisecond

// DecidePatience is how long auto waits for a family before it tries the next mode. Loading modules and probing
// took 15 s on an emulated machine at its boot, and a late start is better than another mode than yesterday's.
var DecidePatience = time.Minute

// openingTold is how long a family may take to open before that is a problem.
const openingTold = 2 * time.Second

// An opening opens the backend of one family.
type opening struct {
	fam    policy.Family
	mode   string
	began  time.Time
	waits  *awaited.Record
	cancel func()

	done    chan struct{} // closed when what follows is set
	backend modes.Backend
	err     error
}

// beginOpening opens a family beside everything else, and calls ended.
func beginOpening(ctx context.Context, m modes.Mode, fam policy.Family, c modes.OpenConfig, ended func()) *opening {
	ctx, cancel := context.WithCancel(ctx)
	ctx, waits := awaited.Watch(ctx)
	o := &opening{fam: fam, mode: m.Name, began: time.Now(), waits: waits, cancel: cancel, done: make(chan struct{})}
	warn := time.AfterFunc(openingTold, func() {
		if s := o.stall(); c.Log != nil {
			c.Log.Warn("no progress; waiting", "family", s.Family, "work", s.Work, "for", s.For, "detail", s.Detail, "since", s.Since)
		}
	})
	go func() {
		if o.err = supported(fam); o.err == nil {
			o.backend, o.err = m.Open(ctx, fam, c)
		}
		warn.Stop()
		close(o.done)
		ended()
	}()
	return o
}

// stall returns what the opening waits for.
func (o *opening) stall() report.Stall {
	w := o.waits.Latest()
	return report.Stall{Family: o.fam, Work: "start of " + o.mode + " mode", For: cmp.Or(w.For, "the kernel"), Detail: w.Detail, Since: o.began}
}

// supported tries whether the kernel has a family: IPv6 may be left out of it, or be disabled at boot.
func supported(fam policy.Family) error {
	domain := unix.AF_INET
	if fam == policy.IPv6 {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("this kernel does not have it: %w", err)
	}
	return unix.Close(fd)
}
