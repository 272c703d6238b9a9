//go:build netns

package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// inSoakOnly leaves cases out that ipvs mode has in common with iptables mode: a guest takes
// half a minute for each. A soak has them.
var inSoakOnly = soak([]string{"ipvs"}, nil)

// overtakes are the modes that move their own rules before a foreign one of iptables, which then stops nothing.
var overtakes = []string{"iptables", "ipvs"}

// Set-ups that do not work: a packet fails in each, and explain says why.
var explainGroups = []group{{
	name: "explain",
	cases: []testCase{
		{name: "works", run: testExplainWorks},
		{name: "no forwarding", run: testExplainForwarding},
		{name: "rp_filter", run: testExplainReverse, except: inSoakOnly},
		{name: "wrong port", run: testExplainPort, except: inSoakOnly},
		{name: "no way back", run: testExplainNoWayBack, except: inSoakOnly},
		{name: "no way to the endpoint", run: testExplainNoWayForth, except: inSoakOnly},
		{name: "one bridge", run: testExplainBridge, except: inSoakOnly},
		{name: "source ranges", run: testExplainRanges, except: inSoakOnly},
		{name: "policy local", run: testExplainLocal},
		{name: "weight 0", run: testExplainWeight, except: inSoakOnly},
		{name: "check failed", run: testExplainCheck, except: inSoakOnly},
		{name: "clash of files", run: testExplainClash, except: inSoakOnly},
		{name: "foreign dnat", run: testExplainDNAT, except: overtakes},
		{name: "foreign reject", run: testExplainReject, except: overtakes},
		{name: "tables named as those of iptables", run: testExplainNamedTables, except: []string{"ipvs"}}, // it balances before the chain forward
		{name: "wrong family", run: testExplainFamily, except: inSoakOnly},
		{name: "without a daemon", run: testExplainAlone, except: inSoakOnly},
	},
}}

// An explanation is what explain says in JSON.
type explanation struct {
	Works     bool
	Verdict   string
	Outcome   string
	Endpoints []struct {
		Address    netip.AddrPort
		Masquerade bool
		Source     netip.Addr
	}
	Problems []struct {
		Step int
		Text string
		Sure bool
	}
}

// explain asks the daemon, as a user does.
func (e *env) explain(t *testing.T, src netip.Addr, dst string, more ...string) explanation {
	t.Helper()
	out, err := e.daemon.Command("explain", append([]string{src.String(), dst, "--json"}, more...)...)
	var x explanation
	if bad := json.Unmarshal([]byte(out), &x); bad != nil {
		t.Fatalf("explain %s %s: %v, %v: %s", src, dst, err, bad, out)
	}
	if (err == nil) != x.Works {
		t.Errorf("explain %s %s: works is %v, and it ends with %v", src, dst, x.Works, err)
	}
	return x
}

// names wants the verdict to begin with how it ends, and the first problem to be of a step and to hold a text.
func (x explanation) names(t *testing.T, begins string, step int, text string) {
	t.Helper()
	if !strings.HasPrefix(x.Verdict, begins) || len(x.Problems) == 0 || x.Problems[0].Step != step || !strings.Contains(x.Problems[0].Text, text) || !strings.Contains(x.Verdict, text) {
		t.Errorf("verdict %q, problems %+v; want %q of step %d with %q", x.Verdict, x.Problems, begins, step, text)
	}
}

// to is the VIP of the case and a port, in IPv4, as explain takes it.
func (e *env) to(port uint16, protocol source.Protocol) string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(e.vip(1).V4, port), protocol)
}

// fromClient is a packet of the client's n-th address to the VIP in IPv4.
func (e *env) fromClient(n int) Question {
	return Question{From: e.Client, Source: e.Client.Addrs[n].V4, Protocol: source.TCP, To: netip.AddrPortFrom(e.vip(1).V4, 80)}
}

