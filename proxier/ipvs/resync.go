package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A snapshot is everything that the kernel holds, and what is desired instead.
type snapshot struct {
	servers map[lvs.Key]*server     // ours
	foreign map[lvs.Key]struct{}    // desired, but owned by another program
	device  bool                    // ours exists
	bound   map[netip.Addr]struct{} // addresses that it has
	rules   *layout.Actual          // chains and sets; nil: not read

	claims    *claims
	diff      difference
	after     map[lvs.Key]*server     // what IPVS holds after diff
	unguarded map[lvs.Key]bool        // whose servers wait for the rules
	claimed   []lvs.Key               // to be added, but not recorded yet
	lost      []lvs.Key               // recorded, but neither existing nor to be added
	guards    *layout.Changes         // what sets lose after diff; nil: rules are left alone
	addrs     map[netip.Addr]struct{} // desired on the device
	orphans   map[netip.Addr]int
}

// takeSnapshot reads IPVS and our device, compares them with a State, and changes nothing.
func (b *Backend) takeSnapshot(ctx context.Context, st *policy.State) (*snapshot, error) {
	p := &snapshot{
		foreign: map[lvs.Key]struct{}{}, claims: newClaims(st),
		diff: difference{now: time.Now(), timeout: b.opts.DrainTimeout, drains: b.record.drains},
	}
	if err := b.conn.Probe(ctx); err != nil {
		return nil, err
	}
	if err := b.readDevice(p); err != nil {
		return nil, err
	}
	list, err := b.list(ctx, p.claims.by)
	if err != nil {
		return nil, err
	}
	p.classify(list, b.record.owns)
	p.remember(b.servers)
	p.compare(b.opts.Scheduler, st)
	p.compareRecord(b.record)
	return p, nil
}

func (b *Backend) readDevice(p *snapshot) (err error) {
	p.device, p.bound, err = addrsOf(b.device, b.fam)
	return err
}

// list returns the virtual servers of our family. It includes every recorded one,
// whatever other processes change meanwhile, or it would count as removed; and every
// desired one, or a foreign one would be recorded as ours until adding it fails: if we
// were killed before that, the next run would remove it.
func (b *Backend) list(ctx context.Context, wanted map[lvs.Key]claim) (map[lvs.Key]lvs.Listing, error) {
	known := maps.Clone(b.record.owned)
	for key := range wanted {
		known[key] = struct{}{}
	}
	return b.conn.List(ctx, b.fam == policy.IPv6, maps.Keys(known))
}

// classify separates our servers from foreign ones, which matter only if we desire the same.
func (p *snapshot) classify(list map[lvs.Key]lvs.Listing, ours func(lvs.Key) bool) {
	p.servers = make(map[lvs.Key]*server, len(list))
	for key, l := range list {
		switch _, wanted := p.claims.by[key]; {
		case ours(key):
			p.servers[key] = serverFrom(l)
		case wanted:
			p.foreign[key] = struct{}{}
		}
	}
}

// remember takes over what the kernel does not know of servers: whether their services had
// connections closed.
func (p *snapshot) remember(known map[lvs.Key]*server) {
	for key, s := range p.servers {
		if was := known[key]; was != nil {
			s.closeRemoved = was.closeRemoved
		}
	}
}

// serverFrom converts a listed server.
func serverFrom(l lvs.Listing) *server {
	s := &server{Server: l.Server, dests: make([]dest, len(l.Destinations))}
	for i, d := range l.Destinations {
		s.dests[i] = dest{AddrPort: d.AddrPort, weight: d.Weight, way: d.Forwarding, limits: d.Limits, foreignOptions: d.ForeignOptions, idle: d.Idle()}
	}
	slices.SortFunc(s.dests, func(a, b dest) int { return a.Compare(b.AddrPort) })
	return s
}

