package flows

import (
	"net/netip"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// A testFlow is one in the words of the tests; the client is 10.9.9.9:999 where src is empty.
type testFlow struct{ src, dst, reply string }

func (f testFlow) flow() Flow {
	if f.src == "" {
		f.src = "10.9.9.9:999"
	}
	return Flow{Src: netip.MustParseAddrPort(f.src), Dst: netip.MustParseAddrPort(f.dst), Reply: netip.MustParseAddrPort(f.reply)}
}

// sync brings a table up to date with services, of which a nil one is gone, and
// returns what is to be looked for.
func (t *table) sync(node *policy.Node, services map[string]*source.Service) *look {
	changes := make(map[source.Key]policy.ServiceChange)
	for name, s := range services {
		key := source.Key{Namespace: "default", Name: name}
		if s == nil {
			changes[key] = policy.ServiceChange{}
			continue
		}
		s.Key = key
		changes[key] = policy.ServiceChange{New: policy.Resolve(s, nil, node, policy.IPv4)}
	}
	return t.update(t.since(changes), node.Host(policy.IPv4), node)
}

// since returns changes with what the table has of their services as Old.
func (t *table) since(changes map[source.Key]policy.ServiceChange) (list []policy.ServiceChange) {
	for key, ch := range changes {
		if ch.Old != nil {
			list = append(list, ch)
			continue
		}
		if ch.New != nil {
			ch.Old = &policy.Resolved{Key: ch.New.Key}
		} else {
			ch.Old = &policy.Resolved{Key: key}
		}
		for _, f := range t.frontends {
			if f.ServicePort.Key == ch.Old.Key {
				ch.Old.Frontends = append(ch.Old.Frontends, f)
			}
		}
		list = append(list, ch)
	}
	return list
}

// removed returns which of flows would be removed: asked for, and stale.
func (t *table) removed(l *look, flows []testFlow) (gone []testFlow) {
	q := t.query(l)
	for _, f := range flows {
		fl := f.flow()
		asked := l.all || slices.Contains(q.To, fl.Dst) || slices.Contains(q.From, fl.Src)
		if asked && t.judge(l, fl) != Keep {
			gone = append(gone, f)
		}
	}
	return gone
}

func TestStaleFlows(t *testing.T) {
	const vip, nodePort = "10.96.0.10:53", "192.0.2.1:30053"
	answer := testFlow{vip, "10.9.9.9:999", "10.9.9.9:999"} // from the VIP to a client
	to := func(dst, reply string) testFlow { return testFlow{"", dst, reply} }
	one := policytest.DNS(policytest.Endpoints("10.0.0.1"))
	tests := []struct {
		name     string
		old, new *source.Service
		full     bool
		gone     []testFlow // of the flows below
	}{
		{"endpoint replaced", one, policytest.DNS(policytest.Endpoints("10.0.0.2")), false, []testFlow{answer, to(vip, "10.0.0.1:5353"), to(vip, vip), to(vip, "10.0.0.9:53"), to(nodePort, "10.0.0.1:5353")}},
		{"endpoint added", one, policytest.DNS(policytest.Endpoints("10.0.0.1", "10.0.0.2")), false, nil},
		{"weight 0 has not left", one, policytest.DNS(policytest.Endpoints("10.0.0.1 weight=0", "10.0.0.2")), false, nil},
		{"neither ready nor serving", one, policytest.DNS(policytest.Endpoints("10.0.0.1 notready")), false, []testFlow{answer, to(vip, "10.0.0.1:5353"), to(vip, "10.0.0.2:5353"), to(vip, vip), to(vip, "10.0.0.9:53"), to(nodePort, "10.0.0.1:5353")}},
		{"service removed", one, nil, false, []testFlow{to(vip, "10.0.0.1:5353"), to(nodePort, "10.0.0.1:5353")}},
		{"service appears", nil, one, false, []testFlow{answer, to(vip, "10.0.0.2:5353"), to(vip, vip), to(vip, "10.0.0.9:53")}},
		{"full look", one, one, true, []testFlow{answer, to(vip, "10.0.0.2:5353"), to(vip, vip), to(vip, "10.0.0.9:53")}},
	}
	flows := []testFlow{
		answer,
		to(vip, "10.0.0.1:5353"), to(vip, "10.0.0.2:5353"), to(vip, vip), to(vip, "10.0.0.9:53"),
		to(nodePort, "10.0.0.1:5353"),
		to("10.96.0.11:53", "10.0.0.1:5353"), to("192.0.2.2:30053", "10.0.0.1:5353"), to("10.96.0.10:54", "10.0.0.1:5353"), // not ours
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tbl := newTable(source.UDP)
			tbl.sync(policytest.Node(), map[string]*source.Service{"dns": tt.old})
			l := tbl.sync(policytest.Node(), map[string]*source.Service{"dns": tt.new})
			l.all, l.done = tt.full, 1
			if gone := tbl.removed(l, flows); !slices.Equal(gone, tt.gone) {
				t.Errorf("removed\n got: %v\nwant: %v", gone, tt.gone)
			}
		})
	}
}

