package explain

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/ruleset"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A fakeHost is a host on which all is well, except for what a test changes.
type fakeHost struct {
	noRoute []netip.Addr
	by      map[netip.Addr]string // interfaces other than eth1
	via     netip.Addr            // a router before all endpoints; not valid: none
	link    []netip.Prefix
	sysctls map[string]string
	rules   ruleset.Ruleset
	missing bool
	kept    *proxier.Remembered
	flows   []conntrack.Connection
	failing error
	asked   []netip.Addr
}

func (h *fakeHost) Route(to netip.Addr, mark uint32) (Route, error) {
	h.asked = append(h.asked, to)
	if slices.Contains(h.noRoute, to) {
		return Route{}, errors.New("network is unreachable")
	}
	r := Route{Interface: "eth1", Index: 7, Source: addr("192.168.10.1")}
	if to.String() != client {
		r.Via = h.via
	}
	if name := h.by[to]; name != "" {
		r.Interface, r.Index = name, 8
	}
	return r, nil
}

func (h *fakeHost) Sysctl(name string) (string, error) {
	if v, ok := h.sysctls[name]; ok {
		return v, nil
	}
	if strings.Contains(name, "rp_filter") {
		return "0", nil
	}
	return "1", nil
}

func (h *fakeHost) Interfaces() ([]string, error) { return []string{"eth0", "eth1"}, h.failing }

func (h *fakeHost) Link(string) ([]netip.Prefix, error) { return h.link, h.failing }

func (h *fakeHost) Rules(context.Context, policy.Family) *ruleset.Ruleset { return &h.rules }

func (h *fakeHost) Objects(_ context.Context, st *policy.State) ([]proxier.Object, error) {
	return []proxier.Object{{Name: "set frontends", Present: true}, {Name: "element size-2 { x }", Present: !h.missing}}, h.failing
}

func (h *fakeHost) Connections(context.Context, Question) ([]conntrack.Connection, error) {
	return h.flows, h.failing
}

