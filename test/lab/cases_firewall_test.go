//go:build netns

package lab

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

var firewallGroups = []group{
	{
		name: "source ranges",
		cases: []testCase{
			{name: "source ranges", run: testSourceRanges},
			{name: "source ranges of the node", run: testNodeSourceRanges},
			{name: "source ranges without endpoints", run: testSourceRangesNoEndpoints},
		},
	},
	{
		name:     "firewall",
		settings: "[sync]\nresync_interval = \"1s\"\n", // when a policy that changes is noticed
		cases: []testCase{
			{name: "drop policy of forward", run: testForwardDrop},
			{name: "before an answer", run: testBeforeAnswer},
			{name: "translations of others", run: testForeignDropped},
			{name: "another bit", run: testAnotherBit},
			{name: "another mode before", run: testAnotherModeBefore, except: []string{"ipvs"}}, // as iptables mode, in the same code
			{name: "reject at the end of forward", run: testForwardReject},
			{name: "rules that iptables cannot print", run: testUnprintable},
			// Packets to services do not pass FORWARD in ipvs mode, their answers do.
			{name: "chain of the user", run: testUserChain, except: []string{"ipvs"}},
			{name: "rules inserted again and again", run: testFight}, // the last: rules are left in front then
		},
		except: []string{"nftables"}, // no table can overrule another
	},
	{
		name:     "order of rules",
		settings: "[sync]\nresync_interval = \"1h\"\n", // what is noticed is not noticed by a resync
		cases:    []testCase{{name: "rules inserted in front", run: testInFront}},
		except:   []string{"nftables"},
	},
}

func testSourceRanges(t *testing.T, e *env) {
	inside, outside := e.Client.Addrs[0], e.Client.Addrs[1]
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	s.LoadBalancerSourceRanges = prefixes(inside)
	e.apply(t, s)
	both := by(e.Local[0], e.Remote[0])
	e.expect(t,
		check{from: e.Client, source: inside, to: e.loadBalancer(1), want: both},
		check{from: e.Client, source: outside, to: e.loadBalancer(1), want: dropped},
		check{from: e.Local[2], to: e.loadBalancer(1), want: dropped},
		check{from: e.Node, to: e.loadBalancer(1), want: dropped},
		check{from: e.Client, source: outside, to: e.external(1), want: both},
		check{from: e.Client, source: outside, to: e.vip(1), want: both},
		check{from: e.Client, source: outside, to: UplinkAddr, port: e.nodePort(), want: both},
	)

	s.LoadBalancerSourceRanges = s.LoadBalancerSourceRanges[:1] // IPv4 only
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, source: inside, to: Dual{V4: e.loadBalancer(1).V4}, want: both},
		check{from: e.Client, source: inside, to: Dual{V6: e.loadBalancer(1).V6}, want: dropped},
	)

	s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, source: outside, to: e.loadBalancer(1), want: both},
		check{from: e.Node, to: e.loadBalancer(1), want: both},
	)

	s.LoadBalancerSourceRanges = nil
	e.apply(t, s)
	e.expect(t, check{from: e.Client, source: outside, to: e.loadBalancer(1), want: both})
}

// prefixes returns ranges of one address each.
func prefixes(d Dual) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(d.V4, 32), netip.PrefixFrom(d.V6, 128)}
}

// testNodeSourceRanges: a range with an address of the node lets the node in by
// all of its addresses, and by the load-balancer address, which it carries.
func testNodeSourceRanges(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0])...)
	s.LoadBalancerSourceRanges = prefixes(FrontAddr)
	e.apply(t, s)
	e.carry(t, "lo", e.loadBalancer(1))
	e.expect(t,
		check{from: e.Node, source: FrontAddr, to: e.loadBalancer(1), want: by(e.Local[0])},
		check{from: e.Node, source: UplinkAddr, to: e.loadBalancer(1), want: by(e.Local[0])},
		check{from: e.Node, source: e.loadBalancer(1), to: e.loadBalancer(1), want: by(e.Local[0])},
		check{from: e.Node, to: e.loadBalancer(1), want: by(e.Local[0])},
		check{from: e.Client, to: e.loadBalancer(1), want: dropped},
		check{from: e.Local[2], to: e.loadBalancer(1), want: dropped},
	)
}

func testSourceRangesNoEndpoints(t *testing.T, e *env) {
	s := e.everywhere()
	s.LoadBalancerSourceRanges = prefixes(e.Client.Addrs[0])
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, source: e.Client.Addrs[0], to: e.loadBalancer(1), want: refused},
		check{from: e.Client, source: e.Client.Addrs[1], to: e.loadBalancer(1), want: dropped},
		check{from: e.Client, source: e.Client.Addrs[1], to: e.external(1), want: refused},
	)
}