// fails wants that a packet is not answered by any of some hosts, as soon as the kernel has it so.
func (e *env) fails(t *testing.T, q Question, hosts ...*Host) {
	t.Helper()
	q.Patience = 50 * time.Millisecond // an answer takes 0.2 ms, as the first case shows
	err := pace.Poll(expectPatience, func() error {
		got := Ask(q)
		if got.Outcome == Answered && slices.ContainsFunc(hosts, func(h *Host) bool { return h.Role == got.By }) {
			return fmt.Errorf("%s: %s, which must fail", q, got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// on runs a command on the node, and its opposite when the case ends.
func (e *env) on(t *testing.T, do, undo string) {
	t.Helper()
	run := func(line string) {
		words := strings.Fields(line)
		if _, err := e.Node.Run(words[0], words[1:]...); err != nil {
			t.Error(err)
		}
	}
	run(do)
	t.Cleanup(func() { run(undo) })
}

func (e *env) sysctl(t *testing.T, on, off string) {
	t.Helper()
	if err := e.Node.Sysctl(on); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Node.Sysctl(off); err != nil {
			t.Error(err)
		}
	})
}

func testExplainWorks(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0], e.Remote[0])...))
	x := e.explain(t, e.Client.Addrs[0].V4, e.to(80, source.TCP))
	if !x.Works || x.Verdict != "works" || len(x.Endpoints) != 2 {
		t.Errorf("got %+v, want that it works with two endpoints", x)
	}
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0], e.Remote[0])})
	x = e.explain(t, e.Node.Addrs[0].V6, fmt.Sprintf("[%s]:80/udp", e.vip(1).V6))
	if !x.Works {
		t.Errorf("from the node in IPv6: %+v", x)
	}
	if x = e.explain(t, e.Client.Addrs[0].V4, e.vip(1).V4.String()); x.Outcome != "listed" || !x.Works {
		t.Errorf("without port: %+v", x)
	}
}

func testExplainForwarding(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Remote[0])...))
	e.sysctl(t, "net.ipv4.ip_forward=0", "net.ipv4.ip_forward=1")
	e.fails(t, e.fromClient(0), e.Remote[0])
	e.explain(t, e.Client.Addrs[0].V4, e.to(80, source.TCP)).names(t, "does not work", 6, "forwarding is off")
}

func testExplainReverse(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	client := e.Client.Addrs[1].V4
	route := "ip route %s " + client.String() + "/32 via " + e.Gateway.Addr().V4.String()
	e.on(t, fmt.Sprintf(route, "add"), fmt.Sprintf(route, "del"))
	e.sysctl(t, "net.ipv4.conf.front.rp_filter=1", "net.ipv4.conf.front.rp_filter=0")
	e.fails(t, e.fromClient(1), e.Local[0])
	e.explain(t, client, e.to(80, source.TCP), "--interface", "front").names(t, "does not work", 6, "rp_filter of front drops it")
	e.explain(t, client, e.to(80, source.TCP)).names(t, "works, unless", 6, "it comes in by front")
}

func testExplainPort(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	q := e.fromClient(0)
	q.To = netip.AddrPortFrom(q.To.Addr(), 81)
	e.fails(t, q, e.Local[0])
	x := e.explain(t, e.Client.Addrs[0].V4, e.to(81, source.TCP))
	x.names(t, "refused", 1, "has no port 81/tcp")
	if !strings.Contains(x.Verdict, "serves 80/tcp") {
		t.Errorf("verdict %q does not say what is served", x.Verdict)
	}
}

func testExplainNoWayBack(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	client := e.Client.Addrs[2].V4
	e.on(t, "ip route add unreachable "+client.String(), "ip route del unreachable "+client.String())
	e.fails(t, e.fromClient(2), e.Local[0])
	e.explain(t, client, e.to(80, source.TCP)).names(t, "does not work", 5, "no way back to "+client.String())
}

func testExplainNoWayForth(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Remote[1])...))
	endpoint := e.Remote[1].Addr().V4.String()
	e.on(t, "ip route add unreachable "+endpoint, "ip route del unreachable "+endpoint)
	e.fails(t, e.fromClient(0), e.Remote[1])
	e.explain(t, e.Client.Addrs[0].V4, e.to(80, source.TCP)).names(t, "does not work", 5, "no route to the endpoint")
}

