package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A snapshot is everything that the kernel holds, and what is desired instead.
type snapshot struct {
	holdings                     // what IPVS holds after diff, with the addresses desired on the device
	had      map[lvs.Key]*server // ours that exist

	foreign map[lvs.Key]struct{}    // desired, but owned by another program
	device  bool                    // ours exists
	bound   map[netip.Addr]struct{} // addresses that it has
	rules   *layout.Actual          // chains and sets; nil: not read

	diff      difference
	unguarded map[lvs.Key]bool // whose servers wait for the rules
	claimed   []lvs.Key        // to be added, but not recorded yet
	lost      []lvs.Key        // recorded, but neither existing nor to be added
	guards    *layout.Changes  // what sets lose after diff; nil: rules are left alone
}

// newSnapshot returns a snapshot of a kernel that holds nothing.
func newSnapshot(st *policy.State, opts Options, d drains) *snapshot {
	return &snapshot{
		holdings: holdings{claims: newFrontendPairs(st), orphans: map[netip.Addr]int{}},
		had:      map[lvs.Key]*server{}, foreign: map[lvs.Key]struct{}{},
		diff: difference{now: time.Now(), timeout: opts.DrainTimeout, drains: d},
	}
}

// takeSnapshot reads IPVS and our device, compares them with a State, and changes nothing.
// known are our servers as far as that is known.
func (o *owner) takeSnapshot(ctx context.Context, st *policy.State, opts Options, known map[lvs.Key]*server) (_ *snapshot, err error) {
	p := newSnapshot(st, opts, o.record.drains)
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
	for key, l := range list { // foreign ones matter only if we desire the same
		switch _, wanted := p.claims.by[key]; {
		case o.record.owns(key):
			if p.had[key], err = withDests(ctx, o.conn, l); err != nil {
				return nil, err
			}
		case wanted:
			p.foreign[key] = struct{}{}
		}
	}
	p.remember(known)
	p.compareAll(opts.Scheduler, st)
	p.compareRecord(o.record)
	return p, nil
}

// remember takes over what the kernel does not know of servers: whether their services had
// connections closed.
func (p *snapshot) remember(known map[lvs.Key]*server) {
	for key, s := range p.had {
		if was := known[key]; was != nil {
			s.closeRemoved = was.closeRemoved
		}
	}
}

// compareAll computes the difference.
func (p *snapshot) compareAll(scheduler string, st *policy.State) {
	p.forgetDrains()
	p.servers = maps.Clone(p.had)
	wanted := slices.DeleteFunc(slices.SortedFunc(maps.Keys(p.claims.by), compareKeys), func(key lvs.Key) bool {
		_, theirs := p.foreign[key]
		return theirs
	})
	others := slices.DeleteFunc(slices.SortedFunc(maps.Keys(p.had), compareKeys), func(key lvs.Key) bool {
		_, wanted := p.claims.by[key]
		return wanted
	})
	p.compare(&p.diff, slices.Concat(wanted, others), scheduler, st)
	// Addresses of our device are those of services, and existing ones where servers drain.
	p.members = make(map[netip.Addr]struct{}, len(st.BoundAddrs))
	for a := range st.BoundAddrs {
		p.members[a] = struct{}{}
	}
	for a := range p.orphans {
		if _, has := p.bound[a]; has {
			p.members[a] = struct{}{}
		}
	}
}

// forgetDrains drops the drains of destinations that no longer exist.
func (p *snapshot) forgetDrains() {
	for key, dests := range p.diff.drains {
		for at := range dests {
			s := p.had[key]
			if s == nil || !slices.ContainsFunc(s.dests, func(d lvs.Destination) bool { return d.AddrPort == at }) {
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
	for key := range p.servers {
		if p.had[key] == nil && !r.owns(key) {
			p.claimed = append(p.claimed, key)
		}
	}
	for key := range r.owned {
		if p.had[key] == nil && p.servers[key] == nil {
			p.lost = append(p.lost, key)
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
	missing, extra := addrDifference(p.bound, p.members)
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
	p := newSnapshot(after, opts, nil)
	p.device, p.bound = true, make(map[netip.Addr]struct{}, len(before.BoundAddrs))
	had, pools := newFrontendPairs(before), map[*policy.Pool][]lvs.Destination{}
	for key := range had.by {
		p.had[key] = had.server(key, opts.Scheduler, pools)
	}
	for a := range maps.Keys(before.BoundAddrs) {
		p.bound[a] = struct{}{}
	}
	p.compareAll(opts.Scheduler, after)
	rulesBefore, rulesAfter := withBound(before, p.bound), withBound(after, p.members)
	rules, err := filter.Compare(layout.NewIPVSRules(after.Family), rulesBefore, layout.NewIPVSRules(after.Family), rulesAfter)
	if err != nil {
		return nil, fmt.Errorf("ipvs, %s: %w", after.Family, err)
	}
	return append(p.changes(), rules...), nil
}

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
	out := r.missingEntries(p.servers)
	for key := range p.unguarded {
		if p.servers[key] != nil && !p.had[key].takes() {
			out[entryOf(key)] = true
		}
	}
	return out
}
