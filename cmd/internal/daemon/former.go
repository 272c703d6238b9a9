package daemon

import (
	"context"
	"slices"
	"time"

	"svcproxy/cmd/internal/node"
	"svcproxy/proxier"
)

// retireInterval is how often a mode that is leaving is asked whether its
// connections have ended.
var retireInterval = 5 * time.Second

// noteHeld notes of which families in, which is in use, has held everything.
func (sw *modeSwitch) noteHeld(in *activeMode) {
	for fam, b := range in.backends {
		if sw.loop.Holds(fam, b) {
			in.held.add(fam)
		}
	}
}

// leaveFormer retires the modes before the last of open in the families of which
// that holds everything now. Clients come from the last mode that held these too.
func (sw *modeSwitch) leaveFormer(ctx context.Context, open []*activeMode) []*activeMode {
	last := open[len(open)-1]
	sw.noteHeld(last)
	for _, fam := range node.Families(sw.fixed) {
		if !sw.holdsAll(last, fam) {
			continue
		}
		if former := served(open[:len(open)-1], fam); former != nil {
			sw.handOver(ctx, fam, former.Mode, last.Mode)
		}
		for _, former := range open[:len(open)-1] {
			former.leaving.add(fam)
		}
	}
	return sw.retire(ctx, open)
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

// retire removes what former modes made, but for the last of open, of the families
// that the last holds everything of. It returns open without those that are gone.
func (sw *modeSwitch) retire(ctx context.Context, open []*activeMode) []*activeMode {
	last := open[len(open)-1]
	return slices.DeleteFunc(open, func(in *activeMode) bool {
		if in == last {
			return false
		}
		for _, fam := range in.due() {
			sw.noteLeaving(ctx, in, fam, in.leave(ctx, fam, last))
		}
		if !in.isGone() {
			return false
		}
		sw.closeMode(in)
		sw.log.Info("removed what the former mode made", "mode", in.Name)
		return true
	})
}

// noteLeaving keeps why a mode cannot be removed yet, and logs it when that is new.
func (sw *modeSwitch) noteLeaving(ctx context.Context, in *activeMode, fam proxier.Family, err error) {
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
		sw.log.Warn("objects of the former mode may be left in the kernel: removing them is tried again and again", "mode", in.Name, "family", fam, "err", err)
	}
}
