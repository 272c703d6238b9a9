package daemon

import (
	"context"
	"errors"

	"svcproxy/proxier"
	"svcproxy/proxier/ipvs"
)

func openIPVS(ctx context.Context, fam proxier.Family, at site) (backend, error) {
	s := at.IPVS
	return ipvs.New(ctx, fam, ipvs.Options{
		StateDir: at.stateDir, Scheduler: s.Scheduler, DrainTimeout: s.DrainTimeout,
		TCPTimeout: s.TCPTimeout, TCPFinTimeout: s.TCPFinTimeout, UDPTimeout: s.UDPTimeout,
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

// A retirer is a backend whose connections go on for a while after another mode
// holds everything.
type retirer interface {
	// Retire lets connections end, and tells whether nothing is left.
	Retire(ctx context.Context) (done bool, err error)

	// RemoveRules removes chains and sets at once.
	RemoveRules(ctx context.Context) error
}

// leave removes what a mode made from the kernel, in the families that are open,
// now that another holds everything. It is called again until it returns true.
func (in *instance) leave(ctx context.Context, next string) (done bool, err error) {
	done = true
	var errs []error
	for _, b := range in.backends {
		r, drains := b.(retirer)
		switch {
		case drains:
			gone, err := r.Retire(ctx)
			done = done && gone
			errs = append(errs, err)
			if !sharesRules(in.mode, next) && !in.rulesGone {
				errs = append(errs, r.RemoveRules(ctx))
			}
		case !sharesRules(in.mode, next):
			errs = append(errs, b.Cleanup(ctx))
		}
	}
	err = errors.Join(errs...)
	in.rulesGone = in.rulesGone || err == nil && !sharesRules(in.mode, next)
	return done && err == nil, err
}

// leftIPVS returns ipvs mode as it was left by an earlier run, in the families in
// use, so that its connections can end. Nil: it is in use, cannot be opened, or
// has nothing to wait for; then all of it can be removed.
func leftIPVS(ctx context.Context, mode string, at site) *instance {
	m, err := modeNamed("ipvs")
	if err != nil || mode == m.name {
		return nil
	}
	in, err := m.openAll(ctx, at)
	if err != nil {
		return nil
	}
	in.leaving = true
	if done, err := in.leave(ctx, mode); done || err != nil {
		_ = in.close() // Cleanup comes next
		return nil
	}
	return in
}
