package layout

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Unsupported are the services whose rules need a match that this host lacks. They still
// refuse what they refuse, and also refuse what rules would balance.
type Unsupported struct {
	probe   func(context.Context, *Rules) (xtables.Missing, error)
	rules   *Rules
	missing xtables.Missing // optional features that this host lacks
	failed  bool            // the last sync failed, maybe because another feature is missing now

	refusing map[source.Key]*policy.Resolved // instead of what they were resolved to
	why      map[source.Key]string
}

// NewUnsupported returns an Unsupported without services, for a host that lacks nothing so far. What it lacks,
// probe finds out.
func NewUnsupported(probe func(context.Context, *Rules) (xtables.Missing, error), r *Rules) *Unsupported {
	return &Unsupported{probe: probe, rules: r}
}

// Probe finds out what this host lacks, by adding rules to chains of their own. It fails
// if that is something that all services need.
func (a *Unsupported) Probe(ctx context.Context) error {
	missing, err := a.probe(ctx, a.rules)
	if err != nil { // keep what was missing: it may still be
		return err
	}
	a.missing = missing
	return nil
}

// Reprobe probes again if something was missing, which a module may have brought since,
// or if the last sync failed, as something may be missing now.
func (a *Unsupported) Reprobe(ctx context.Context) error {
	if len(a.missing) == 0 && !a.failed {
		return nil
	}
	return a.Probe(ctx)
}

// SyncEnded takes the result of a sync: after an error the next Reprobe probes.
func (a *Unsupported) SyncEnded(err error) { a.failed = err != nil }

// State returns st with unsupported services refusing, and records them.
func (a *Unsupported) State(st *policy.State) *policy.State {
	a.refusing, a.why = map[source.Key]*policy.Resolved{}, map[source.Key]string{}
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

// Preview returns what State would, and records nothing.
func (a *Unsupported) Preview(st *policy.State) *policy.State {
	other := *a
	return other.State(st)
}

// CanFollow reports whether Delta can be called. Of a part of a service it is not known whether this host
// supports the service.
func (a *Unsupported) CanFollow(d *policy.Delta) bool {
	return len(a.missing) == 0 || !slices.ContainsFunc(d.Services, func(ch policy.ServiceChange) bool { return ch.Part })
}

// Delta does the same as State for a change of it.
func (a *Unsupported) Delta(d *policy.Delta) *policy.Delta {
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

// resolved returns a service as this host supports it, and records it if it is unsupported.
func (a *Unsupported) resolved(res *policy.Resolved) *policy.Resolved {
	lacks := missingMatch(a.rules.frame, res, a.missing)
	if lacks == "" {
		return res
	}
	a.why[res.Key] = lacks
	a.refusing[res.Key] = refusing(a.rules.frame, res)
	return a.refusing[res.Key]
}

// Unserved returns the PartialError of unsupported services; nil if there are none.
func (a *Unsupported) Unserved() *proxier.PartialError {
	if len(a.why) == 0 {
		return nil
	}
	var errs proxier.Failures
	for _, key := range slices.SortedFunc(maps.Keys(a.why), source.Key.Compare) {
		lacks := a.why[key]
		errs.Add(fmt.Errorf("service %s needs the match %s, which this host lacks: %s", key, lacks, a.missing[lacks]))
	}
	return &proxier.PartialError{N: len(a.why), Err: errs.Join(), Frontends: a.frontends()}
}

// frontends returns the frontends of unsupported services that refuse now.
func (a *Unsupported) frontends() map[policy.FrontendKey]bool {
	all := make(map[policy.FrontendKey]bool)
	for _, res := range a.refusing {
		for _, f := range res.Frontends {
			if !f.Balances() {
				all[f.Key] = true
			}
		}
	}
	return all
}
