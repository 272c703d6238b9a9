package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter"
)

// Objects returns what there should be for a State, which holds one frontend, and whether
// it is there: addresses of our device, virtual servers with their destinations, chains and sets.
func Objects(ctx context.Context, st *proxier.State) ([]proxier.Object, error) {
	bound, err := boundObjects(st)
	if err != nil {
		return nil, err
	}
	servers, err := serverObjects(ctx, st)
	if err != nil {
		return nil, err
	}
	rules, err := filter.Objects(ctx, filter.NewIPVSRules(st.Family), st)
	return slices.Concat(bound, servers, rules), err
}

func boundObjects(st *proxier.State) (list []proxier.Object, err error) {
	dummy, err := links.OpenDummy()
	if err != nil {
		return nil, err
	}
	defer dummy.Close()
	there, err := dummy.Find()
	if err != nil {
		return nil, err
	}
	have, err := dummy.Addrs(st.Family == proxier.IPv6)
	if there && err != nil {
		return nil, err
	}
	for a := range st.BoundAddrs {
		list = append(list, proxier.Object{Name: "address " + a.String() + " on " + links.Own, Present: there && slices.Contains(have, a)})
	}
	return list, nil
}

func serverObjects(ctx context.Context, st *proxier.State) (list []proxier.Object, err error) {
	conn, err := lvs.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for key, cl := range newClaims(st).by {
		_, err := conn.Server(ctx, key)
		if err != nil && !errors.Is(err, lvs.ErrNotExist) {
			return nil, err
		}
		list = append(list, proxier.Object{Name: "virtual server " + key.String(), Present: err == nil})
		if err != nil {
			continue
		}
		dests, err := conn.Destinations(ctx, key)
		if err != nil {
			return nil, err
		}
		pool := cl.frontend().Outside.Pool
		way := wayOf(pool.Forward)
		for _, t := range pool.Targets {
			present := slices.ContainsFunc(dests, func(d lvs.Destination) bool {
				return d.AddrPort == t.AddrPort && d.Weight > 0 && d.Forwarding == way && d.Limits == limitsOf(pool, t.AddrPort)
			})
			list = append(list, proxier.Object{Name: fmt.Sprintf("destination %s -> %s", key, t.AddrPort), Present: present})
		}
	}
	return list, nil
}