func (h *fakeHost) Remembered(context.Context, *policy.Pool, netip.Addr) (*proxier.Remembered, error) {
	return h.kept, h.failing
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// service is a service at 10.96.0.10:80 with two endpoints, one of which is on this node.
func service() *source.Service {
	ep := func(a, node string) source.Endpoint {
		return source.Endpoint{Addr: addr(a), Weight: 1, Ready: true, Serving: true}.With(source.Extras{Node: node})
	}
	return &source.Service{
		Key: source.Key{Namespace: "default", Name: "web"}, VIPs: []netip.Addr{addr("10.96.0.10"), addr("fd00:96::10")},
		ExternalIPs: []netip.Addr{addr("198.51.100.7")}, LoadBalancerIPs: []netip.Addr{addr("198.51.100.8")},
		Ports:     []source.Port{{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 8080, NodePort: 30080}},
		Endpoints: []source.Endpoint{ep("192.168.10.11", "node"), ep("192.168.10.12", "other")},
		Pos:       source.Position{File: "/etc/svcproxy/web.toml", Line: 1, Col: 1},
	}
}

// ipvs returns what ipvs mode does to packets beside rules, or another mode.
func ipvs(in bool) modes.Balancing {
	if m, err := modes.Named("ipvs"); err == nil && in {
		return m.Balancing
	}
	return modes.Balancing{}
}

func world(services ...*source.Service) *World {
	w := &World{Mode: "nftables", Snapshot: claims.Snapshot{
		Node: &policy.Node{
			Name: "node", MarkBit: 14, Addrs: []netip.Addr{addr("192.168.10.1"), addr("192.168.20.1")},
			NodePortAddrs: []netip.Addr{addr("192.168.10.1")}, UpAddrs: []netip.Addr{addr("192.168.10.1"), addr("192.168.20.1")},
		},
		Families: []policy.Family{policy.IPv4, policy.IPv6},
	}}
	for _, s := range services {
		w.Services = append(w.Services, claims.UnitService{Subject: policy.Subject{Service: s}})
	}
	return w
}

const client = "203.0.113.9"

// base is a chain of another program with one rule of iptables' words for all packets.
func base(typ, hook string, priority int, v ruleset.Verdict) *ruleset.Base {
	return &ruleset.Base{Origin: "inet fw c", Chain: "c", Type: typ, Hook: hook, Priority: priority, Chains: map[string][]ruleset.Rule{"c": {rule{v, ruleset.Yes}}}}
}

type rule struct {
	verdict ruleset.Verdict
	match   ruleset.Match
}

func (r rule) Eval(*ruleset.Packet) (ruleset.Match, ruleset.Verdict) { return r.match, r.verdict }
func (r rule) String() string                                        { return "a rule" }

func TestVerdicts(t *testing.T) {
	tests := []struct {
		name   string
		change func(*source.Service, *World, *fakeHost)
		src    string
		dst    string
		in     string
		want   string
	}{
		{name: "works", dst: "10.96.0.10:80", want: "works"},
		{name: "no forwarding", dst: "10.96.0.10:80", change: func(_ *source.Service, _ *World, h *fakeHost) { h.sysctls["net/ipv4/ip_forward"] = "0" },
			want: "does not work: forwarding is off, net.ipv4.ip_forward = 0 (6)"},
		{name: "no forwarding of one interface", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) { h.sysctls["net/ipv4/conf/eth1/forwarding"] = "0" },
			want:   "does not work: forwarding is off, net.ipv4.conf.eth1.forwarding = 0 (6)"},
		{name: "the host does not forward its own", src: "192.168.10.1", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) { h.sysctls["net/ipv4/ip_forward"] = "0" }, want: "works"},
		{name: "no route of the host to the vip", src: "192.168.10.1", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) { h.noRoute = []netip.Addr{addr("10.96.0.10")} },
			want:   "does not work: this host has no route to 10.96.0.10 (5)"},
		{name: "rp_filter", dst: "10.96.0.10:80", in: "eth0",
			change: func(_ *source.Service, _ *World, h *fakeHost) { h.sysctls["net/ipv4/conf/eth0/rp_filter"] = "1" },
			want:   "does not work: rp_filter of eth0 drops it: the way back to 203.0.113.9 goes by eth1 (6)"},
		{name: "rp_filter of all", dst: "10.96.0.10:80", in: "eth0",
			change: func(_ *source.Service, _ *World, h *fakeHost) { h.sysctls["net/ipv4/conf/all/rp_filter"] = "1" },
			want:   "does not work: rp_filter of eth0 drops it: the way back to 203.0.113.9 goes by eth1 (6)"},
		{name: "loose rp_filter", dst: "10.96.0.10:80", in: "eth0",
			change: func(_ *source.Service, _ *World, h *fakeHost) { h.sysctls["net/ipv4/conf/eth0/rp_filter"] = "2" }, want: "works"},
		{name: "rp_filter elsewhere", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) { h.sysctls["net/ipv4/conf/eth0/rp_filter"] = "1" },
			want:   "works, unless: it comes in by eth0, where rp_filter drops what the way back, eth1, does not lead to (6)"},
		{name: "one endpoint without route", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) { h.noRoute = []netip.Addr{addr("192.168.10.12")} },
			want:   "works for 1 of 2 endpoints only: 192.168.10.12:8080: no route to the endpoint (5)"},
		{name: "no endpoint with route, and no forwarding", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.noRoute = []netip.Addr{addr("192.168.10.11"), addr("192.168.10.12")}
				h.sysctls["net/ipv4/ip_forward"] = "0"
			},
			want: "does not work: forwarding is off, net.ipv4.ip_forward = 0 (6); also no route to the endpoint (5)"},
		{name: "no way back", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) { h.noRoute = []netip.Addr{addr(client)} },
			want:   "does not work: no way back to 203.0.113.9 (5)"},
		{name: "objects missing", dst: "10.96.0.10:80", change: func(_ *source.Service, _ *World, h *fakeHost) { h.missing = true },
			want: "does not work: 1 of our objects are not in the kernel (4)"},
		{name: "wrong port", dst: "10.96.0.10:81",
			want: "refused: default/web has no port 81/tcp, and other ports of a VIP are refused (1); 10.96.0.10 serves 80/tcp (default/web:http)"},
		{name: "wrong port of an external address", dst: "198.51.100.7:81", want: "untouched: default/web has no port 81/tcp, and the packet may return to the router that sent it (1); 198.51.100.7 serves 80/tcp (default/web:http)"},
		{name: "wrong port of an announced address", dst: "198.51.100.7:81", change: func(s *source.Service, _ *World, _ *fakeHost) { s.Announce = source.BGP },
			want: "refused: default/web has no port 81/tcp, and other ports of an announced address are refused (1); 198.51.100.7 serves 80/tcp (default/web:http)"},
		{name: "the same in ipvs mode", dst: "198.51.100.7:81", change: func(_ *source.Service, w *World, _ *fakeHost) { w.Balancing = ipvs(true) },
			want: "refused: 198.51.100.7 is bound to this host and serves no 81/tcp (1); 198.51.100.7 serves 80/tcp (default/web:http)"},
		{name: "node port", dst: "192.168.10.1:30080", want: "works"},
		{name: "node port on another address", dst: "192.168.20.1:30080",
			want: "untouched: no service has 192.168.20.1:30080/tcp (1); 30080 is a node port of default/web, which 192.168.20.1 does not serve: see node_port_addresses"},
		{name: "node port on an address of its own", dst: "192.168.20.1:30080",
			change: func(s *source.Service, w *World, _ *fakeHost) {
				s.NodePortAddresses = &source.NodeAddresses{Ranges: []netip.Prefix{netip.MustParsePrefix("192.168.20.0/24")}}
			}, want: "works"},
		{name: "node port on addresses of its own only", dst: "192.168.10.1:30080",
			change: func(s *source.Service, w *World, _ *fakeHost) {
				s.NodePortAddresses = &source.NodeAddresses{Ranges: []netip.Prefix{netip.MustParsePrefix("192.168.20.0/24")}}
			},
			want: "untouched: no service has 192.168.10.1:30080/tcp (1); 30080 is a node port of default/web, which 192.168.10.1 does not serve: see node_port_addresses"},
		{name: "service_cidrs", dst: "10.97.0.1:80",
			change: func(_ *source.Service, w *World, _ *fakeHost) {
				w.Node.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
			},
			want: "refused: 10.97.0.1 is in service_cidrs and no service has it (1)"},
		{name: "not ours", dst: "192.0.2.1:80", want: "untouched: no service has 192.0.2.1:80/tcp (1)"},
		{name: "not ours, and a broken file", dst: "192.0.2.1:80",
			change: func(_ *source.Service, w *World, _ *fakeHost) { w.Unread = []string{"b.toml (b.toml:1:1: broken)"} },
			want:   "untouched: no service has 192.0.2.1:80/tcp (1); files with faults: b.toml (b.toml:1:1: broken)"},
		{name: "clash", dst: "192.0.2.1:80",
			change: func(_ *source.Service, w *World, _ *fakeHost) {
				other := service()
				other.Name, other.VIPs = "other", []netip.Addr{addr("192.0.2.1")}
				w.Refused = []claims.Refusal{{Faults: []source.Fault{{Msg: "taken"}}, Wanted: []*source.Service{other}}}
			},
			want: "untouched: no service has 192.0.2.1:80/tcp (1); default/other, which has it, is not used as it stands: taken"},
		{name: "a family that is not programmed", dst: "10.96.0.10:80", change: func(_ *source.Service, w *World, _ *fakeHost) { w.Families = []policy.Family{policy.IPv6} },
			want: "untouched: ipv4 is not programmed (1); see families in svcproxy.toml, and svcproxy status"},
		{name: "source ranges", dst: "198.51.100.8:80",
			change: func(s *source.Service, _ *World, _ *fakeHost) {
				s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			},
			want: "dropped: 203.0.113.9 is not in load_balancer_source_ranges (2)"},
		{name: "source ranges of all addresses", dst: "10.96.0.10:80",
			change: func(s *source.Service, _ *World, _ *fakeHost) {
				s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			},
			want: "dropped: 203.0.113.9 is not in source_ranges (2)"},
		{name: "both source ranges", dst: "198.51.100.8:80",
			change: func(s *source.Service, _ *World, _ *fakeHost) {
				s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
				s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			},
			want: "dropped: 203.0.113.9 is not in load_balancer_source_ranges (2)"},
		{name: "source ranges of a node port", dst: "192.168.10.1:30080",
			change: func(s *source.Service, _ *World, _ *fakeHost) {
				s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			},
			want: "dropped: 203.0.113.9 is not in source_ranges (2)"},
		{name: "policy local", dst: "10.96.0.10:80",
			change: func(s *source.Service, _ *World, _ *fakeHost) {
				s.InternalTrafficPolicy, s.Endpoints = source.Local, s.Endpoints[1:]
			},
			want: "dropped: policy local: no endpoint on this node; usable elsewhere: 1 (3)"},
		{name: "policy local of others", src: "192.168.10.1", dst: "198.51.100.7:80",
			change: func(s *source.Service, _ *World, _ *fakeHost) {
				s.ExternalTrafficPolicy, s.Endpoints = source.Local, s.Endpoints[1:]
			}, want: "works"},
		{name: "weight 0", dst: "10.96.0.10:80", change: func(s *source.Service, _ *World, _ *fakeHost) { s.Endpoints[0].Weight, s.Endpoints[1].Weight = 0, 0 },
			want: "refused: no usable endpoint: 2 with weight 0 (3)"},
		{name: "wrong family", src: "2001:db8::9", dst: "[fd00:96::10]:80", want: "refused: no IPv6 endpoint (3)"},
		{name: "no endpoints", dst: "10.96.0.10:80", change: func(s *source.Service, _ *World, _ *fakeHost) { s.Endpoints = nil },
			want: "refused: no endpoints (3)"},
		{name: "foreign dnat", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.rules.Bases = []*ruleset.Base{base("nat", "prerouting", -110, ruleset.Verdict{Kind: ruleset.Translate, To: "192.0.2.1:80"})}
			},
			want: `does not work: is translated before our rules, to 192.0.2.1:80 by inet fw c, rule "a rule" (6)`},
		{name: "foreign dnat after ours", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.rules.Bases = []*ruleset.Base{base("nat", "prerouting", -90, ruleset.Verdict{Kind: ruleset.Translate})}
			}, want: "works"},
		{name: "foreign dnat of the same priority, made before", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.rules.Bases, h.rules.Own = []*ruleset.Base{base("nat", "prerouting", -100, ruleset.Verdict{Kind: ruleset.Translate})}, 2
				h.rules.Bases[0].Created = 1
			}, want: "works"},
		{name: "foreign dnat of the same priority, made later", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.rules.Bases, h.rules.Own = []*ruleset.Base{base("nat", "prerouting", -100, ruleset.Verdict{Kind: ruleset.Translate})}, 2
				h.rules.Bases[0].Created = 3
			}, want: `does not work: is translated before our rules by inet fw c, rule "a rule" (6)`},
		{name: "not tracked", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.rules.Bases = []*ruleset.Base{base("filter", "prerouting", -300, ruleset.Verdict{Kind: ruleset.NoTrack})}
			},
			want: `does not work: is not tracked, so nothing translates it by inet fw c, rule "a rule" (6)`},
		{name: "foreign reject", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.rules.Bases = []*ruleset.Base{base("filter", "forward", 0, ruleset.Verdict{Kind: ruleset.Reject})}
			},
			want: `does not work: is rejected by inet fw c, rule "a rule" (6)`},
		{name: "a policy", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.rules.Bases = []*ruleset.Base{{Origin: "inet fw c", Type: "filter", Hook: "forward", Drops: true}}
			},
			want: `does not work: is dropped by inet fw c, its policy (6)`},
		{name: "a rule that may match", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				b := base("filter", "forward", 0, ruleset.Verdict{})
				b.Chains["c"] = []ruleset.Rule{rule{ruleset.Verdict{Kind: ruleset.Drop}, ruleset.Maybe}}
				h.rules.Bases = []*ruleset.Base{b}
			},
			want: `works, unless: may be dropped by inet fw c, rule "a rule" (6)`},
		{name: "a rule that rewrites the packet", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.rules.Bases = []*ruleset.Base{base("filter", "prerouting", -300, ruleset.Verdict{Rewrites: true})}
			},
			want: `works, unless: may be rewritten, so that it is not what was asked for, by inet fw c, rule "a rule" (6)`},
		{name: "a drop of input does not concern what is forwarded", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.rules.Bases = []*ruleset.Base{base("filter", "input", 0, ruleset.Verdict{Kind: ruleset.Drop})}
			}, want: "works"},
		{name: "but what IPVS balances", dst: "10.96.0.10:80",
			change: func(_ *source.Service, w *World, h *fakeHost) {
				w.Balancing = ipvs(true)
				h.rules.Bases = []*ruleset.Base{base("filter", "input", 0, ruleset.Verdict{Kind: ruleset.Drop})}
			}, want: `does not work: is dropped by inet fw c, rule "a rule" (6)`},
		{name: "the first, though it is of a later step", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.missing, h.rules.Bases = true, []*ruleset.Base{base("filter", "prerouting", -300, ruleset.Verdict{Kind: ruleset.Drop})}
			},
			want: `does not work: is dropped by inet fw c, rule "a rule" (6); also 1 of our objects are not in the kernel (4)`},
		{name: "the first of two", dst: "10.96.0.10:80",
			change: func(_ *source.Service, _ *World, h *fakeHost) {
				h.rules.Bases = []*ruleset.Base{base("filter", "forward", 0, ruleset.Verdict{Kind: ruleset.Drop}), base("filter", "prerouting", -300, ruleset.Verdict{Kind: ruleset.Drop})}
				h.rules.Bases[1].Origin = "inet fw early"
			},
			want: `does not work: is dropped by inet fw early, rule "a rule" (6); also is dropped by inet fw c, rule "a rule" (6)`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, h := service(), &fakeHost{sysctls: map[string]string{}}
			w := world(s)
			if tt.change != nil {
				tt.change(s, w, h)
			}
			if tt.src == "" {
				tt.src = client
			}
			r := ask(t, w, h, tt.src, tt.dst, tt.in)
			if r.Verdict != tt.want || r.Works != strings.HasPrefix(tt.want, "works") && !strings.HasPrefix(tt.want, "works for") {
				t.Errorf("works: %v\n got: %s\nwant: %s", r.Works, r.Verdict, tt.want)
			}
		})
	}
}