// A UDP flow that cannot move stays for a while where its endpoint may still answer, and no longer.
func TestStrayFlowsThatCannotMove(t *testing.T) {
	one, other := policytest.DNS(policytest.Endpoints("10.0.0.1")), policytest.DNS(policytest.Endpoints("10.0.0.2"))
	excludes := policytest.DNS(policytest.Endpoints("10.0.0.2"))
	excludes.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16")}
	stray := testFlow{"", "10.96.0.10:53", "10.0.0.1:5353"}
	movable := stray.flow()
	movable.Movable = true
	for _, tt := range []struct {
		name string
		now  *source.Service
		flow Flow
		done int
		want Verdict
	}{
		{"at first", other, stray.flow(), 0, await},
		{"nearly for its time", other, stray.flow(), graceLooks - 1, await},
		{"for its time", other, stray.flow(), graceLooks, Move},
		{"it can move", other, movable, 0, Move},
		{"there was no endpoint", other, testFlow{"", "10.96.0.10:53", "10.96.0.10:53"}.flow(), 0, Move},
		{"the source is excluded", excludes, stray.flow(), 0, Move},
		{"all endpoints have left", policytest.DNS(policytest.Endpoints()), stray.flow(), 0, Move},
		{"the service has gone", nil, stray.flow(), 0, Move},
		{"its endpoint is back", one, stray.flow(), 0, Keep},
	} {
		tbl := newTable(source.UDP)
		tbl.sync(policytest.Node(), map[string]*source.Service{"dns": one})
		l := tbl.sync(policytest.Node(), map[string]*source.Service{"dns": tt.now})
		if l.done = tt.done; tt.now == one {
			l.all = true
		}
		if got := tbl.judge(l, tt.flow); got != tt.want {
			t.Errorf("%s: verdict %d, want %d", tt.name, got, tt.want)
		}
	}
}