// testForwardDrop: a firewall that forwards nothing does not stop our own traffic, and we open nothing else.
func testForwardDrop(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	e.forwardDrops(t)
	e.expect(t, e.everyAddress(e.Client, by(e.Local[0], e.Remote[0]))...)
	e.expect(t,
		check{from: e.Local[2], to: e.vip(1), want: by(e.Local[0], e.Remote[0])},
		check{from: e.Client, to: e.Local[0].Addr(), port: 8080, want: dropped},
		check{from: e.Client, to: e.external(2), want: dropped},
	)
	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	e.expect(t, e.outsideAddresses(e.Client, by(e.Local[0]).keeping())...)

	// Established connections go on when their endpoint has left, masqueraded or not.
	conns := append(e.connections(t, e.Client, e.vip(1), 80), e.connections(t, e.Client, e.external(1), 80)...)
	for _, endpoints := range [][]Endpoint{with(weight(0), e.Local[0], e.Remote[0]), at(e.Remote[1])} {
		s.Endpoints = endpoints
		e.apply(t, s)
		e.goOn(t, "whose endpoint is at rest or has left", conns)
	}
}

// forwardDrops makes DROP the policy of FORWARD while the case lasts.
func (e *env) forwardDrops(t *testing.T) {
	t.Helper()
	if err := setForwardPolicy(e.Node, e.mode.variant, "DROP"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := setForwardPolicy(e.Node, e.mode.variant, "ACCEPT"); err != nil {
			t.Error(err)
		}
	})
}

// firewall runs iptables and ip6tables on node, with one more argument each.
func (e *env) firewall(words string, last ...string) error {
	for i, f := range foreigns {
		args := append([]string{"-w"}, strings.Fields(words)...)
		if len(last) > 0 {
			args = append(args, last[i])
		}
		if _, err := e.Node.Run(f.tool+e.mode.variant, args...); err != nil {
			return err
		}
	}
	return nil
}

// mustFirewall does something to the rules of node, and undoes it with the case.
func (e *env) mustFirewall(t *testing.T, do, undo string, last ...string) {
	t.Helper()
	if err := e.firewall(do, last...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.firewall(undo, last...); err != nil {
			t.Error(err)
		}
	})
}

// testBeforeAnswer: what follows on a connection before its first answer is not
// dropped, masqueraded or not: a second question from a socket, a SYN that is
// sent again, packets to a host that never answers.
func testBeforeAnswer(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0])...)
	s.Ports = append(s.Ports, Port{Name: "sink", Protocol: "udp", Port: 90, TargetPort: sinkPort})
	e.apply(t, s)
	e.forwardDrops(t)
	e.daemonLooks(t)
	e.followUps(t, e.vip(1).Each())
	s.ExternalTrafficPolicy = "local" // external addresses keep the client's
	e.apply(t, s)
	e.followUps(t, e.external(1).Each())
}

func (e *env) followUps(t *testing.T, addrs []netip.Addr) {
	t.Helper()
	for _, addr := range addrs {
		e.askPairs(t, netip.AddrPortFrom(addr, 80))
	}
	e.oneWay(t, e.Local[0], addrs)
	e.resendSYN(t, e.Local[0], addrs)
}

// askPairs asks twice from one socket before either is answered, as a resolver
// asks for A and AAAA.
func (e *env) askPairs(t *testing.T, to netip.AddrPort) {
	t.Helper()
	const pairs = 20
	var wg sync.WaitGroup
	answered := make([]int, pairs)
	for i := range pairs {
		wg.Go(func() { answered[i] = e.askPair(t, to) })
	}
	wg.Wait()
	for _, n := range answered {
		if n != 2 {
			t.Errorf("two questions from one socket to %s: answers of %d pairs: %v, want 2 of each", to, pairs, answered)
			return
		}
	}
}

// askPair returns how many of two questions from one socket are answered.
func (e *env) askPair(t *testing.T, to netip.AddrPort) (answers int) {
	flow, err := NewFlow(Question{From: e.Client, Protocol: source.UDP, To: to}, 0)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer flow.Close()
	for range 2 {
		fmt.Fprintf(flow, lateRequest+"%d\n", 100*time.Millisecond, nonces.Add(1))
	}
	flow.SetReadDeadline(time.Now().Add(expectPatience))
	for buf := make([]byte, 2048); answers < 2; answers++ {
		if _, err := flow.Read(buf); err != nil {
			break
		}
	}
	return answers
}