// A client that keeps its address on the link of an endpoint is answered past this host.
func TestDirectAnswersAreFound(t *testing.T) {
	const neighbour = "192.168.10.9"
	prefix := netip.MustParsePrefix
	kept := func(_ *source.Service, w *World, _ *fakeHost) {
		w.Node.LocalCIDRs = []netip.Prefix{prefix("192.168.0.0/16")}
	}
	const past = "the endpoint answers past this host: the client keeps its address, and both are in 192.168.10.0/24 on eth1 (5)"
	tests := []struct {
		name   string
		change func(*source.Service, *World, *fakeHost)
		src    string
		dst    string
		want   string
	}{
		{"kept as local source", kept, neighbour, "10.96.0.10:80", "does not work: " + past},
		{"masqueraded", nil, neighbour, "10.96.0.10:80", "works"},
		{"masquerade never", func(_ *source.Service, w *World, _ *fakeHost) { w.Node.Masquerade = source.MasqueradeNever }, neighbour, "10.96.0.10:80", "does not work: " + past},
		{"policy local", func(s *source.Service, _ *World, _ *fakeHost) { s.ExternalTrafficPolicy = source.Local }, neighbour, "198.51.100.7:80", "does not work: " + past},
		{"external, masqueraded", kept, neighbour, "198.51.100.7:80", "works"},
		{"a client elsewhere", func(_ *source.Service, w *World, _ *fakeHost) {
			w.Node.LocalCIDRs = []netip.Prefix{prefix("203.0.113.0/24")}
		}, client, "10.96.0.10:80", "works"},
		{"another interface", func(s *source.Service, w *World, h *fakeHost) {
			kept(s, w, h)
			h.by = map[netip.Addr]string{addr("192.168.10.12"): "eth0"}
		}, neighbour, "10.96.0.10:80", "works for 1 of 2 endpoints only: 192.168.10.11:8080: " + past},
		{"behind a router", func(s *source.Service, w *World, h *fakeHost) { kept(s, w, h); h.via = addr("192.168.10.254") }, neighbour, "10.96.0.10:80", "works"},
		{"another subnet", func(s *source.Service, w *World, h *fakeHost) {
			kept(s, w, h)
			h.link = []netip.Prefix{prefix("192.168.10.1/29"), prefix("192.168.20.1/24")}
		}, neighbour, "10.96.0.10:80", "works"},
		{"a bridge that filters", func(s *source.Service, w *World, h *fakeHost) {
			kept(s, w, h)
			h.link = []netip.Prefix{prefix("fd00::1/64")}
		}, neighbour, "10.96.0.10:80", "works"},
		{"itself", kept, "192.168.10.11", "10.96.0.10:80",
			"works for 1 of 2 endpoints only: 192.168.10.12:8080: " + past},
		{"this host", kept, "192.168.10.1", "10.96.0.10:80", "works"},
		{"direct return", func(s *source.Service, w *World, _ *fakeHost) {
			w.Balancing = ipvs(true)
			s.Forward, s.Ports[0].TargetPort, s.Ports[0].NodePort = source.Forwarding{Method: source.ForwardDirect}, 80, 0
		}, neighbour, "198.51.100.7:80", "works"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, h := service(), &fakeHost{sysctls: map[string]string{}}
			h.link = []netip.Prefix{prefix("192.168.10.1/24"), prefix("fd00::1/64")}
			w := world(s)
			if tt.change != nil {
				tt.change(s, w, h)
			}
			r := ask(t, w, h, tt.src, tt.dst, "")
			if r.Verdict != tt.want || r.Works != (tt.want == "works") {
				t.Errorf("works: %v\n got: %s\nwant: %s", r.Works, r.Verdict, tt.want)
			}
			said := strings.Contains(strings.Join(r.Steps[routeStep-1].Lines, "\n"), "or have endpoints reach "+tt.src+" by way of this host)")
			if said != strings.Contains(tt.want, past) {
				t.Errorf("what to do: said %v\n%s", said, strings.Join(r.Steps[routeStep-1].Lines, "\n"))
			}
		})
	}
}