// A node port that gets other addresses loses the flows to those before, and those that were at
// the others before it.
func TestStaleFlowsOfPlacedNodePorts(t *testing.T) {
	node := policytest.Node(func(n *policy.Node) { n.Addrs = policytest.Addrs("192.0.2.1", "192.0.2.2"); n.UpAddrs = n.Addrs })
	svc := func(list ...string) *source.Service {
		s := policytest.Service(policytest.Endpoints("10.0.0.1"))
		s.VIPs, s.Ports = nil, []source.Port{{Protocol: source.UDP, Port: 9, NodePort: 30053, TargetPort: 1}}
		if len(list) > 0 {
			s.NodePortAddresses = source.SelectAddresses(list)
		}
		return s
	}
	one, two := testFlow{"", "192.0.2.1:30053", "10.0.0.1:1"}, testFlow{"", "192.0.2.2:30053", "10.0.0.1:1"}
	hostOne, hostTwo := testFlow{"", "192.0.2.1:30053", "192.0.2.1:30053"}, testFlow{"", "192.0.2.2:30053", "192.0.2.2:30053"}
	for _, tt := range []struct {
		name     string
		old, now *source.Service
		gone     []testFlow
	}{
		{"as before", svc("192.0.2.2/32"), svc("192.0.2.2/32"), nil},
		{"one more", svc("192.0.2.1/32"), svc("all"), []testFlow{hostOne, hostTwo}}, // a look at all
		{"one less", svc("all"), svc("192.0.2.1/32"), []testFlow{two}},
		{"the setting has another", svc("192.0.2.2/32"), svc(), []testFlow{two, hostOne}},
		{"another than the setting has", svc(), svc("192.0.2.2/32"), []testFlow{one, hostTwo}}, // a look at all
		{"nowhere", svc("192.0.2.2/32"), svc("10.9.0.0/16"), []testFlow{two}},
	} {
		tbl := newTable(source.UDP)
		tbl.sync(node, map[string]*source.Service{"dns": tt.old})
		l := tbl.sync(node, map[string]*source.Service{"dns": tt.now})
		l.done = 1
		if gone := tbl.removed(l, []testFlow{one, two, hostOne, hostTwo}); !slices.Equal(gone, tt.gone) {
			t.Errorf("%s: removed\n got: %v\nwant: %v", tt.name, gone, tt.gone)
		}
	}
}

// Where a frontend has an address of the node and another one the node port of
// the same number, the former comes first in every mode, and what it does not
// balance goes to the latter.
func TestStaleFlowsWhereFrontendsMeet(t *testing.T) {
	const both, other = "192.0.2.1:30053", "192.0.2.2:30053" // one also external, both node ports
	node := policytest.Node(func(n *policy.Node) {
		n.Addrs = append(n.Addrs, netip.MustParseAddr("192.0.2.2"))
		slices.SortFunc(n.Addrs, netip.Addr.Compare)
		n.NodePortAddrs = policytest.Addrs("192.0.2.1", "192.0.2.2")
	})
	addressed := func(endpoints ...string) *source.Service {
		s := policytest.Service(policytest.Endpoints(endpoints...))
		s.VIPs, s.LoadBalancerIPs = nil, policytest.Addrs("192.0.2.1")
		s.Ports = []source.Port{{Protocol: source.UDP, Port: 30053, TargetPort: 1}}
		return s
	}
	restricted := func(endpoints ...string) *source.Service {
		s := addressed(endpoints...)
		s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16")}
		return s
	}
	nodePort := func(endpoints ...string) *source.Service {
		s := policytest.Service(policytest.Endpoints(endpoints...))
		s.VIPs = nil
		s.Ports = []source.Port{{Protocol: source.UDP, Port: 9, NodePort: 30053, TargetPort: 2}}
		return s
	}
	bothA, bothN, otherN := testFlow{"", both, "10.0.0.1:1"}, testFlow{"", both, "10.0.0.2:2"}, testFlow{"", other, "10.0.0.2:2"}
	inRange := testFlow{"10.8.0.1:999", both, "10.0.0.2:2"}
	flows := []testFlow{bothA, bothN, otherN, inRange}
	tests := []struct {
		name     string
		old, new map[string]*source.Service
		full     bool
		gone     []testFlow
	}{
		{"resync", map[string]*source.Service{"a": addressed("10.0.0.1"), "n": nodePort("10.0.0.2")}, nil, true,
			[]testFlow{bothN, inRange}},
		{"node port changes", map[string]*source.Service{"a": addressed("10.0.0.1"), "n": nodePort("10.0.0.2")},
			map[string]*source.Service{"n": nodePort("10.0.0.3")}, false, []testFlow{bothN, otherN, inRange}},
		{"address comes", map[string]*source.Service{"n": nodePort("10.0.0.2")},
			map[string]*source.Service{"a": addressed("10.0.0.1")}, false, []testFlow{bothN, inRange}},
		{"address goes", map[string]*source.Service{"a": addressed("10.0.0.1"), "n": nodePort("10.0.0.2")},
			map[string]*source.Service{"a": nil}, false, []testFlow{bothA}},
		{"address has no endpoint", map[string]*source.Service{"a": addressed("10.0.0.1"), "n": nodePort("10.0.0.2")},
			map[string]*source.Service{"a": addressed()}, false, []testFlow{bothA}},
		{"address goes, and node port too", map[string]*source.Service{"a": addressed("10.0.0.1"), "n": nodePort("10.0.0.2")},
			map[string]*source.Service{"a": nil, "n": nil}, false, []testFlow{bothA, bothN, otherN, inRange}},
		{"address is not for everyone", map[string]*source.Service{"a": restricted("10.0.0.1"), "n": nodePort("10.0.0.2")}, nil, true,
			[]testFlow{bothA, bothN, inRange}},
		{"address goes to another service", map[string]*source.Service{"a": addressed("10.0.0.1"), "n": nodePort("10.0.0.2")},
			map[string]*source.Service{"a": nil, "b": addressed("10.0.0.1")}, false, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tbl := newTable(source.UDP)
			tbl.sync(node, tt.old)
			l := tbl.sync(node, tt.new)
			l.all = tt.full
			if gone := tbl.removed(l, flows); !slices.Equal(gone, tt.gone) {
				t.Errorf("removed\n got: %v\nwant: %v", gone, tt.gone)
			}
		})
	}
}