const sinkPort = 8099 // of a socket that answers nothing

// oneWay sends packets to an endpoint that takes them in and answers none.
func (e *env) oneWay(t *testing.T, endpoint *Host, addrs []netip.Addr) {
	t.Helper()
	var sink *net.UDPConn
	err := endpoint.Do(func() (err error) {
		sink, err = net.ListenUDP("udp", &net.UDPAddr{Port: sinkPort})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	for _, addr := range addrs {
		flow, err := NewFlow(Question{From: e.Client, Protocol: source.UDP, To: netip.AddrPortFrom(addr, 90)}, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer flow.Close()
		buf := make([]byte, 8)
		for i := range 5 {
			fmt.Fprint(flow, i)
			sink.SetReadDeadline(time.Now().Add(expectPatience))
			if _, err := sink.Read(buf); err != nil {
				t.Errorf("packet %d to %s, which answers nothing: %v", i, addr, err)
				break
			}
		}
	}
}

// resendSYN lets the endpoint lose the first SYN of connections. The kernel sends another after 1 s.
func (e *env) resendSYN(t *testing.T, endpoint *Host, addrs []netip.Addr) {
	t.Helper()
	lose := func(command string) {
		t.Helper()
		for _, tool := range []string{"iptables", "ip6tables"} {
			if _, err := endpoint.Run(tool, "-w", command, "INPUT", "-p", "tcp", "--dport", "8080", "-j", "DROP"); err != nil {
				t.Fatal(err)
			}
		}
	}
	lose("-A")
	var wg sync.WaitGroup
	for _, addr := range addrs {
		wg.Go(func() {
			q := Question{From: e.Client, Protocol: source.TCP, To: netip.AddrPortFrom(addr, 80), Patience: 4 * expectPatience}
			conn, got := Connect(q)
			if conn == nil {
				t.Errorf("%s, whose first SYN was lost: %s", q, got)
				return
			}
			if !got.Resent {
				t.Errorf("%s, whose first SYN was lost, was not sent again: %s", q, got)
			}
			conn.Close()
		})
	}
	time.Sleep(500 * time.Millisecond)
	lose("-D")
	wg.Wait()
}

// testForeignDropped: what other programs translate passes FORWARD by rules of theirs, or not at all.
func testForeignDropped(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
	var flows []*Flow
	for _, addr := range foreignAddr.Each() {
		flow, err := NewFlow(Question{From: e.Client, Protocol: source.UDP, To: netip.AddrPortFrom(addr, 80)}, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer flow.Close()
		for range 2 { // an established flow
			if got := flow.Ask(); got.By != e.Local[2].Role {
				t.Fatalf("before: %s, want an answer by %s", got, e.Local[2].Role)
			}
		}
		flows = append(flows, flow)
	}
	e.forwardDrops(t)
	e.daemonLooks(t)
	e.expect(t, check{from: e.Client, to: foreignAddr, protocols: []source.Protocol{source.UDP}, want: dropped})
	for _, flow := range flows {
		if got := flow.Ask(); got.Outcome != Dropped {
			t.Errorf("an established flow to %s: %s, want dropped", flow.question.To, got)
		}
	}
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0], e.Remote[0])})
}

// testAnotherBit: connections go on when those after them get another mark.
func testAnotherBit(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	e.forwardDrops(t)
	conns := append(e.connections(t, e.Client, e.vip(1), 80), e.connections(t, e.Client, e.external(1), 80)...)
	conns = append(conns, e.connections(t, e.Client, UplinkAddr, e.nodePort())...)
	e.goOn(t, "before", conns)
	for _, settings := range []string{"masquerade_bit = 15\n" + e.settings, e.settings} {
		if err := errors.Join(e.daemon.Stop(), e.daemon.Settings(settings), e.daemon.Start()); err != nil {
			t.Fatal(err)
		}
		e.goOn(t, "after a change of the bit", conns)
		e.expect(t, check{from: e.Client, to: foreignAddr, protocols: []source.Protocol{source.UDP}, want: dropped})
	}
}

// testAnotherModeBefore: connections that began in nftables mode go on under a policy of drop in this one.
func testAnotherModeBefore(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	if err := errors.Join(e.daemon.Settings(e.inMode("nftables")), e.becomes(e.mode.name, "nftables")); err != nil {
		t.Fatal(err)
	}
	conns := append(e.connections(t, e.Client, e.vip(1), 80), e.connections(t, e.Client, e.external(1), 80)...)
	conns = append(conns, e.connections(t, e.Client, UplinkAddr, e.nodePort())...)
	if err := errors.Join(e.daemon.Settings(e.settings), e.becomes("nftables", e.mode.name)); err != nil {
		t.Fatal(err)
	}
	e.forwardDrops(t)
	e.goOn(t, "of another mode", conns)
	e.expect(t, check{from: e.Client, to: foreignAddr, protocols: []source.Protocol{source.UDP}, want: dropped})
}