func ask(t *testing.T, w *World, h Host, src, dst, in string) *Report {
	t.Helper()
	q, err := Parse(src, dst, in)
	fatal.If(t, err)
	r, err := Explain(context.Background(), w, q, h)
	fatal.If(t, err)
	return r
}

func TestText(t *testing.T) {
	s, h := service(), &fakeHost{sysctls: map[string]string{}, by: map[netip.Addr]string{addr("192.168.10.12"): "eth\x1b0"}}
	s.Affinity = time.Hour
	s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: addr("192.168.10.13"), Weight: 0, Ready: true, Serving: true},
		source.Endpoint{Addr: addr("192.168.10.14"), Weight: 3, Ready: true, Serving: true})
	h.kept = &proxier.Remembered{Target: netip.MustParseAddrPort("192.168.10.12:8080"), Left: time.Minute}
	h.flows = []conntrack.Connection{{Src: netip.MustParseAddrPort("203.0.113.9:4000"), Dst: netip.MustParseAddrPort("10.96.0.10:80"), Reply: netip.MustParseAddrPort("192.168.10.12:8080")}}
	w := world(s)
	w.Places = func(*source.Service) []source.Position {
		return []source.Position{{}, {}, {File: "/etc/svcproxy/web.toml", Line: 9, Col: 3}}
	}
	var b strings.Builder
	fatal.If(t, ask(t, w, h, client, "10.96.0.10:80", "").Write(&b))
	const want = `1 service   default/web:http (web.toml:1), address in vips, policy cluster
2 source    not local (no local_cidrs, no local_interfaces), taken to come in by eth1
            masqueraded: no local_cidrs or local_interfaces are set, so no source is local
3 choice    192.168.10.11:8080 gets 20%
            192.168.10.12:8080 gets 20%
            192.168.10.14:8080 gets 60%
            192.168.10.13:8080 not used: weight 0 (web.toml:9:3)
            session affinity: this client keeps 192.168.10.12:8080 for 1m0s more
4 kernel    nftables: set frontends, element size-2 { x }: present
5 route     192.168.10.11:8080 by eth1
            192.168.10.12:8080 by eth\x1b0
            192.168.10.14:8080 by eth1
            back to the client by eth1
6 host      net.ipv4.ip_forward = 1
            net.ipv4.conf.all.rp_filter = 0
            net.ipv4.conf.eth1.rp_filter = 0
            connection tracking has 203.0.113.9:4000 -> 10.96.0.10:80, which 192.168.10.12:8080 answers; no answer yet
verdict     works
`
	if b.String() != want {
		t.Errorf("got:\n%swant:\n%s", b.String(), want)
	}
}