// Client and endpoint are on one bridge of the node: with its own address the client is answered past the node,
// unless frames that the bridge forwards pass the rules of IP.
func testExplainBridge(t *testing.T, e *env) {
	client, server := e.onBridge(t)
	s := e.service(at(server)...)
	s.Masquerade = "never"
	e.apply(t, s)
	questions := make([]Question, 2) // of IPv4 and of IPv6
	for i, vip := range e.vip(1).Each() {
		q := Question{From: client, Source: client.Addr().Each()[i], Protocol: source.TCP, To: netip.AddrPortFrom(vip, 80)}
		e.fails(t, q, server)
		e.explain(t, q.Source, q.To.String()).names(t, "does not work", 5, "the endpoint answers past this host")
		questions[i] = q
	}
	q := questions[0]
	if err := e.Node.Sysctl("net.bridge.bridge-nf-call-iptables=1"); err == nil { // has br_netfilter
		e.worksFor(t, q, server)
		e.explain(t, questions[1].Source, questions[1].To.String()).names(t, "does not work", 5, "the endpoint answers past this host")
		if err := e.Node.Sysctl("net.bridge.bridge-nf-call-iptables=0"); err != nil {
			t.Error(err)
		}
	}
	s.Masquerade = "all"
	e.apply(t, s)
	for _, q := range questions {
		e.worksFor(t, q, server)
	}
}

// worksFor wants that explain says so of a packet that is answered.
func (e *env) worksFor(t *testing.T, q Question, by *Host) {
	t.Helper()
	err := pace.Poll(expectPatience, func() error {
		if got := Ask(q); got.Outcome != Answered || got.By != by.Role {
			return fmt.Errorf("%s: %s", q, got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if x := e.explain(t, q.Source, q.To.String()); x.Verdict != "works" {
		t.Errorf("%s is answered, and explain says %q", q, x.Verdict)
	}
}

// onBridge makes two hosts on a bridge of the node, of which the second is a server.
func (e *env) onBridge(t *testing.T) (client, server *Host) {
	t.Helper()
	n := NewNetwork()
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	const net, node = 66, 1
	e.on(t, "ip link add shared type bridge", "ip link del shared")
	e.on(t, "ip link set shared up", "true")
	e.on(t, fmt.Sprintf("ip addr add %s/24 dev shared", dual(net, node).V4), "true")
	e.on(t, fmt.Sprintf("ip addr add %s/64 dev shared nodad", dual(net, node).V6), "true")
	hosts := make([]*Host, 2)
	for i, role := range []string{"bridged1", "bridged2"} {
		h, err := n.Host(role, dual(net, byte(10+i)))
		if err == nil {
			err = Link(End{h, "eth0", h.Addrs}, End{e.Node, role, nil})
		}
		if err != nil {
			t.Fatal(err)
		}
		e.on(t, "ip link set "+role+" master shared", "ip link del "+role)
		for _, via := range dual(net, node).Each() {
			if _, err := h.Run("ip", "route", "add", "default", "via", via.String()); err != nil {
				t.Fatal(err)
			}
		}
		hosts[i] = h
	}
	if err := n.Serve(hosts[1], netip.AddrPortFrom(netip.IPv6Unspecified(), 8080)); err != nil {
		t.Fatal(err)
	}
	_, _ = e.Node.Run("sysctl", "-q", "-e", "-w", "net.bridge.bridge-nf-call-iptables=0", "net.bridge.bridge-nf-call-ip6tables=0") // without br_netfilter it is so
	return hosts[0], hosts[1]
}

func testExplainRanges(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0])...)
	s.LoadBalancerSourceRanges = prefixes(e.Client.Addrs[0])
	e.apply(t, s)
	q := e.fromClient(1)
	q.To = netip.AddrPortFrom(e.loadBalancer(1).V4, 80)
	e.fails(t, q, e.Local[0])
	e.explain(t, q.Source, q.To.String()).names(t, "dropped", 2, "is not in load_balancer_source_ranges")
}

func testExplainLocal(t *testing.T, e *env) {
	s := e.service(at(e.Remote[0])...)
	s.InternalTrafficPolicy = "local"
	e.apply(t, s)
	e.fails(t, e.fromClient(0), e.Remote[0])
	e.explain(t, e.Client.Addrs[0].V4, e.to(80, source.TCP)).names(t, "dropped", 3, "policy local: no endpoint on this node")
}

func testExplainWeight(t *testing.T, e *env) {
	e.apply(t, e.service(with(weight(0), e.Local[0])...))
	e.fails(t, e.fromClient(0), e.Local[0])
	e.explain(t, e.Client.Addrs[0].V4, e.to(80, source.TCP)).names(t, "refused", 3, "weight 0")
}

// The endpoint answers, but not where its check asks: nothing listens there.
func testExplainCheck(t *testing.T, e *env) {
	s := e.service(at(e.Local[0])...)
	s.HealthCheck = map[string]any{"type": "tcp", "port": 9, "interval": "500ms", "all_failed": "refuse"}
	e.apply(t, s)
	e.fails(t, e.fromClient(0), e.Local[0])
	x := e.explain(t, e.Client.Addrs[0].V4, e.to(80, source.TCP))
	x.names(t, "refused", 3, "no usable endpoint: 1 down")
	if want := "DOWN: "; !strings.Contains(x.Verdict, want) || !strings.Contains(x.Verdict, "refused (for ") {
		t.Errorf("verdict %q does not say what the check met", x.Verdict)
	}
	s.HealthCheck["all_failed"] = "use_all"
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0])})
	e.explain(t, e.Client.Addrs[0].V4, e.to(80, source.TCP)).names(t, "works, unless", 3, "no endpoint answers, as their check says")
}

