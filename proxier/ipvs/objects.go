package ipvs

import (
	"context"
	"fmt"
	"slices"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Objects returns what there should be for a State, which holds one frontend, and whether
// it is there: addresses of our device, virtual servers with their destinations, chains and sets.
func Objects(ctx context.Context, st *policy.State) ([]proxier.Object, error) {
	bound, err := boundObjects(st)
	if err != nil {
		return nil, err
	}
	servers, err := serverObjects(ctx, st)
	if err != nil {
		return nil, err
	}
	rules, err := filter.Objects(ctx, layout.NewIPVSRules(st.Family), st)
	return slices.Concat(bound, servers, rules), err
}

func boundObjects(st *policy.State) (list []proxier.Object, err error) {
	dummy, err := links.OpenDummy()
	if err != nil {
		return nil, err
	}
	defer dummy.Close()
	_, have, err := addrsOf(dummy, st.Family == policy.IPv6)
	if err != nil {
		return nil, err
	}
	for a := range st.BoundAddrs {
		_, present := have[a]
		list = append(list, proxier.Object{Name: "address " + a.String() + " on " + links.Own, Present: present})
	}
	return list, nil
}

func serverObjects(ctx context.Context, st *policy.State) (list []proxier.Object, err error) {
	conn, err := lvs.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for key, cl := range newFrontendPairs(st).by {
		s, err := readServer(ctx, conn, key)
		if err != nil {
			return nil, err
		}
		list = append(list, proxier.Object{Name: "virtual server " + key.String(), Present: s != nil})
		if s == nil {
			continue
		}
		pool := cl.frontend().Outside.Pool
		way := wayOf(pool.Forward)
		for _, t := range pool.Targets {
			present := slices.ContainsFunc(s.dests, func(d lvs.Destination) bool {
				return d.AddrPort == t.AddrPort() && d.Weight > 0 && d.Forwarding == way && d.Limits == limitsOf(pool, t.AddrPort())
			})
			list = append(list, proxier.Object{Name: fmt.Sprintf("destination %s -> %s", key, t.AddrPort()), Present: present})
		}
	}
	return list, nil
}
