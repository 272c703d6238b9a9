package ipvs

import (
	"context"
	"maps"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
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
	rulesState := withBound(st, p.members)
	b.rules.Observe(p.rules)
	if err := b.rules.Reset(rulesState); err != nil {
		return err
	}
	p.unguarded = p.withoutGuards(b.rules)
	p.guards = b.rules.Guards(p.rules, entriesOf(p.diff.last))
	var errs proxier.Failures
	errs.Add(b.setTimeouts(ctx, b.conn))
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
	b.recordPlanned(p.claimed, &p.diff, p.servers, errs)
	var early, late []step // which need not wait for the rules, and which do
	for _, s := range p.diff.first {
		if p.unguarded[s.key] {
			late = append(late, s)
		} else {
			early = append(early, s)
		}
	}
	b.runSteps(ctx, early, p.servers, errs)
	missing, extra := addrDifference(p.bound, p.members)
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
	if len(p.unguarded) > 0 { // sets say then that their frontends are served
		b.runSteps(ctx, late, p.servers, errs)
		served := &layout.Changes{Gained: map[string][]ipset.Entry{}, Lost: map[string][]ipset.Entry{}}
		b.rules.Withhold(b.refused.missingEntries(p.servers), served)
		if err := b.kernel.Apply(ctx, served, b.rules); err != nil {
			errs.Add(err)
			return
		}
	}
	b.bind(ctx, missing, errs)
	b.runLast(ctx, p.diff.last, p.servers, p.guards, errs)
	b.holdings = p.holdings
	for key := range p.diff.drains {
		b.queueDrain(key, &p.diff)
	}
}

// applyDelta writes a delta, drains that are due, and repairs of what looks have found.
// It reads only these from the kernel. Its cost does not depend on the number of other
// services.
func (b *Backend) applyDelta(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	var errs proxier.Failures
	d := &difference{now: time.Now(), timeout: b.opts.DrainTimeout, drains: b.record.drains}
	touched := b.claims.update(delta)
	b.readDue(ctx, b.conn, d.now, touched, &errs)
	b.addRetries(d.now, touched)
	found := b.beginDelta(ctx, touched, delta, &errs)
	keys, claimed := b.claimKeys(ctx, touched, &errs)
	freed := b.compare(d, keys, b.opts.Scheduler, st)
	b.recordPlanned(claimed, d, b.servers, &errs)
	bind, shown := b.addrChanges(st, delta, b.bound, freed)
	rules := b.rules.Update(st, shown)
	served := b.rules.TakeServed(rules)
	guards := b.rules.TakeGuards(rules, entriesOf(d.last))
	b.unbind(ctx, shown.BoundAddrs.Lost, &errs)
	if err := b.kernel.Apply(ctx, rules, b.rules); err != nil {
		errs.Add(err)
		return errs.Join()
	}
	b.runSteps(ctx, d.first, b.servers, &errs) // from here on host processes are balanced
	b.rules.Withhold(b.refused.missingEntries(b.servers), served)
	if err := b.kernel.Apply(ctx, served, b.rules); err != nil {
		errs.Add(err)
		return errs.Join()
	}
	b.bind(ctx, bind, &errs) // and everyone
	b.runLast(ctx, d.last, b.servers, guards, &errs)
	b.repair(ctx, st, found, &errs)
	for _, key := range keys {
		b.queueDrain(key, d)
	}
	return errs.Join()
}

// claimKeys returns the keys to compare, sorted, and those of them where a server will be
// added. It leaves out foreign servers.
func (b *Backend) claimKeys(ctx context.Context, touched map[lvs.Key]struct{}, errs *proxier.Failures) (keys, claimed []lvs.Key) {
	for _, key := range slices.SortedFunc(maps.Keys(touched), compareKeys) {
		delete(b.refused, key)
		if f := b.claims.by[key].frontend(); f != nil && b.servers[key] == nil {
			taken, err := b.conn.Has(ctx, key)
			if errs.Add(err); err != nil {
				continue
			}
			if taken {
				b.record.disown(key)
				b.refused[key] = foreignServer(f.ServicePort, key)
				continue
			}
			claimed = append(claimed, key)
		}
		keys = append(keys, key)
	}
	return keys, claimed
}

// runLast runs the steps that end connections, and then removes what guarded their frontends until now.
// After an error that stays: some may still be balanced, and everything is compared next.
func (b *Backend) runLast(ctx context.Context, steps []step, servers map[lvs.Key]*server, guards *layout.Changes, errs *proxier.Failures) {
	b.runSteps(ctx, steps, servers, errs)
	if errs.N == 0 && guards != nil && len(guards.Lost) > 0 {
		errs.Add(b.kernel.Apply(ctx, guards, b.rules))
	}
}

// beginDelta notes which servers a Sync is going to change. It adds to them those that
// looks have found to differ, reads these again, and returns what looks have found. One
// that was missing is no longer ours, nor is one that another program may have added
// there since.
func (b *Backend) beginDelta(ctx context.Context, keys map[lvs.Key]struct{}, delta *policy.Delta, errs *proxier.Failures) found {
	f := b.mirror.begin(keys, delta)
	if len(f.servers) == 0 {
		return f
	}
	for _, key := range f.missing() {
		b.drop(key)
		b.record.disown(key)
	}
	if err := b.conn.Probe(ctx); err != nil { // the module may have been loaded again
		errs.Add(err)
		return f
	}
	for key := range f.servers {
		if had := b.servers[key]; had != nil {
			errs.Add(b.reread(ctx, key, had))
			proxier.Progressed(ctx)
		}
	}
	return f
}

// repair repairs what looks have found, except for servers. After an error it leaves sets alone: they may
// guard what is still balanced, and everything is compared next.
func (b *Backend) repair(ctx context.Context, st *policy.State, f found, errs *proxier.Failures) {
	if f.timeouts {
		errs.Add(b.setTimeouts(ctx, b.conn))
	}
	if f.addrs {
		b.repairAddrs(ctx, b.members, errs)
	}
	if errs.N == 0 && b.kernel.Damaged() {
		errs.Add(b.kernel.Repair(ctx, b.rules, withBound(st, b.members)))
	}
}

// reread updates one of our servers with what the kernel holds.
func (b *Backend) reread(ctx context.Context, key lvs.Key, had *server) error {
	now, err := readServer(ctx, b.conn, key)
	switch {
	case err != nil:
		return err
	case now == nil: // the next one that another program adds there is not ours
		b.drop(key)
		b.record.disown(key)
	default:
		now.name, now.orphan = had.name, had.orphan
		now.closed, now.closeRemoved = had.closed, had.closeRemoved
		b.servers[key] = now
		b.record.forgetDrains(key, now)
	}
	return nil
}