func testExplainClash(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	other := e.service(at(e.Local[0])...)
	other.Name, other.VIPs = e.name()+"-other", slices.Concat(e.vip(1).Each(), e.vip(2).Each())
	text, err := File(other)
	if err == nil {
		err = e.daemon.WriteFile("other.json", text)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.daemon.RemoveFile("other.json"); err != nil {
			t.Error(err)
		}
	})
	q := e.fromClient(0)
	q.To = netip.AddrPortFrom(e.vip(2).V4, 80)
	err = pace.Poll(applyPatience, func() error {
		if x := e.explain(t, q.Source, q.To.String()); !strings.Contains(x.Verdict, "other.json") {
			return fmt.Errorf("verdict %q does not name the file", x.Verdict)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	e.fails(t, q, e.Local[0])
	x := e.explain(t, q.Source, q.To.String())
	if !strings.HasPrefix(x.Verdict, "untouched") || !strings.Contains(x.Verdict, "is taken by") {
		t.Errorf("verdict %q does not name the clash", x.Verdict)
	}
}

func testExplainDNAT(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	vip, elsewhere := e.vip(1).V4.String(), netip.AddrPortFrom(e.Local[2].Addr().V4, 8080).String()
	e.foreignRule(t, "prerouting", "nat PREROUTING -d "+vip+" -p tcp --dport 80 -j DNAT --to-destination "+elsewhere,
		"type nat hook prerouting priority -110; ip daddr "+vip+" tcp dport 80 dnat ip to "+elsewhere)
	e.fails(t, e.fromClient(0), e.Local[0])
	e.explain(t, e.Client.Addrs[0].V4, e.to(80, source.TCP)).names(t, "does not work", 6, "is translated before our rules, to "+elsewhere)
	if x := e.explain(t, e.Client.Addrs[0].V4, e.to(80, source.UDP)); !x.Works {
		t.Errorf("of UDP, which the rule does not match: %q", x.Verdict)
	}
}

func testExplainReject(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Remote[2])...))
	endpoint := e.Remote[2].Addr().V4.String()
	rule := "filter FORWARD -d " + endpoint + " -p tcp --dport 8080 -j REJECT"
	if e.mode.name == "ipvs" { // packets to services do not pass FORWARD, their answers do
		rule = "filter INPUT -d " + e.vip(1).V4.String() + " -p tcp --dport 80 -j REJECT"
	}
	e.foreignRule(t, "forward", rule,
		"type filter hook forward priority 0; ip daddr "+endpoint+" tcp dport 8080 reject")
	e.fails(t, e.fromClient(0), e.Remote[2])
	e.explain(t, e.Client.Addrs[0].V4, e.to(80, source.TCP)).names(t, "does not work", 6, "is rejected by")
}

