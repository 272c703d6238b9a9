package ipvs

import (
	"context"
	"maps"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// applyDelta writes a delta, drains that are due, and repairs of what looks have found.
// It reads only these from the kernel. Its cost does not depend on the number of other
// services.
func (b *Backend) applyDelta(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	var errs proxier.Failures
	d := &difference{now: time.Now(), timeout: b.opts.DrainTimeout, drains: b.record.drains}
	touched := b.claims.update(delta)
	b.readDue(ctx, b.conn, d.now, touched, &errs)
	b.retries.retry(b.refused, d.now, touched)
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