// compare computes the difference.
func (p *snapshot) compare(scheduler string, st *policy.State) {
	p.after = make(map[lvs.Key]*server, len(p.claims.by))
	p.orphans = map[netip.Addr]int{}
	p.forgetDrains()
	pools := map[*policy.Pool][]dest{}
	for _, key := range slices.SortedFunc(maps.Keys(p.claims.by), compareKeys) {
		if _, theirs := p.foreign[key]; !theirs {
			p.after[key] = p.diff.server(key, p.servers[key], p.claims.server(key, scheduler, pools))
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(p.servers), compareKeys) {
		if _, wanted := p.claims.by[key]; wanted {
			continue
		}
		if left := p.diff.server(key, p.servers[key], nil); left != nil {
			p.after[key] = left
			p.orphans[key.Addr]++
		}
	}
	p.wantAddrs(st)
}

// forgetDrains drops the drains of destinations that no longer exist.
func (p *snapshot) forgetDrains() {
	for key, dests := range p.diff.drains {
		for at := range dests {
			s := p.servers[key]
			if s == nil || !slices.ContainsFunc(s.dests, func(d dest) bool { return d.AddrPort == at }) {
				p.diff.undrain(key, at)
			}
		}
	}
}

// compareRecord computes the changes of the record. A recorded server that does not
// exist was removed by another program, or by us just before we were killed. Unless it
// is added now its record must go, or the next one that another program adds would
// count as ours.
func (p *snapshot) compareRecord(r *record) {
	for key := range p.after {
		if p.servers[key] == nil && !r.owns(key) {
			p.claimed = append(p.claimed, key)
		}
	}
	for key := range r.owned {
		if p.servers[key] == nil && p.after[key] == nil {
			p.lost = append(p.lost, key)
		}
	}
}

// wantAddrs sets the desired addresses of our device: those of services, and existing
// ones where servers drain.
func (p *snapshot) wantAddrs(st *policy.State) {
	p.addrs = make(map[netip.Addr]struct{}, len(st.BoundAddrs))
	for a := range st.BoundAddrs {
		p.addrs[a] = struct{}{}
	}
	for a := range p.orphans {
		if _, has := p.bound[a]; has {
			p.addrs[a] = struct{}{}
		}
	}
}

// resync compares everything and repairs every difference.
func (b *Backend) resync(ctx context.Context, st *policy.State) error {
	if err := b.unsupported.Reprobe(ctx); err != nil {
		return err
	}
	st = b.unsupported.State(st)
	p, err := b.takeSnapshot(ctx, st)
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
	var errs failures
	errs.add(b.setTimeouts(ctx))
	b.refused = refused{}
	for key := range p.foreign {
		b.refused[key] = foreignServer(p.claims.by[key].frontend().ServicePort, key)
	}
	b.apply(ctx, p, func() error {
		b.rules.Withhold(p.unserved(b.refused), nil)
		return b.kernel.Resync(ctx, p.rules, guarded{b.rules, p.guards}, rulesState)
	}, &errs)
	return errs.join()
}

// withBound returns st for the chains and sets, with the addresses that the device is to
// have: those where servers drain refuse new connections.
func withBound(st *policy.State, addrs map[netip.Addr]struct{}) *policy.State {
	out := *st
	out.BoundAddrs = make(map[netip.Addr]int, len(addrs))
	for a := range addrs {
		out.BoundAddrs[a] = 1
	}
	return &out
}

// apply writes the difference of a snapshot. New connections find everything ready:
// it adds servers first, then chains and sets, then addresses; and removes in reverse.
// What rules are yet to restrict or masquerade is balanced after them: an address of this host gets packets before.
// For the same reason what they no longer restrict or masquerade is first no longer balanced.
func (b *Backend) apply(ctx context.Context, p *snapshot, rules func() error, errs *failures) {
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
			errs.add(err)
			return
		}
	}
	if err := b.serve(ctx, p, late, errs); err != nil {
		errs.add(err)
		return
	}
	b.bind(ctx, missing, errs)
	b.runLast(ctx, p.diff.last, p.after, p.guards, errs)
	b.servers, b.claims, b.orphans, b.members = p.after, p.claims, p.orphans, p.addrs
	b.queueDrains(p.diff.now)
}