// A table of nft is not of iptables because of its name: what its chains do with a packet is said.
func testExplainNamedTables(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Remote[2])...))
	vip, endpoint, elsewhere := e.vip(1), e.Remote[2].Addr(), e.Local[2].Addr().V4.String()
	for _, tt := range []struct{ family, table, chain, rule, want string }{
		{"ip", "filter", "type filter hook forward priority 0", "ip daddr " + endpoint.V4.String() + " drop", "is dropped by ip filter explain"},
		{"ip", "filter", "type filter hook forward priority 0", "ip daddr " + endpoint.V4.String() + " tcp dport 8080 reject", "is rejected by ip filter explain"},
		{"ip", "mangle", "type filter hook prerouting priority -150", "ip daddr " + vip.V4.String() + " drop", "is dropped by ip mangle explain"},
		{"ip", "nat", "type nat hook prerouting priority -110", "ip daddr " + vip.V4.String() + " tcp dport 80 dnat to " + elsewhere, "is translated before our rules, to " + elsewhere},
		{"ip", "raw", "type filter hook prerouting priority -300", "ip daddr " + vip.V4.String() + " notrack", "is not tracked"},
		{"ip6", "filter", "type filter hook forward priority 0", "ip6 daddr " + endpoint.V6.String() + " drop", "is dropped by ip6 filter explain"},
	} {
		t.Run(tt.want, func(t *testing.T) {
			e.nativeChain(t, tt.family, tt.table, tt.chain, tt.rule)
			q := e.fromClient(0)
			if tt.family == "ip6" {
				q.Source, q.To = e.Client.Addrs[0].V6, netip.AddrPortFrom(vip.V6, 80)
			}
			e.fails(t, q, e.Remote[2])
			e.explain(t, q.Source, q.To.String()).names(t, "does not work", 6, tt.want)
		})
	}
}

// nativeChain makes the chain explain of a table of nft, with a rule.
func (e *env) nativeChain(t *testing.T, family, table, head, rule string) {
	t.Helper()
	name := family + " " + table
	undo := "delete chain " + name + " explain"
	if _, err := e.Node.Run("nft", "list", "table", family, table); err != nil { // there is none yet
		undo = "delete table " + name
	}
	if err := nft(e.Node, fmt.Sprintf("table %s { chain explain { %s; %s\n}; }", name, head, rule)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nft(e.Node, undo); err != nil {
			t.Error(err)
		}
	})
}

// foreignRule puts a rule of another program before ours: into iptables at the top of a chain, or a table of nft.
func (e *env) foreignRule(t *testing.T, chain, xt, text string) {
	t.Helper()
	if e.mode.name != "nftables" {
		table, rule, _ := strings.Cut(xt, " ")
		built, rule, _ := strings.Cut(rule, " ")
		tool := "iptables-" + e.mode.variant + " -w -t " + table
		e.on(t, tool+" -I "+built+" 1 "+rule, tool+" -D "+built+" "+rule)
		return
	}
	head, rule, _ := strings.Cut(text, "; ")
	script := fmt.Sprintf("table inet explain { chain %s { %s; %s\n}; }", chain, head, rule)
	if err := nft(e.Node, script); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nft(e.Node, "delete table inet explain"); err != nil {
			t.Error(err)
		}
	})
}

func testExplainFamily(t *testing.T, e *env) {
	endpoints := slices.DeleteFunc(at(e.Local[0]), func(ep Endpoint) bool { return ep.Address.Is6() })
	e.apply(t, e.service(endpoints...))
	q := Question{From: e.Client, Source: e.Client.Addrs[0].V6, Protocol: source.TCP, To: netip.AddrPortFrom(e.vip(1).V6, 80)}
	e.fails(t, q, e.Local[0])
	e.explain(t, q.Source, q.To.String()).names(t, "refused", 3, "no IPv6 endpoint")
}

// Without a daemon the files say what there should be, and the kernel is looked at.
func testExplainAlone(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0])...))
	if err := e.daemon.Stop(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.daemon.Start(); err != nil {
			t.Error(err)
		}
	})
	for _, to := range []netip.Addr{e.vip(1).V4, e.vip(1).V6, e.loadBalancer(1).V4} {
		from := e.Client.Addrs[0].V4
		if to.Is6() {
			from = e.Client.Addrs[0].V6
		}
		if x := e.explain(t, from, netip.AddrPortFrom(to, 80).String()); !x.Works {
			t.Errorf("%s: %+v", to, x)
		}
	}
	if _, err := e.daemon.Command("cleanup"); err != nil {
		t.Fatal(err)
	}
	e.fails(t, e.fromClient(0), e.Local[0])
	e.explain(t, e.Client.Addrs[0].V4, e.to(80, source.TCP)).names(t, "does not work", 4, "of our objects are not in the kernel")
}