// daemonLooks waits until the daemon has looked at the kernel: it puts back a jump
// that another process takes away.
func (e *env) daemonLooks(t *testing.T) {
	t.Helper()
	if err := e.firewall("-D FORWARD -j SVCP-FORWARD"); err != nil {
		t.Fatal(err)
	}
	if err := pace.Poll(expectPatience, func() error { return e.firewall("-C FORWARD -j SVCP-FORWARD") }); err != nil {
		t.Fatal(err)
	}
}

// testForwardReject: a firewall that ends in a rule that rejects, under a policy of
// ACCEPT, does not stop our own traffic, and we open nothing else.
func testForwardReject(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	e.mustFirewall(t, "-A FORWARD -j REJECT", "-D FORWARD -j REJECT")
	e.expect(t, e.everyAddress(e.Client, by(e.Local[0], e.Remote[0]))...)
	e.expect(t,
		check{from: e.Local[2], to: e.vip(1), want: by(e.Local[0], e.Remote[0])},
		check{from: e.Client, to: Dual{V4: e.Local[0].Addr().V4}, port: 8080, want: refused},
	)
	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	e.expect(t, e.outsideAddresses(e.Client, by(e.Local[0]).keeping())...)
}

// testUnprintable: services are served, changed and removed beside rules that the programs
// of iptables cannot print, at a start too.
func testUnprintable(t *testing.T, e *env) {
	if e.mode.variant == "legacy" {
		return // its tables have no rules of nft
	}
	e.apply(t, e.service(at(e.Local[0])...))
	for _, chain := range []string{"ip filter INPUT", "ip nat OUTPUT", "ip6 filter INPUT", "ip6 nat OUTPUT"} {
		e.unprintableRule(t, chain)
	}
	e.apply(t, e.service(at(e.Remote[0])...))
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[0])})
	e.daemonLooks(t)
	err := pace.Poll(expectPatience, func() error { // a repair may be under way
		_, err := e.daemon.Command("plan")
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, stop := range []func() error{
		e.daemon.Stop,
		e.daemon.Kill,
		func() error {
			if err := e.daemon.Stop(); err != nil {
				return err
			}
			_, err := e.daemon.Command("cleanup")
			return err
		},
	} {
		if err := errors.Join(stop(), e.daemon.Start()); err != nil {
			t.Fatal(err)
		}
		e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[0])}, check{from: e.Node, to: e.vip(1), want: by(e.Remote[0])})
	}
}

// unprintableRule adds a rule to a chain, for the time of the case.
func (e *env) unprintableRule(t *testing.T, chain string) {
	t.Helper()
	if _, err := e.Node.Run("nft", "add rule "+chain+" ct state vmap { established : accept, invalid : drop }"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		remove := fmt.Sprintf("nft delete rule %s handle $(nft -a list chain %s | sed -n 's/.* vmap .*# handle //p')", chain, chain)
		if _, err := e.Node.Run("sh", "-c", remove); err != nil {
			t.Error(err)
		}
	})
}

// testInFront: rules that drop or pass over services, and that others insert in front of
// ours, do not stop them for longer than until svcproxy hears of them, or a start, and status
// names them. For other traffic they hold.
func testInFront(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	served := e.everyAddress(e.Client, by(e.Local[0], e.Remote[0]))
	e.expect(t, served...)
	for _, chain := range []string{"filter FORWARD -j DROP", "nat PREROUTING -j RETURN", "nat POSTROUTING -j RETURN"} {
		table, rule, _ := strings.Cut(chain, " ")
		e.mustFirewall(t, "-t "+table+" -I "+rule, "-t "+table+" -D "+rule)
	}
	e.oursFirst(t, "inserted beside the daemon")
	e.expect(t, served...)
	e.expect(t, check{from: e.Client, to: e.Local[0].Addr(), port: 8080, want: dropped})
	status, err := e.daemon.Command("status")
	if want := `svcproxy's rules were moved before "-j DROP"`; err != nil || !strings.Contains(status, want) {
		t.Errorf("status: error %v, want %q in\n%s", err, want, status)
	}
	if err := e.daemon.Stop(); err != nil {
		t.Fatal(err)
	}
	e.mustFirewall(t, "-I FORWARD -j REJECT", "-D FORWARD -j REJECT")
	if err := e.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	e.oursFirst(t, "inserted before a start")
	e.expect(t, served...)
}

