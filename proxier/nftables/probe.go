package nftables

import (
	"fmt"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/source"
)

// probe tests whether the kernel supports all that our rules need: a table with
// every kind of set, rule and hook, in a transaction that is not committed.
func probe(conn *nft.Conn, d *dialect) error {
	st := everyFeature(d.fam)
	c := render(d, st)
	chains, err := d.marshal(c.chains)
	if err != nil {
		return err
	}
	b := nft.NewBatch(d.scratch())
	b.AddTable(tableComment)
	for _, s := range setsInUse(c.counts()) {
		b.AddSet(s.define(d.fam))
		if rec := c.sets[s]; rec != nil {
			b.AddElement(s.name(), rec.element(0))
		}
	}
	for _, ch := range chains {
		b.AddChain(&ch.Chain)
		for _, r := range ch.rules {
			b.AddRule(ch.Name, r)
		}
	}
	if err := conn.Try(b); err != nil {
		return fmt.Errorf("this kernel's nf_tables lacks something: %w", err)
	}
	return nil
}

// everyFeature returns a State that needs every kind of set, rule and hook.
func everyFeature(fam proxier.Family) *proxier.State {
	addr := fam.Unspecified().Next()
	all := []netip.Prefix{netip.PrefixFrom(addr, fam.Bits()-1).Masked()}
	pool := func(scope proxier.Scope, keep time.Duration) *proxier.Pool {
		return &proxier.Pool{
			ServicePort: proxier.ServicePortName{Key: source.Key{Namespace: "probe", Name: "probe"}},
			Scope:       scope, Protocol: source.TCP, Affinity: keep,
			Targets: []proxier.Target{{AddrPort: netip.AddrPortFrom(addr, 1), Weight: 1}},
		}
	}
	balance := func(p *proxier.Pool, m proxier.Masquerade) proxier.Route {
		return proxier.Route{Action: proxier.Balance, Masquerade: m, Pool: p}
	}
	one, sticky := pool(proxier.ClusterScope, 0), pool(proxier.LocalScope, time.Second)
	hashed := pool(proxier.ClusterScope, 0)
	hashed.Hash = proxier.Hash{On: source.ClientIPPort, Endpoints: 1}
	var list []*proxier.Frontend
	add := func(kind proxier.Kind, outside, local proxier.Route) {
		list = append(list, &proxier.Frontend{
			Key:     proxier.FrontendKey{Addr: addr, Protocol: source.TCP, Port: uint16(len(list) + 1), Kind: kind},
			Outside: outside, Local: local, Restricted: true, SourceRanges: all,
		})
	}
	for _, kind := range []proxier.Kind{proxier.LoadBalancer, proxier.NodePort} {
		add(kind, balance(sticky, proxier.HostProcesses), balance(one, proxier.NonLocal))
		add(kind, balance(one, proxier.Everyone), balance(one, proxier.Everyone))
		add(kind, balance(hashed, proxier.Everyone), balance(hashed, proxier.Everyone))
		add(kind, proxier.Route{Action: proxier.Drop, Pool: one}, proxier.Route{Action: proxier.Drop, Pool: one})
		add(kind, proxier.Route{Action: proxier.Reject, Pool: one}, proxier.Route{Action: proxier.Reject, Pool: one})
	}
	placed := *list[len(list)-1]
	placed.Key.Port, placed.Placed, placed.NodePortAddrs = uint16(len(list)+1), true, []netip.Addr{addr}
	list = append(list, &placed)
	res := &proxier.Resolved{Key: source.Key{Namespace: "probe", Name: "probe"}, Frontends: list, Pools: []*proxier.Pool{one, sticky, hashed}}
	return &proxier.State{
		Family:      fam,
		Services:    map[source.Key]*proxier.Resolved{res.Key: res},
		RefusedVIPs: map[netip.Addr]int{addr: 1},
		Hairpins:    map[proxier.Hairpin]int{proxier.NewHairpin(netip.AddrPortFrom(addr, 1), source.TCP): 1},
		Host: proxier.Host{
			NodePortAddrs: []netip.Addr{addr}, LocalCIDRs: all, LocalInterfaces: []string{"probe*"}, ServiceCIDRs: all, ServiceCIDRExempt: []netip.Addr{addr},
		},
	}
}
