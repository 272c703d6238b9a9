package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"

	"svcproxy/cmd/internal/node"
	"svcproxy/proxier"
	"svcproxy/proxier/ipvs"
)

func openIPVS(ctx context.Context, fam proxier.Family, at site) (backend, error) {
	s := at.IPVS
	return ipvs.New(ctx, fam, ipvs.Options{
		StateDir: at.stateDir, Scheduler: s.Scheduler, DrainTimeout: s.DrainTimeout,
		Leaving: at.leaving, TCPTimeout: s.TCPTimeout, TCPFinTimeout: s.TCPFinTimeout, UDPTimeout: s.UDPTimeout,
		Log: at.log,
	})
}

// removeIPVS removes what is in IPVS and on our device. Chains and sets have the
// names of those of iptables mode, whose turn comes too.
func removeIPVS(ctx context.Context, fam proxier.Family, at site) error {
	return ipvs.Cleanup(ctx, fam, at.stateDir, at.log)
}

// sharesRules tells whether two modes have chains and sets of the same names, so
// that one takes over those of the other.
func sharesRules(a, b string) bool {
	shared := func(mode string) bool { return mode == "iptables" || mode == "ipvs" }
	return shared(a) && shared(b)
}

// leave removes what a mode made of a family from the kernel, now that next holds
// everything of it. It is called again until all is gone.
func (in *instance) leave(ctx context.Context, fam proxier.Family, next *instance) error {
	in.stopFamily(fam)
	b := in.backends[fam]
	shared := sharesRules(in.mode, next.mode) && next.backends[fam] != nil
	if r, drains := b.(proxier.Retirer); drains {
		return in.retire(ctx, fam, r, shared)
	}
	return in.cleanUp(ctx, fam, b, shared)
}

// cleanUp removes what a mode made of a family, unless it is the next mode's by now.
func (in *instance) cleanUp(ctx context.Context, fam proxier.Family, b backend, shared bool) error {
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
func (in *instance) retire(ctx context.Context, fam proxier.Family, r proxier.Retirer, shared bool) error {
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
func (in *instance) due() (list []proxier.Family) {
	for _, fam := range slices.Sorted(maps.Keys(in.backends)) {
		if in.leaving[fam] && !in.gone[fam] {
			list = append(list, fam)
		}
	}
	return list
}

// isGone reports whether nothing is left of any family.
func (in *instance) isGone() bool {
	for fam := range in.backends {
		if !in.gone[fam] {
			return false
		}
	}
	return true
}

// leftIPVS returns ipvs mode as it was left by an earlier run, so that its connections
// can end, and lets go of the families that the mode in use holds. Nil: ipvs mode is
// open, cannot be opened, or has nothing to wait for; then all of it can be removed.
func (d *daemon) leftIPVS(ctx context.Context, open []*instance) *instance {
	m, err := modeNamed("ipvs")
	if err != nil || opened(open, m.name) != nil {
		return nil
	}
	at := d.site(d.fixed)
	at.leaving = true
	in, err := m.openAll(ctx, at)
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