func TestMasqueradeOfClients(t *testing.T) {
	local := func(s *source.Service) { s.ExternalTrafficPolicy = source.Local }
	tests := []struct {
		name     string
		change   func(*source.Service)
		cidrs    string
		mode     source.Masquerading
		src, dst string
		want     string
	}{
		{name: "nobody is local", src: client, dst: "10.96.0.10:80", want: "yes: no local_cidrs or local_interfaces are set, so no source is local"},
		{name: "local", src: client, dst: "10.96.0.10:80", cidrs: "203.0.113.0/24", want: "no: it is a local source"},
		{name: "not local", src: client, dst: "10.96.0.10:80", cidrs: "10.0.0.0/8", want: "yes: it is not a local source"},
		{name: "all", src: client, dst: "10.96.0.10:80", mode: source.MasqueradeAll, want: "yes: masquerade is all"},
		{name: "never", src: client, dst: "10.96.0.10:80", mode: source.MasqueradeNever, want: "no: masquerade is never"},
		{name: "itself", src: "192.168.10.11", dst: "10.96.0.10:80", mode: source.MasqueradeNever, want: "yes: it reaches itself"},
		{name: "external", src: client, dst: "198.51.100.7:80", want: "yes: external traffic is, unless its policy is local"},
		{name: "external and local", src: client, dst: "198.51.100.7:80", change: local, want: "no: external_traffic_policy is local"},
		{name: "external, local, of the host", src: "192.168.10.1", dst: "198.51.100.7:80", change: local, want: "yes: a process of this host asks"},
		{name: "external, local, of a local source", src: client, dst: "198.51.100.7:80", change: local, cidrs: "203.0.113.0/24", want: "no: external_traffic_policy is local"},
	}
	for _, tt := range tests {
		s := service()
		if tt.change != nil {
			tt.change(s)
		}
		w := world(s)
		w.Node.Masquerade = tt.mode
		if tt.cidrs != "" {
			w.Node.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix(tt.cidrs)}
		}
		q, err := Parse(tt.src, tt.dst, "")
		fatal.If(t, err)
		masq, why := decide(w, q, "eth1").masquerade(addr("192.168.10.11"))
		if got := map[bool]string{true: "yes: ", false: "no: "}[masq] + why; got != tt.want {
			t.Errorf("%s: %s; want %s", tt.name, got, tt.want)
		}
	}
}

