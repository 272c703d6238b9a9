package ipvs

import (
	"context"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

// withoutGuards returns the servers of frontends that the rules in the kernel do not restrict or masquerade as the
// state asks. What chains of split frontends do is not compared: these count as unguarded, unless rules of iptables mode
// balance.
func (p *snapshot) withoutGuards(rules *layout.Rules) map[lvs.Key]bool {
	keys := map[lvs.Key]bool{}
	for e := range rules.Unguarded(p.rules) {
		keys[lvs.Key{Addr: e.Addr, Protocol: e.Protocol, Port: e.Port}] = true
	}
	if p.rules.Balances() {
		return keys
	}
	for key, c := range p.claims.by {
		if c.frontend().Split() {
			keys[key] = true
		}
	}
	return keys
}

// entriesOf returns the frontends of steps.
func entriesOf(steps []step) map[ipset.Entry]bool {
	entries := make(map[ipset.Entry]bool, len(steps))
	for _, s := range steps {
		entries[entryOf(s.key)] = true
	}
	return entries
}

// unserved returns the frontends without a server while the rules are written: those of refused ones,
// and those that wait for them.
func (p *snapshot) unserved(r refused) map[ipset.Entry]bool {
	out := r.missingEntries(p.after)
	for key := range p.unguarded {
		if p.after[key] != nil && !p.servers[key].takes() {
			out[entryOf(key)] = true
		}
	}
	return out
}

// sort separates the steps that need not wait for the rules from those that do.
func (p *snapshot) sort(steps []step) (early, late []step) {
	for _, s := range steps {
		if p.unguarded[s.key] {
			late = append(late, s)
		} else {
			early = append(early, s)
		}
	}
	return early, late
}

// runLast runs the steps that end connections, and then removes what guarded their frontends until now.
// After an error that stays: some may still be balanced, and everything is compared next.
func (b *Backend) runLast(ctx context.Context, steps []step, servers map[lvs.Key]*server, guards *layout.Changes, errs *proxier.Failures) {
	b.runSteps(ctx, steps, servers, errs)
	if errs.N == 0 && guards != nil && len(guards.Lost) > 0 {
		errs.Add(b.kernel.Apply(ctx, guards, b.rules))
	}
}

// serve runs the steps that waited for the rules, and has sets say that their frontends are served.
func (b *Backend) serve(ctx context.Context, p *snapshot, late []step, errs *proxier.Failures) error {
	if len(p.unguarded) == 0 {
		return nil
	}
	b.runSteps(ctx, late, p.after, errs)
	served := &layout.Changes{Gained: map[string][]ipset.Entry{}, Lost: map[string][]ipset.Entry{}}
	b.rules.Withhold(b.refused.missingEntries(p.after), served)
	return b.kernel.Apply(ctx, served, b.rules)
}
