package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// applyDelta writes a delta, drains that are due, and repairs of what looks have found.
// It reads only these from the kernel. Its cost does not depend on the number of other
// services.
func (b *Backend) applyDelta(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	var errs failures
	d := &difference{now: time.Now(), timeout: b.opts.DrainTimeout, drains: b.record.drains}
	touched := b.claims.update(delta)
	b.lookAtDue(ctx, d.now, touched, &errs)
	b.retry(d.now, touched)
	found := b.beginDelta(ctx, touched, delta, &errs)
	keys, claimed := b.claimKeys(ctx, touched, &errs)
	freed := b.compare(d, keys, st)
	b.recordPlanned(claimed, d, b.servers, &errs)
	bind, shown := b.addrChanges(st, delta, freed)
	rules := b.rules.Update(st, shown)
	served := b.rules.TakeServed(rules)
	guards := b.rules.TakeGuards(rules, entriesOf(d.last))
	b.unbind(ctx, shown.BoundAddrs.Lost, &errs)
	if err := b.kernel.Apply(ctx, rules, b.rules); err != nil {
		errs.add(err)
		return errs.join()
	}
	b.runSteps(ctx, d.first, b.servers, &errs) // from here on host processes are balanced
	b.rules.Withhold(b.refused.missingEntries(b.servers), served)
	if err := b.kernel.Apply(ctx, served, b.rules); err != nil {
		errs.add(err)
		return errs.join()
	}
	b.bind(ctx, bind, &errs) // and everyone
	b.runLast(ctx, d.last, b.servers, guards, &errs)
	b.repair(ctx, st, found, &errs)
	for _, key := range keys {
		b.queueDrain(key, d.now)
	}
	return errs.join()
}

// claimKeys returns the keys to compare, sorted, and those of them where a server will be
// added. It leaves out foreign servers.
func (b *Backend) claimKeys(ctx context.Context, touched map[lvs.Key]struct{}, errs *failures) (keys, claimed []lvs.Key) {
	for _, key := range slices.SortedFunc(maps.Keys(touched), compareKeys) {
		delete(b.refused, key)
		if f := b.claims.by[key].frontend(); f != nil && b.servers[key] == nil {
			taken, err := b.conn.Has(ctx, key)
			if errs.add(err); err != nil {
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

// compare notes how to change servers. It returns their addresses on our device that
// neither services nor draining servers need any more.
func (b *Backend) compare(d *difference, keys []lvs.Key, st *policy.State) (freed []netip.Addr) {
	pools := map[*policy.Pool][]dest{}
	for _, key := range keys {
		had := b.servers[key]
		now := d.server(key, had, b.claims.server(key, b.opts.Scheduler, pools))
		b.countOrphan(key.Addr, had, -1)
		b.countOrphan(key.Addr, now, 1)
		b.servers[key] = now
		if now == nil {
			delete(b.servers, key)
		}
		_, member := b.members[key.Addr]
		if member && b.orphans[key.Addr] == 0 && st.BoundAddrs[key.Addr] == 0 {
			freed = append(freed, key.Addr)
		}
	}
	return freed
}

// countOrphan counts servers that are only kept to drain.
func (b *Backend) countOrphan(a netip.Addr, s *server, by int) {
	if s == nil || !s.orphan {
		return
	}
	if b.orphans[a] += by; b.orphans[a] == 0 {
		delete(b.orphans, a)
	}
}

// addrChanges returns the addresses to bind, and the delta for the chains and sets:
// addresses where servers drain stay until they are freed.
func (b *Backend) addrChanges(st *policy.State, delta *policy.Delta, freed []netip.Addr) (bind []netip.Addr, shown *policy.Delta) {
	for _, a := range delta.BoundAddrs.Gained {
		if _, has := b.bound[a]; !has {
			bind = append(bind, a)
		}
	}
	d := *delta
	d.BoundAddrs = policy.SetDelta[netip.Addr]{}
	for _, a := range slices.Concat(delta.BoundAddrs.Gained, delta.BoundAddrs.Lost, freed) {
		_, was := b.members[a]
		switch is := st.BoundAddrs[a] > 0 || b.orphans[a] > 0; {
		case is && !was:
			b.members[a] = struct{}{}
			d.BoundAddrs.Gained = append(d.BoundAddrs.Gained, a)
		case was && !is:
			delete(b.members, a)
			d.BoundAddrs.Lost = append(d.BoundAddrs.Lost, a)
		}
	}
	slices.SortFunc(d.BoundAddrs.Lost, netip.Addr.Compare)
	return bind, &d
}
