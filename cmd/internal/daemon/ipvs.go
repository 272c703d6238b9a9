package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"

	"svcproxy/cmd/internal/modes"
	"svcproxy/cmd/internal/node"
	"svcproxy/proxier"
)

// leave removes what a mode made of a family from the kernel, now that next holds
// everything of it. It is called again until all is gone.
func (in *activeMode) leave(ctx context.Context, fam proxier.Family, next *activeMode) error {
	in.stopFamily(fam)
	b := in.backends[fam]
	shared := in.SharesRules(next.Mode) && next.backends[fam] != nil
	if r, drains := b.(proxier.Retirer); drains {
		return in.retire(ctx, fam, r, shared)
	}
	return in.cleanUp(ctx, fam, b, shared)
}

// cleanUp removes what a mode made of a family, unless it is the next mode's by now.
func (in *activeMode) cleanUp(ctx context.Context, fam proxier.Family, b modes.Backend, shared bool) error {
	if !shared {
		if err := b.Cleanup(ctx); err != nil {
			return err
		}
	}
	in.gone.add(fam)
	return nil
}

// retire lets connections of a family end. Chains and sets go at once, unless they
// are the next mode's by now.
func (in *activeMode) retire(ctx context.Context, fam proxier.Family, r proxier.Retirer, shared bool) error {
	done, err := r.Retire(ctx)
	if !shared && !in.rulesGone[fam] {
		rulesErr := r.RemoveRules(ctx)
		if rulesErr == nil {
			in.rulesGone.add(fam)
		}
		err = errors.Join(err, rulesErr)
	}
	if done && err == nil {
		in.gone.add(fam)
	}
	return err
}

// due returns the families that are being left and of which something is there.
func (in *activeMode) due() (list []proxier.Family) {
	for _, fam := range slices.Sorted(maps.Keys(in.backends)) {
		if in.leaving[fam] && !in.gone[fam] {
			list = append(list, fam)
		}
	}
	return list
}

// isGone reports whether nothing is left of any family.
func (in *activeMode) isGone() bool {
	for fam := range in.backends {
		if !in.gone[fam] {
			return false
		}
	}
	return true
}

// leftDraining returns a mode as it was left by an earlier run, so that its connections
// can end, and lets go of the families that the mode in use holds. Nil: it is open,
// cannot be opened, or has nothing to wait for; then all of it can be removed.
func (d *daemon) leftDraining(ctx context.Context, m modes.Mode, open []*activeMode) *activeMode {
	if !m.Drains || m.Open == nil || opened(open, m.Name) != nil {
		return nil
	}
	c := d.openConfig(d.fixed)
	c.Leaving = true
	in, err := openAll(ctx, m, c)
	if err != nil {
		return nil
	}
	for _, fam := range node.Families(d.fixed) {
		if d.holds(d.kernel, fam) {
			in.leaving.add(fam)
		}
	}
	for _, fam := range in.due() {
		err = errors.Join(err, in.leave(ctx, fam, d.kernel))
	}
	if in.isGone() || err != nil {
		_ = in.close() // Cleanup comes next
		return nil
	}
	return in
}