// Policy local sends local sources elsewhere than everybody else.
func TestStaleFlowsBySource(t *testing.T) {
	const nodePort, here, there = "192.0.2.1:30053", "10.0.0.1:5353", "10.0.0.2:5353"
	client, cidr, process := "10.9.9.9:999", "10.8.0.1:999", "192.0.2.1:999"
	external := func(s *source.Service) { s.ExternalIPs = policytest.Addrs("198.18.0.1") }
	cluster := policytest.DNS(external, policytest.Endpoints("10.0.0.1 @here", "10.0.0.2 @there"))
	local := policytest.DNS(external, func(s *source.Service) { s.ExternalTrafficPolicy = source.Local }, policytest.Endpoints("10.0.0.1 @here", "10.0.0.2 @there"))
	var flows []testFlow
	for _, src := range []string{client, cidr, process, "127.0.0.1:999", "198.18.0.1:999", "169.254.0.1:999"} {
		for _, dst := range []string{nodePort, "198.18.0.1:53"} {
			flows = append(flows, testFlow{src, dst, here}, testFlow{src, dst, there})
		}
	}
	of := func(reply string, sources ...string) (list []testFlow) {
		for _, f := range flows {
			if f.reply == reply && slices.Contains(sources, f.src) && (f.src != "198.18.0.1:999" || f.dst == nodePort) {
				list = append(list, f)
			}
		}
		return list
	}
	withCIDR := func(n *policy.Node) { n.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16")} }
	leaves := policytest.DNS(external, func(s *source.Service) { s.ExternalTrafficPolicy = source.Local },
		policytest.Endpoints("10.0.0.1 @here terminating", "10.0.0.2 @there", "10.0.0.3 @here"))
	tests := []struct {
		name     string
		node     *policy.Node
		old, new *source.Service
		full     bool
		gone     []testFlow
	}{
		{"cluster to local", policytest.Node(), cluster, local, false, of(there, client, cidr, "198.18.0.1:999")},
		{"cluster to local, local CIDR", policytest.Node(withCIDR), cluster, local, false, of(there, client, "198.18.0.1:999")},
		{"cluster to local, local interfaces", policytest.Node(withCIDR, func(n *policy.Node) { n.LocalInterfaces = []string{"lab*"} }), cluster, local, false, nil},
		{"full look", policytest.Node(withCIDR), local, local, true, of(there, client, "198.18.0.1:999")},
		{"local to cluster", policytest.Node(withCIDR), local, cluster, false, nil},
		{"local, what terminates has not left", policytest.Node(withCIDR), local, leaves, false, nil},
		{"VIP of policy local", policytest.Node(withCIDR), cluster, policytest.DNS(external, policytest.InternalLocal, policytest.Endpoints("10.0.0.1 @here", "10.0.0.2 @there")), false, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tbl := newTable(source.UDP)
			tbl.sync(tt.node, map[string]*source.Service{"dns": tt.old})
			l := tbl.sync(tt.node, map[string]*source.Service{"dns": tt.new})
			l.all = tt.full
			if gone := tbl.removed(l, flows); !slices.Equal(gone, tt.gone) {
				t.Errorf("removed\n got: %v\nwant: %v", gone, tt.gone)
			}
		})
	}
}