// overtakePatience is how long a rule in front of ours may stop services. The legacy variant has no
// events, and reads its rules at most once in 5 s.
var overtakePatience = 2 * expectPatience

// oursFirst waits until the first rules of FORWARD are ours.
func (e *env) oursFirst(t *testing.T, when string) {
	t.Helper()
	for _, f := range foreigns {
		err := pace.Poll(overtakePatience, func() error {
			rules, err := e.Node.Run(f.tool+e.mode.variant, "-w", "-S", "FORWARD")
			lines := strings.Split(rules, "\n")
			if err == nil && (len(lines) < 3 || !strings.Contains(lines[1], "SVCP-") || !strings.Contains(lines[2], "SVCP-")) {
				err = fmt.Errorf("%s: FORWARD has other rules first:\n%s", when, rules)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// testFight: a program that puts its rule in front of ours again and again has it left there, for a
// while, after a few moves. Status names the rule, and says until when.
func testFight(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	before := e.moves()
	e.mustFirewall(t, "-I FORWARD -j DROP", "-D FORWARD -j DROP")
	again := func() error {
		return errors.Join(e.firewall("-D FORWARD -j DROP"), e.firewall("-I FORWARD -j DROP"))
	}
	left := regexp.MustCompile(`ip6?tables-\w+ filter FORWARD: another program keeps putting rules before svcproxy's, which may stop services: "-j DROP"; they are passed again at \d\d:\d\d:\d\d`)
	err := pace.Poll(Slow(time.Minute), func() error {
		status, err := e.daemon.Command("status")
		if err == nil && len(left.FindAllString(status, -1)) < len(foreigns) {
			err = cmp.Or(again(), fmt.Errorf("status does not say of each family %q:\n%s", left, status))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	moves := e.moves() - before
	if most := 3 * len(foreigns); moves > most {
		t.Errorf("%d moves, want at most %d", moves, most)
	}
	for range 3 {
		time.Sleep(time.Second) // between two looks after events
		if err := again(); err != nil {
			t.Fatal(err)
		}
	}
	if more := e.moves() - before - moves; more > 0 {
		t.Errorf("%d moves more while rules are left in front", more)
	}
	for _, f := range foreigns {
		rules, err := e.Node.Run(f.tool+e.mode.variant, "-w", "-S", "FORWARD")
		if err != nil || !strings.HasPrefix(rules, "-P FORWARD ACCEPT\n-A FORWARD -j DROP\n") {
			t.Errorf("error %v, want the other rule first:\n%s", err, rules)
		}
	}
}

// moves returns how often the log says that jumps were moved.
func (e *env) moves() int {
	return strings.Count(e.daemon.LogTail(math.MaxInt), "moved the jumps to our chains before foreign rules")
}

// testUserChain: whom Docker's chain for rules of the admin drops, we do not let
// pass, whether Docker started before us or after.
func testUserChain(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0])...)
	e.apply(t, s)
	e.forwardDrops(t) // as Docker has it
	out, in := e.Client.Addrs[0], e.Client.Addrs[1]
	e.mustFirewall(t, "-N DOCKER-USER", "-X DOCKER-USER")
	e.mustFirewall(t, "-A DOCKER-USER -j DROP -s", "-D DOCKER-USER -j DROP -s", out.V4.String(), out.V6.String())
	e.mustFirewall(t, "-I FORWARD -j DOCKER-USER", "-D FORWARD -j DOCKER-USER") // as Docker does
	verify := func() {
		t.Helper()
		e.expect(t,
			check{from: e.Client, source: out, to: e.vip(1), want: dropped},
			check{from: e.Client, source: out, to: e.external(1), want: dropped},
			check{from: e.Client, source: in, to: e.vip(1), want: by(e.Local[0])},
		)
	}
	verify()
	for _, stop := range []func() error{e.daemon.Stop, e.daemon.Kill} {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if err := deleteJumps(e.Node, e.mode.variant); err != nil {
			t.Fatal(err)
		}
		if err := e.daemon.Start(); err != nil {
			t.Fatal(err)
		}
		verify()
	}
	if err := e.firewall("-D FORWARD -j DOCKER-USER"); err != nil {
		t.Fatal(err)
	}
	if err := e.firewall("-A FORWARD -j DOCKER-USER"); err != nil {
		t.Fatal(err)
	}
	verify()
}
