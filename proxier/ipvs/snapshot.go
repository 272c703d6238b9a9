package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter"
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

	claims    *frontendPairs
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
// known are our servers as far as that is known.
func (o *owner) takeSnapshot(ctx context.Context, st *policy.State, opts Options, known map[lvs.Key]*server) (_ *snapshot, err error) {
	p := &snapshot{
		foreign: map[lvs.Key]struct{}{}, claims: newFrontendPairs(st),
		diff: difference{now: time.Now(), timeout: opts.DrainTimeout, drains: o.record.drains},
	}
	if err := o.conn.Probe(ctx); err != nil {
		return nil, err
	}
	if p.device, p.bound, err = addrsOf(o.device, o.fam == policy.IPv6); err != nil {
		return nil, err
	}
	list, err := o.list(ctx, p.claims.by)
	if err != nil {
		return nil, err
	}
	p.classify(list, o.record.owns)
	p.remember(known)
	p.compare(opts.Scheduler, st)
	p.compareRecord(o.record)
	return p, nil
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

// Compare returns what Plan says where the kernel holds one State exactly, and is to hold
// another of the same family, if these are the settings. It needs no kernel.
func Compare(before, after *policy.State, opts Options) ([]proxier.Change, error) {
	p := &snapshot{
		foreign: map[lvs.Key]struct{}{}, claims: newFrontendPairs(after), servers: map[lvs.Key]*server{},
		device: true, bound: make(map[netip.Addr]struct{}, len(before.BoundAddrs)),
		diff: difference{now: time.Now(), timeout: opts.DrainTimeout},
	}
	had, pools := newFrontendPairs(before), map[*policy.Pool][]dest{}
	for key := range had.by {
		p.servers[key] = had.server(key, opts.Scheduler, pools)
	}
	for a := range maps.Keys(before.BoundAddrs) {
		p.bound[a] = struct{}{}
	}
	p.compare(opts.Scheduler, after)
	rulesBefore, rulesAfter := withBound(before, p.bound), withBound(after, p.addrs)
	rules, err := filter.Compare(layout.NewIPVSRules(after.Family), rulesBefore, layout.NewIPVSRules(after.Family), rulesAfter)
	if err != nil {
		return nil, fmt.Errorf("ipvs, %s: %w", after.Family, err)
	}
	return append(p.changes(), rules...), nil
}