// What cannot be read of the host is said, keeps nothing else from being said, and leaves
// it open whether packets arrive.
func TestUnreadableHostLeavesTheVerdictOpen(t *testing.T) {
	h := &fakeHost{sysctls: map[string]string{}, failing: errors.New("operation not permitted")}
	h.rules.Unread, h.rules.Stopped = []string{"rules of nf_tables: no"}, true
	r := ask(t, world(service()), h, client, "10.96.0.10:80", "")
	const want = "works, unless: it comes in by another interface, which could not be looked at: operation not permitted (6), " +
		"it is stopped by what could not be read: rules of nf_tables: no (6), " +
		"it is stopped by rules of other programs beyond the first 5000, of which there are more (6), " +
		"our objects in the kernel, which could not be read, are missing: operation not permitted (4)"
	if r.Verdict != want || !r.Works {
		t.Errorf("works: %v\n got: %s\nwant: %s", r.Works, r.Verdict, want)
	}
	text := strings.Join(append(r.Steps[kernelStep-1].Lines, r.Steps[hostStep-1].Lines...), "\n")
	for _, want := range []string{"our objects in the kernel", "connection tracking: operation not permitted", "rules of nf_tables: no", "first 5000"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not said in\n%s", want, text)
		}
	}
}

func TestAddressWithoutPortListsServices(t *testing.T) {
	r := ask(t, world(service()), &fakeHost{sysctls: map[string]string{}}, client, "198.51.100.7", "")
	want := []string{"80/tcp  default/web:http (web.toml:1), address in external_ips: balance, 2 endpoints"}
	if !r.Works || r.Outcome != Listed || !slices.Equal(r.Steps[0].Lines, want) {
		t.Errorf("got %+v", r)
	}
	if r = ask(t, world(service()), &fakeHost{sysctls: map[string]string{}}, client, "192.0.2.1", ""); r.Works || r.Outcome == Listed {
		t.Errorf("of an address that nobody has: %+v", r)
	}
}
