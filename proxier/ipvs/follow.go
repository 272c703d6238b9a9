package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
)

// follow brings the kernel up to date with a delta, without looking at it. Its
// work does not depend on how much there is besides.
func (b *Backend) follow(ctx context.Context, st *proxier.State, delta *proxier.Delta) error {
	touched := slices.SortedFunc(maps.Keys(b.claims.update(delta)), compareKeys)
	var errs failures
	owned := len(b.record.owned)
	touched = b.claim(ctx, st, touched, &errs)
	d := &difference{now: time.Now(), timeout: b.opts.DrainTimeout, drains: b.record.drains}
	b.compare(d, touched)
	if d.noted || len(b.record.owned) > owned { // it is written whole, however little changed
		if err := b.record.write(); err != nil {
			return err
		}
	}
	bind, shown := b.addrChanges(delta)
	rules := b.rules.Update(shown)
	served := b.rules.Late(rules)
	b.unbind(shown.BoundAddrs.Lost, &errs)
	if err := b.kernel.Apply(ctx, rules, b.rules); err != nil {
		errs.add(err)
		return errs.join()
	}
	b.run(ctx, d.first, b.servers, &errs) // host processes are balanced from here on
	b.rules.Withhold(b.refused.without(b.servers), served)
	if err := b.kernel.Apply(ctx, served, b.rules); err != nil {
		errs.add(err)
		return errs.join()
	}
	b.bind(bind, &errs) // and everybody
	b.run(ctx, d.last, b.servers, &errs)
	if errs.n == 0 { // or what could not be removed would be nobody's
		errs.add(b.disown(touched))
	}
	return errs.join()
}

// claim adds to what is ours the servers that are new on addresses of other
// devices, unless somebody else has them, and returns the keys without those.
func (b *Backend) claim(ctx context.Context, st *proxier.State, keys []lvs.Key, errs *failures) []lvs.Key {
	return slices.DeleteFunc(keys, func(key lvs.Key) bool {
		delete(b.refused, key)
		_, bound := b.bound[key.Addr]
		f := b.claims.by[key].frontend()
		if f == nil || b.servers[key] != nil || bound || st.BoundAddrs[key.Addr] > 0 {
			return false
		}
		taken, err := b.conn.Has(ctx, key)
		if errs.add(err); err != nil {
			return true
		}
		if taken {
			b.refused[key] = notOurs(f, key)
			return true
		}
		b.record.owned[key] = struct{}{}
		return false
	})
}

func notOurs(f *proxier.Frontend, key lvs.Key) error {
	return fmt.Errorf("service %s: virtual server %v is there and not ours: it is left alone", f.ServicePort, key)
}

// compare notes what must be done to servers.
func (b *Backend) compare(d *difference, keys []lvs.Key) {
	pools := map[*proxier.Pool][]dest{}
	for _, key := range keys {
		had := b.servers[key]
		now := d.server(key, had, b.claims.server(key, b.opts.Scheduler, pools))
		b.linger(key.Addr, had, -1)
		b.linger(key.Addr, now, 1)
		b.servers[key] = now
		if now == nil {
			delete(b.servers, key)
		}
	}
}

// linger counts servers that nobody wants.
func (b *Backend) linger(a netip.Addr, s *server, by int) {
	if s == nil || !s.orphan {
		return
	}
	if b.lingers[a] += by; b.lingers[a] == 0 {
		delete(b.lingers, a)
	}
}

// addrChanges returns which addresses are to be bound, and the delta as the
// chains and sets shall see it: addresses where servers drain stay.
func (b *Backend) addrChanges(delta *proxier.Delta) (bind []netip.Addr, shown *proxier.Delta) {
	for _, a := range delta.BoundAddrs.Gained {
		if _, has := b.bound[a]; !has {
			bind = append(bind, a)
		}
	}
	d := *delta
	d.BoundAddrs.Lost = slices.DeleteFunc(slices.Clone(d.BoundAddrs.Lost), func(a netip.Addr) bool { return b.lingers[a] > 0 })
	return bind, &d
}

// disown forgets those servers that are not, or no longer, on addresses of other devices.
func (b *Backend) disown(keys []lvs.Key) error {
	n := len(b.record.owned)
	for _, key := range keys {
		if b.servers[key] == nil {
			delete(b.record.owned, key)
		}
	}
	if len(b.record.owned) == n {
		return nil
	}
	return b.record.write()
}
