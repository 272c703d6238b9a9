//go:build netns

package lab

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

var loopGroups = []group{{
	name:     "routing loops",
	settings: "service_cidrs = [\"10.96.0.0/16\", \"fd00:96::/64\"]\n",
	cases: []testCase{
		{name: "announced addresses", run: testAnnouncedOnce},
		{name: "service_cidrs", run: testServiceCIDRsOnce},
	},
}}

// A stray is a packet that is of no connection, and how to send it.
type stray struct {
	name string
	send func(f *Forger, from, to netip.AddrPort) error
}

var strays = []stray{
	{"RST", func(f *Forger, from, to netip.AddrPort) error { return f.Segment(from, to, flagRST) }},
	{"SYN and ACK", func(f *Forger, from, to netip.AddrPort) error { return f.Segment(from, to, flagSYN|flagACK) }},
	{"ICMP error", (*Forger).Unreachable},
}

// testAnnouncedOnce: the router sends external and load-balancer addresses to node, and node would send them back.
// What the service does not serve there is refused, and strays are dropped, at the first pass.
func testAnnouncedOnce(t *testing.T, e *env) {
	s := e.service(at(e.Local[0])...)
	s.VIPs, s.ExternalIPs, s.LoadBalancerIPs = nil, e.external(1).Each(), e.loadBalancer(1).Each()
	outside := []Dual{e.external(1), e.loadBalancer(1)}
	for _, to := range outside {
		e.sendBack(t, to)
	}
	if e.mode.name != "ipvs" { // there the addresses are bound to node
		e.apply(t, s)
		for _, to := range outside {
			if n := e.passes(t, func() { e.ask(to.V4, 81) }, to); n < 2 {
				t.Errorf("a packet to %s, which is not announced, passes the router %d times: there is no loop", to.V4, n)
			}
		}
	}
	s.Announce = []string{"bgp"}
	e.apply(t, s)
	for _, to := range outside {
		e.expect(t, check{from: e.Client, to: to, want: by(e.Local[0])}, check{from: e.Client, to: to, port: 81, want: refused})
		e.passOnce(t, to)
	}
}

// testServiceCIDRsOnce: the same holds for addresses of service_cidrs, also those of no service.
func testServiceCIDRsOnce(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	for _, to := range []Dual{e.vip(1), e.vip(2)} {
		e.sendBack(t, to)
		e.passOnce(t, to)
	}
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0])}, check{from: e.Client, to: e.vip(2), want: refused})
}

// sendBack makes node route an address to the router, which routes it to node.
func (e *env) sendBack(t *testing.T, to Dual) {
	t.Helper()
	for i, addr := range to.Each() {
		via := e.Router.Addrs[1].Each()[i].String()
		if _, err := e.Node.Run("ip", "route", "add", addr.String(), "via", via); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := e.Node.Run("ip", "route", "del", addr.String(), "via", via); err != nil {
				t.Error(err)
			}
		})
	}
}

// passOnce sends all kinds of packets that no endpoint takes, by each family, each of which passes the router once.
func (e *env) passOnce(t *testing.T, to Dual) {
	t.Helper()
	f, err := NewForger(e.Client)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	once := func(what string, send func(from, to netip.Addr)) {
		n := e.passes(t, func() {
			for i, addr := range to.Each() {
				send(e.Client.Addr().Each()[i], addr)
			}
		}, to)
		if n < 2 || n > 4 { // a datagram is sent again where nobody answers in time; in a loop each passes dozens of times
			t.Errorf("%s to %s and %s pass the router %d times, want once each", what, to.V4, to.V6, n)
		}
	}
	once("datagrams", func(_, to netip.Addr) { e.ask(to, 81) })
	for _, stray := range strays {
		once(stray.name, func(from, to netip.Addr) {
			if err := stray.send(f, netip.AddrPortFrom(from, 4999), netip.AddrPortFrom(to, 80)); err != nil {
				t.Error(err)
			}
		})
	}
}

// ask sends one datagram.
func (e *env) ask(to netip.Addr, port uint16) {
	Ask(Question{From: e.Client, Protocol: source.UDP, To: netip.AddrPortFrom(to, port), Patience: 200 * time.Millisecond})
}

var passed = regexp.MustCompile(`packets (\d+) `)

// passes returns how often packets to an address pass the router after send, when no more come.
func (e *env) passes(t *testing.T, send func(), to Dual) (n int) {
	t.Helper()
	table := fmt.Sprintf("table inet passes { chain c { type filter hook forward priority 0; ip daddr %s counter; ip6 daddr %s counter; }; }", to.V4, to.V6)
	if err := nft(e.Router, table); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := nft(e.Router, "delete table inet passes"); err != nil {
			t.Error(err)
		}
	}()
	send()
	err := pace.Poll(expectPatience, func() error {
		before := n
		time.Sleep(50 * time.Millisecond)
		var err error
		if n, err = e.passesUntilNow(); err == nil && (n == 0 || n != before) {
			err = fmt.Errorf("%d packets to %s passed the router", n, to.V4)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return n
}

func (e *env) passesUntilNow() (sum int, err error) {
	out, err := e.Router.Run("nft", "list", "table", "inet", "passes")
	for _, found := range passed.FindAllStringSubmatch(out, -1) {
		n, _ := strconv.Atoi(found[1])
		sum += n
	}
	return sum, err
}