func (b *Backend) bind(ctx context.Context, addrs []netip.Addr, errs *failures) {
	changeAddrs(ctx, addrs, b.device.Bind, func(a netip.Addr) { b.bound[a] = struct{}{} }, errs)
}

func (b *Backend) unbind(ctx context.Context, addrs []netip.Addr, errs *failures) {
	changeAddrs(ctx, addrs, b.device.Unbind, func(a netip.Addr) { delete(b.bound, a) }, errs)
}

// changeAddrs changes addresses of our device, and calls done with each that succeeded.
func changeAddrs(ctx context.Context, addrs []netip.Addr, change func(netip.Addr) error, done func(netip.Addr), errs *failures) {
	for _, a := range addrs {
		if ctx.Err() != nil {
			errs.add(ctx.Err())
			return
		}
		err := change(a)
		if errs.add(err); err == nil {
			done(a)
		}
		proxier.Progressed(ctx)
	}
}

// setTimeouts sets the configured timeouts if the kernel has others.
func (b *Backend) setTimeouts(ctx context.Context) error {
	differ, err := b.timeoutsDiffer(ctx, b.conn)
	if err != nil || !differ {
		return err
	}
	return b.conn.SetTimeouts(ctx, b.timeouts())
}

// timeouts returns the configured timeouts.
func (b *Backend) timeouts() lvs.Timeouts {
	return lvs.Timeouts{TCP: b.opts.TCPTimeout, TCPFin: b.opts.TCPFinTimeout, UDP: b.opts.UDPTimeout}
}

// timeoutsDiffer reports whether the kernel's timeouts differ from the configured ones.
func (b *Backend) timeoutsDiffer(ctx context.Context, conn *lvs.Conn) (bool, error) {
	want := b.timeouts()
	if want == (lvs.Timeouts{}) {
		return false, nil
	}
	have, err := conn.Timeouts(ctx)
	if err != nil {
		return false, err
	}
	differs := func(want, have time.Duration) bool { return want != 0 && seconds(want) != seconds(have) }
	return differs(want.TCP, have.TCP) || differs(want.TCPFin, have.TCPFin) || differs(want.UDP, have.UDP), nil
}

// plan returns what resync would change.
func (b *Backend) plan(ctx context.Context, st *policy.State) ([]proxier.Change, error) {
	st = b.unsupported.Preview(st)
	p, err := b.takeSnapshot(ctx, st)
	if err != nil {
		return nil, err
	}
	rules := layout.NewIPVSRules(b.fam)
	actual, err := b.kernel.Read(ctx, rules)
	if err != nil {
		return nil, err
	}
	rulesState := withBound(st, p.addrs)
	rules.Observe(actual)
	if err := rules.Reset(rulesState); err != nil {
		return nil, err
	}
	changes, err := b.timeoutChanges(ctx)
	if err != nil {
		return nil, err
	}
	rest, err := b.kernel.Changes(ctx, actual, rules, rulesState)
	return slices.Concat(p.changes(), changes, rest), err
}

// timeoutChanges returns what setTimeouts would do.
func (b *Backend) timeoutChanges(ctx context.Context) ([]proxier.Change, error) {
	differ, err := b.timeoutsDiffer(ctx, b.conn)
	if err != nil || !differ {
		return nil, err
	}
	return []proxier.Change{{Op: "change", Object: "timeouts of IPVS"}}, nil
}

// changes returns what apply would do.
func (p *snapshot) changes() []proxier.Change {
	var list []proxier.Change
	if !p.device {
		list = append(list, proxier.Change{Op: "add", Object: "device " + links.Own})
	}
	for _, s := range slices.Concat(p.diff.first, p.diff.last) {
		list = append(list, s.change())
	}
	missing, extra := addrDifference(p.bound, p.addrs)
	return slices.Concat(list, addrChanges("add", missing), addrChanges("remove", extra))
}

func addrChanges(op string, addrs []netip.Addr) []proxier.Change {
	list := make([]proxier.Change, len(addrs))
	for i, a := range addrs {
		list[i] = proxier.Change{Op: op, Object: "address " + a.String() + " of " + links.Own}
	}
	return list
}