// Tracking to a node port on 127.0.0.1 are looked for where one is served there.
func TestStaleFlowsOfLocalhost(t *testing.T) {
	for _, served := range []bool{false, true} {
		node := policytest.Node(func(n *policy.Node) { n.LocalhostNodePorts = served })
		tbl := newTable(source.UDP)
		tbl.sync(node, map[string]*source.Service{"dns": policytest.DNS(policytest.Endpoints("10.0.0.1"))})
		l := tbl.sync(node, map[string]*source.Service{"dns": policytest.DNS(policytest.Endpoints("10.0.0.2"))})
		flows := []testFlow{{"127.0.0.1:999", "127.0.0.1:30053", "10.0.0.1:5353"}}
		if gone := tbl.removed(l, flows); len(gone) > 0 != served {
			t.Errorf("node ports on 127.0.0.1 %v: removed %v", served, gone)
		}
	}
}

// What an address of the node served goes with it.
func TestStaleFlowsOfLostAddress(t *testing.T) {
	two := policytest.Node(func(n *policy.Node) { n.NodePortAddrs = policytest.Addrs("192.0.2.1", "192.0.2.2") })
	tbl := newTable(source.UDP)
	tbl.sync(two, map[string]*source.Service{"dns": policytest.DNS(policytest.Endpoints("10.0.0.1"))})
	l := tbl.sync(policytest.Node(), nil)
	if !l.all {
		t.Error("another node, and not all flows are looked at")
	}
	flows := []testFlow{
		{"", "192.0.2.1:30053", "10.0.0.1:5353"}, {"", "192.0.2.2:30053", "10.0.0.1:5353"}, {"", "192.0.2.2:30053", "192.0.2.2:30053"},
	}
	if gone := tbl.removed(l, flows); !slices.Equal(gone, flows[1:2]) {
		t.Errorf("removed %v, want %v", gone, flows[1:2])
	}
}

// A first look asks for answers only where a frontend is new: each address to ask
// for is a walk through the table.
func TestQueryAsksOnlyForNewFrontends(t *testing.T) {
	vip, nodePort := netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("192.0.2.1:30053")
	tbl := newTable(source.UDP)
	tbl.sync(policytest.Node(), nil)
	expect := func(when string, l *look, from ...netip.AddrPort) {
		t.Helper()
		if q := tbl.query(l); !slices.Equal(q.To, []netip.AddrPort{vip, nodePort}) || !slices.Equal(q.From, from) {
			t.Errorf("%s: asks for %v", when, q)
		}
	}
	expect("new", tbl.sync(policytest.Node(), map[string]*source.Service{"dns": policytest.DNS(policytest.Endpoints("10.0.0.1"))}), vip)
	l := tbl.sync(policytest.Node(), map[string]*source.Service{"dns": policytest.DNS(policytest.Endpoints("10.0.0.2"))})
	expect("changed", l)
	l.done++
	expect("changed, second look", l, vip)
	expect("refuses", tbl.sync(policytest.Node(), map[string]*source.Service{"dns": policytest.DNS()}))
	expect("refuses no more", tbl.sync(policytest.Node(), map[string]*source.Service{"dns": policytest.DNS(policytest.Endpoints("10.0.0.2"))}), vip)
	if l := tbl.sync(policytest.Node(), map[string]*source.Service{"dns": policytest.DNS(policytest.Endpoints("10.0.0.2", "10.0.0.3"))}); l.all || len(l.changed) > 0 {
		t.Errorf("an endpoint was added: looks at %v", l.changed)
	}
}
