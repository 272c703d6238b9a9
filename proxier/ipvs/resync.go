package ipvs

import (
	"context"
	"maps"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// resync compares everything and repairs every difference.
func (b *Backend) resync(ctx context.Context, st *policy.State) error {
	if err := b.unsupported.Reprobe(ctx); err != nil {
		return err
	}
	st = b.unsupported.State(st)
	p, err := b.takeSnapshot(ctx, st, b.opts, b.servers)
	if err != nil {
		return err
	}
	if p.rules, err = b.kernel.Read(ctx, b.rules); err != nil {
		return err
	}
	if !p.device {
		if err := b.device.Make(); err != nil {
			return err
		}
	}
	rulesState := withBound(st, p.addrs)
	b.rules.Observe(p.rules)
	if err := b.rules.Reset(rulesState); err != nil {
		return err
	}
	p.unguarded = p.withoutGuards(b.rules)
	p.guards = b.rules.Guards(p.rules, entriesOf(p.diff.last))
	var errs proxier.Failures
	errs.Add(b.timeouts.set(ctx, b.conn))
	b.refused = refused{}
	for key := range p.foreign {
		b.refused[key] = foreignServer(p.claims.by[key].frontend().ServicePort, key)
	}
	b.apply(ctx, p, func() error {
		b.rules.Withhold(p.unserved(b.refused), nil)
		return b.kernel.Resync(ctx, p.rules, b.rules, rulesState)
	}, &errs)
	return errs.Join()
}

// apply writes the difference of a snapshot. New connections find everything ready:
// it adds servers first, then chains and sets, then addresses; and removes in reverse.
// What rules are yet to restrict or masquerade is balanced after them: an address of this host gets packets before.
// For the same reason what they no longer restrict or masquerade is first no longer balanced.
func (b *Backend) apply(ctx context.Context, p *snapshot, rules func() error, errs *proxier.Failures) {
	for _, key := range p.lost {
		b.record.disown(key)
	}
	b.recordPlanned(p.claimed, &p.diff, p.after, errs)
	early, late := p.sort(p.diff.first)
	b.runSteps(ctx, early, p.after, errs)
	missing, extra := addrDifference(p.bound, p.addrs)
	b.bound = maps.Clone(p.bound)
	b.unbind(ctx, extra, errs)
	if p.rules != nil && p.rules.Balances() { // and refuse: until they are removed, rules of iptables mode come before IPVS
		b.bind(ctx, missing, errs)
		missing = nil
	}
	if rules != nil {
		if err := rules(); err != nil {
			errs.Add(err)
			return
		}
	}
	if err := b.serve(ctx, p, late, errs); err != nil {
		errs.Add(err)
		return
	}
	b.bind(ctx, missing, errs)
	b.runLast(ctx, p.diff.last, p.after, p.guards, errs)
	b.servers, b.claims, b.orphans, b.members = p.after, p.claims, p.orphans, p.addrs
	b.queueDrains(&p.diff)
}
