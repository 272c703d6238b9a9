package nftables

import (
	"fmt"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// probe tests whether the kernel supports all that our rules need: a table with
// every kind of set, rule and hook, in a transaction that is not committed.
func probe(conn *nft.Conn, d *layout.Dialect) error {
	st := everyFeature(d.Fam)
	c := layout.Render(st)
	b := nft.NewBatch(d.Scratch())
	b.AddTable(layout.TableComment)
	for _, s := range layout.SetsInUse(c.Counts()) {
		b.AddSet(s.Define(d.Fam))
		if rec := c.Sets[s]; rec != nil {
			b.AddElement(s.Name(), rec.Element(0))
		}
	}
	for _, ch := range c.Chains {
		b.AddChain(&ch.Chain)
		for _, r := range ch.Rules {
			b.AddRule(ch.Name, r)
		}
	}
	if err := conn.Try(b); err != nil {
		return fmt.Errorf("this kernel's nf_tables lacks something: %w", err)
	}
	return nil
}

// everyFeature returns a State that needs every kind of set, rule and hook.
func everyFeature(fam policy.Family) *policy.State {
	addr := fam.Unspecified().Next()
	all := []netip.Prefix{netip.PrefixFrom(addr, fam.Bits()-1).Masked()}
	pool := func(scope policy.Scope, keep time.Duration) *policy.Pool {
		return &policy.Pool{
			ServicePort: policy.ServicePortName{Key: source.Key{Namespace: "probe", Name: "probe"}},
			Scope:       scope, Protocol: source.TCP, Affinity: keep,
			Targets: []policy.Target{policy.NewTarget(netip.AddrPortFrom(addr, 1), 1)},
		}
	}
	balance := func(p *policy.Pool, m policy.Masquerade) policy.Route {
		return policy.Route{Action: policy.Balance, Masquerade: m, Pool: p}
	}
	one, sticky := pool(policy.ClusterScope, 0), pool(policy.NodeScope, time.Second)
	hashed := pool(policy.ClusterScope, 0)
	hashed.Hash = policy.Hash{On: source.ClientIPPort, Endpoints: 1}
	var list []*policy.Frontend
	add := func(kind policy.Kind, outside, local policy.Route) {
		list = append(list, &policy.Frontend{
			Key:     policy.FrontendKey{Addr: addr, Protocol: source.TCP, Port: uint16(len(list) + 1), Kind: kind},
			Outside: outside, FromLocal: local, Restricted: true, SourceRanges: all,
		})
	}
	for _, kind := range []policy.Kind{policy.LoadBalancer, policy.NodePort} {
		add(kind, balance(sticky, policy.HostProcesses), balance(one, policy.NonLocal))
		add(kind, balance(one, policy.Everyone), balance(one, policy.Everyone))
		add(kind, balance(hashed, policy.Everyone), balance(hashed, policy.Everyone))
		add(kind, policy.Route{Action: policy.Drop, Pool: one}, policy.Route{Action: policy.Drop, Pool: one})
		add(kind, policy.Route{Action: policy.Reject, Pool: one}, policy.Route{Action: policy.Reject, Pool: one})
	}
	placed := *list[len(list)-1]
	placed.Key.Port, placed.Placed, placed.NodePortAddrs = uint16(len(list)+1), true, []netip.Addr{addr}
	list = append(list, &placed)
	res := &policy.Resolved{Key: source.Key{Namespace: "probe", Name: "probe"}, Frontends: list, Pools: []*policy.Pool{one, sticky, hashed}}
	return &policy.State{
		Family:       fam,
		Services:     map[source.Key]*policy.Resolved{res.Key: res},
		RefusedAddrs: map[netip.Addr]int{addr: 1},
		Hairpins:     map[policy.Hairpin]int{policy.NewHairpin(netip.AddrPortFrom(addr, 1), source.TCP): 1},
		Host: policy.Host{
			NodePortAddrs: []netip.Addr{addr}, LocalCIDRs: all, LocalInterfaces: []string{"probe*"}, ServiceCIDRs: all, ServiceCIDRExempt: []netip.Addr{addr},
		},
	}
}
