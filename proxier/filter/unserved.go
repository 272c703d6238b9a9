package filter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"svcproxy/netutil/xtables"
	"svcproxy/proxier"
	"svcproxy/source"
)

// maxErrors is how many services that cannot be served are told of one by one.
const maxErrors = 8

// A SetAside is the services whose rules this host cannot have: it lacks a match.
// What they refuse they still refuse, but nothing of them that rules would balance is balanced.
type Unsupported struct {
	kernel  *Kernel
	rules   *Rules
	missing xtables.Missing // what this host lacks of what services may need
	failed  bool            // a sync has failed, maybe by what has come to be lacking

	refusing map[source.Key]*proxier.Resolved // in place of what they were resolved to
	why      map[source.Key]string
}

// NewSetAside returns one of no services, for a host that lacks nothing as far as is known.
func NewUnsupported(k *Kernel, r *Rules) *Unsupported { return &Unsupported{kernel: k, rules: r} }

// Probe finds out what this host lacks, by rules in chains of their own. It fails where
// that is something all of the rules need.
func (a *Unsupported) Probe(ctx context.Context) error {
	missing, err := a.kernel.Probe(ctx, a.rules)
	if err != nil { // what was lacking may still be
		return err
	}
	a.missing = missing
	return nil
}

// ProbeAgain finds out whether what this host lacked has come, a module that was
// loaded, and after a failure whether something has gone.
func (a *Unsupported) Reprobe(ctx context.Context) error {
	if len(a.missing) == 0 && !a.failed {
		return nil
	}
	return a.Probe(ctx)
}

// Doubt follows the end of a sync: one that has failed makes the next ProbeAgain try.
func (a *Unsupported) SyncEnded(err error) { a.failed = err != nil }

// State returns st with services that cannot be had set aside, and notes them.
func (a *Unsupported) State(st *proxier.State) *proxier.State {
	a.refusing, a.why = map[source.Key]*proxier.Resolved{}, map[source.Key]string{}
	if len(a.missing) == 0 {
		return st
	}
	shown := *st
	shown.Services = maps.Clone(st.Services)
	for key, res := range st.Services {
		shown.Services[key] = a.resolved(res)
	}
	return &shown
}

// Preview returns what State would, and notes nothing.
func (a *Unsupported) Preview(st *proxier.State) *proxier.State {
	other := *a
	return other.State(st)
}

// Delta does the same as State for a change of that.
func (a *Unsupported) Delta(d *proxier.Delta) *proxier.Delta {
	if len(a.missing) == 0 {
		return d
	}
	shown := *d
	shown.Services = slices.Clone(d.Services)
	for i, ch := range d.Services {
		if ch.Old == nil {
			continue
		}
		if was := a.refusing[ch.Old.Key]; was != nil {
			shown.Services[i].Old = was
			delete(a.refusing, ch.Old.Key)
			delete(a.why, ch.Old.Key)
		}
	}
	for i, ch := range d.Services {
		if ch.New != nil {
			shown.Services[i].New = a.resolved(ch.New)
		}
	}
	return &shown
}

// shown returns a service as it can be had, and notes where that is not what it asks for.
func (a *Unsupported) resolved(res *proxier.Resolved) *proxier.Resolved {
	lacks := a.rules.missingMatch(res, a.missing)
	if lacks == "" {
		return res
	}
	a.why[res.Key] = lacks
	a.refusing[res.Key] = a.rules.refusing(res)
	return a.refusing[res.Key]
}

// refusing returns a service that refuses where rules would balance res.
func (r *Rules) refusing(res *proxier.Resolved) *proxier.Resolved {
	out := *res
	out.Frontends = slices.Clone(res.Frontends)
	for i, f := range res.Frontends {
		if !r.hasRules(f) {
			continue
		}
		g := *f
		for _, l := range []*proxier.Leg{&g.Outside, &g.Local} {
			if l.Action == proxier.Balance {
				*l = proxier.Leg{Action: proxier.Reject, Pool: withoutTargets(l.Pool)}
			}
		}
		out.Frontends[i] = &g
	}
	if !slices.ContainsFunc(out.Frontends, balances) {
		out.Pools, out.Hairpins = nil, nil
	}
	return &out
}

func withoutTargets(p *proxier.Pool) *proxier.Pool {
	out := *p
	out.Targets = nil
	return &out
}

func balances(f *proxier.Frontend) bool {
	return f.Outside.Action == proxier.Balance || f.Local.Action == proxier.Balance
}

// Unserved returns what there is to tell of services that are set aside; nil: nothing.
func (a *Unsupported) Unserved() *proxier.Unserved {
	if len(a.why) == 0 {
		return nil
	}
	var errs []error
	for _, key := range slices.SortedFunc(maps.Keys(a.why), source.Key.Compare) {
		if len(errs) == maxErrors {
			errs = append(errs, fmt.Errorf("and %d more", len(a.why)-maxErrors))
			break
		}
		lacks := a.why[key]
		errs = append(errs, fmt.Errorf("service %s needs the match %s, which this host lacks: %s", key, lacks, a.missing[lacks]))
	}
	return &proxier.Unserved{N: len(a.why), Err: errors.Join(errs...), Frontends: a.frontends()}
}

// frontends returns those of services that are set aside that refuse now.
func (a *Unsupported) frontends() map[proxier.FrontendKey]bool {
	all := make(map[proxier.FrontendKey]bool)
	for _, res := range a.refusing {
		for _, f := range res.Frontends {
			if !balances(f) {
				all[f.Key] = true
			}
		}
	}
	return all
}
