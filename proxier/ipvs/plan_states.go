package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Compare returns what Plan says where the kernel holds one State exactly, and is to hold
// another of the same family, if these are the settings. It needs no kernel.
func Compare(before, after *policy.State, opts Options) ([]proxier.Change, error) {
	p := &snapshot{
		foreign: map[lvs.Key]struct{}{}, claims: newClaims(after), servers: map[lvs.Key]*server{},
		device: true, bound: make(map[netip.Addr]struct{}, len(before.BoundAddrs)),
		diff: difference{now: time.Now(), timeout: opts.DrainTimeout},
	}
	had, pools := newClaims(before), map[*policy.Pool][]dest{}
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
