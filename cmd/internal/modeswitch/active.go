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
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// An Active is a mode that is open: in use, or left for another one and not yet gone.
type Active struct {
	modes.Mode
	Backends map[policy.Family]modes.Backend // those in use are added to with Switch.mu held
	opening  map[policy.Family]*opening      // the same
	lacks    map[policy.Family]error         // why families could not be opened when last tried; the same
	Why      string                          // it was chosen

	watched map[policy.Family]func() // each ends what hears of changes by others

	leaving   map[policy.Family]bool   // of which another mode holds everything
	rulesGone map[policy.Family]bool   // of which what Retire leaves to RemoveRules is removed
	gone      map[policy.Family]bool   // of which nothing is left
	failed    map[policy.Family]string // why what it made could not be removed when last tried
}

// newActiveMode returns a mode of which nothing is open.
func newActiveMode(m modes.Mode) *Active {
	return &Active{
		Mode: m, watched: make(map[policy.Family]func()), Backends: make(map[policy.Family]modes.Backend),
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

func openFamily(ctx context.Context, m modes.Mode, fam policy.Family, c modes.OpenConfig) (modes.Backend, error) {
	if err := supported(fam); err != nil {
		return nil, err
	}
	return m.Open(ctx, fam, c)
}

// leave removes what a mode made of a family from the kernel, now that next holds
// everything of it. It is called again until all is gone.
func (am *Active) leave(ctx context.Context, fam policy.Family, next *Active) error {
	am.stopFamily(fam)
	b := am.Backends[fam]
	shared := am.SharesRules(next.Mode) && next.Backends[fam] != nil
	if r, drains := b.(proxier.Retirer); drains {
		return am.retire(ctx, fam, r, shared)
	}
	return am.cleanUp(ctx, fam, b, shared)
}

// cleanUp removes what a mode made of a family, unless it is the next mode's by now.
func (am *Active) cleanUp(ctx context.Context, fam policy.Family, b modes.Backend, shared bool) error {
	if !shared {
		if err := b.Cleanup(ctx); err != nil {
			return err
		}
	}
	am.gone[fam] = true
	return nil
}

// retire lets connections of a family end. Chains and sets go at once, unless they
// are the next mode's by now.
func (am *Active) retire(ctx context.Context, fam policy.Family, r proxier.Retirer, shared bool) error {
	done, err := r.Retire(ctx)
	if !shared && !am.rulesGone[fam] {
		rulesErr := r.RemoveRules(ctx)
		if rulesErr == nil {
			am.rulesGone[fam] = true
		}
		err = errors.Join(err, rulesErr)
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
	for fam := range am.Backends {
		if !am.gone[fam] {
			return false
		}
	}
	return true
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
	var list []string
	for _, b := range am.Backends {
		if w, warns := b.(proxier.Warner); warns {
			list = append(list, w.Warnings()...)
		}
	}
	slices.Sort(list)
	return append(s.WarnOfMode(am.Mode.Mode), list...)
}

// tellFlowtable has the log say that a mode has no flow table, where settings ask for one.
func (sw *Switch) tellFlowtable(am *Active) {
	if len(sw.Fixed.WarnOfMode(am.Mode.Mode)) > 0 {
		sw.Log.Warn("the settings ask for a flowtable, which this mode does not have", "mode", am.Name)
	}
}
