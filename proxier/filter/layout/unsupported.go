package layout

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// ProbePrefix begins the names of chains that exist for a moment to probe features.
const ProbePrefix = Prefix + "PROBE"

// Optional are the matches that only some services need: those with several
// endpoints, session affinity, or SCTP. Every service needs all other features.
var Optional = []string{"statistic", "recent", "sctp"}

// Features returns a rule for each feature that rules need: in the table nat, which holds all services, what only it can
// have, as each program that writes to a table works through all of it.
func (r *Rules) Features(set string) []xtables.Feature {
	target := "192.0.2.1:1"
	if r.words.fam == policy.IPv6 {
		target = "[2001:db8::1]:1"
	}
	rule := feature
	features := []xtables.Feature{
		rule("filter", "tcp", "-p tcp -m tcp --dport 1"),
		rule("filter", "comment", "-m comment --comment probe"),
		rule("filter", "conntrack", "-m conntrack --ctstate DNAT"),
		rule("filter", "addrtype", "-m addrtype --src-type LOCAL"),
		rule("filter", "mark", "-m mark --mark 0x1/0x1"),
		rule("filter", "connmark", "-m connmark --mark 0x1/0x1"),
		rule("filter", "set", "-m set --match-set "+set+" dst"),
		rule("filter", "statistic", "-m statistic --mode random --probability 0.5"),
		rule("filter", "recent", "-m recent --set --name "+ProbePrefix+" --mask "+r.words.mask+" --rsource"),
		rule("nat", "DNAT", "-p tcp -j DNAT --to-destination "+target),
		rule("filter", "MARK", "-j MARK --set-xmark 0x1/0x1"),
		rule("nat", "MASQUERADE", masquerade),
		rule("filter", "sctp", "-p sctp -m sctp --dport 1"),
		rule("filter", "udp", "-p udp -m udp --dport 1"),
		rule("filter", "REJECT", "-p tcp -j REJECT --reject-with tcp-reset"),
		rule("filter", "CONNMARK", "-j CONNMARK --set-xmark 0x1/0x1"),
	}
	if r.byIPVS {
		features = append(features, ipvsFeatures...)
	}
	return features
}

// missingMatch returns the first missing match that the rules of a service need;
// empty if they need none.
func missingMatch(fr *frame, res *policy.Resolved, missing xtables.Missing) string {
	if len(missing) == 0 {
		return ""
	}
	text := ""
	fr.serviceChains(res, func(_, _ string, rules []byte) { text += string(rules) })
	c := &chain{}
	for _, f := range res.Frontends {
		if fr.hasRules(f) {
			fr.frontendRules(c, f)
		}
	}
	text += string(c.rules)
	for _, name := range Optional {
		if _, lacks := missing[name]; lacks && strings.Contains(text, "-m "+name+" ") {
			return name
		}
	}
	return ""
}

// serviceChain matches the name of a chain that belongs to one service.
var serviceChain = regexp.MustCompile(Prefix + `(SVC|SVL|PART|EXT)-[A-Z2-7]{16}`)

// Blame adds the service to an error that names one of its chains.
func (r *Rules) Blame(err error) error {
	name := serviceChain.FindString(err.Error())
	if name == "" {
		return err
	}
	var owner *source.Key
	for key, res := range r.resolved {
		r.serviceChains(res, func(_, chain string, _ []byte) {
			if chain == name {
				owner = &key
			}
		})
	}
	if owner == nil {
		return err
	}
	return fmt.Errorf("service %s: %w", owner, err)
}

// refusing returns res with what rules would balance refused.
func refusing(fr *frame, res *policy.Resolved) *policy.Resolved {
	out := *res
	out.Frontends = slices.Clone(res.Frontends)
	for i, f := range res.Frontends {
		if !fr.hasRules(f) {
			continue
		}
		g := *f
		for _, l := range []*policy.Route{&g.Outside, &g.FromLocal} {
			if l.Action == policy.Balance {
				empty := *l.Pool
				empty.Targets = nil
				*l = policy.Route{Action: policy.Reject, Pool: &empty}
			}
		}
		out.Frontends[i] = &g
	}
	if !slices.ContainsFunc(out.Frontends, (*policy.Frontend).Balances) {
		out.Pools, out.HairpinPools = nil, nil
	}
	return &out
}

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
	refuse := make(map[policy.FrontendKey]bool)
	for _, res := range a.refusing {
		for _, f := range res.Frontends {
			if !f.Balances() {
				refuse[f.Key] = true
			}
		}
	}
	return &proxier.PartialError{N: len(a.why), Err: errs.Join(), Frontends: refuse}
}
