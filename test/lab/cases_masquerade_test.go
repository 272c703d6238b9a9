//go:build netns

package lab

import (
	"fmt"
	"strings"
	"testing"
)

const localCIDRs = "local_cidrs = [\"10.4.0.0/16\", \"fd00:4::/64\"]\n"

var masqueradeGroups = []group{
	{
		name:  "masquerade auto, nobody local",
		cases: []testCase{{name: "sources", run: masquerades(masked, masked, masked)}, {name: "hairpin", run: testHairpin}},
	},
	{
		name:     "masquerade auto, local by address",
		settings: localCIDRs,
		cases:    []testCase{{name: "sources", run: masquerades(masked, kept, masked)}, {name: "hairpin", run: testHairpin}},
	},
	{
		name:     "masquerade auto, local by interface",
		settings: "local_interfaces = [\"local1\", \"local2\"]\n",
		cases:    []testCase{{name: "sources", run: masquerades(masked, kept, masked)}, {name: "hairpin", run: testHairpin}},
	},
	{
		name:     "masquerade all",
		settings: "masquerade = \"all\"\nmasquerade_bit = 20\n" + localCIDRs,
		cases:    []testCase{{name: "sources", run: masquerades(masked, masked, masked)}, {name: "hairpin", run: testHairpin}},
	},
	{
		name:     "masquerade never",
		settings: "masquerade = \"never\"\n",
		cases:    []testCase{{name: "sources", run: masquerades(kept, kept, kept)}, {name: "hairpin", run: testHairpin}},
	},
	{
		name:     "masquerade never, local by address",
		settings: "masquerade = \"never\"\n" + localCIDRs,
		cases:    []testCase{{name: "sources", run: masquerades(kept, kept, kept)}, {name: "hairpin", run: testHairpin}},
	},
	{
		name: "marks of others",
		cases: []testCase{
			{name: "WireGuard", run: othersMark(0xca6c)},
			{name: "Mullvad", run: othersMark(0x6d6f6c65)},
			{name: "none leaves with ours", run: testOwnMark},
		},
	},
}

func kept(w want) want   { return w.keeping() }
func masked(w want) want { return w.masked() }

// strayAddr is an address of node that routing would not choose: what endpoints
// see when a host process that uses it is not masqueraded.
var strayAddr = dual(9, 9)

// masquerades returns a case that says whose source address endpoints of a VIP
// see, when the client, a local endpoint, and a host process ask.
func masquerades(client, endpoint, process func(want) want) func(*testing.T, *env) {
	return func(t *testing.T, e *env) {
		e.carry(t, "lo", strayAddr)
		s := e.everywhere(at(e.Local[0], e.Remote[0])...)
		e.apply(t, s)
		both := by(e.Local[0], e.Remote[0])
		e.expect(t,
			check{from: e.Client, to: e.vip(1), want: client(both)},
			check{from: e.Local[1], to: e.vip(1), want: endpoint(both)},
			check{from: e.Node, source: strayAddr, to: e.vip(1), want: process(both)},
			check{from: e.Client, to: e.Local[0].Addr(), port: 8080, want: by(e.Local[0]).keeping()}, // not our traffic
		)
		e.expect(t, e.outsideAddresses(e.Client, both.masked())...)
		e.expect(t, e.outsideAddresses(e.Local[1], both.masked())...)
		e.expect(t, check{from: e.Node, source: strayAddr, to: e.external(1), want: both.masked()})

		s.ExternalTrafficPolicy = "local"
		e.apply(t, s)
		e.expect(t, e.outsideAddresses(e.Client, by(e.Local[0]).keeping())...)
		e.expect(t,
			check{from: e.Client, to: e.vip(1), want: client(both)},
			check{from: e.Node, source: strayAddr, to: e.external(1), want: both.masked()},
		)
	}
}

// testHairpin: an endpoint that reaches itself sees an address of node, whatever the settings.
func testHairpin(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0])...)
	e.apply(t, s)
	e.expect(t, e.everyAddress(e.Local[0], by(e.Local[0]).masked())...)

	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	e.expect(t, e.everyAddress(e.Local[0], by(e.Local[0]).masked())...)

	s.Endpoints = at(e.Remote[0])
	s.ExternalTrafficPolicy = "cluster"
	e.apply(t, s)
	e.expect(t, e.everyAddress(e.Remote[0], by(e.Remote[0]).masked())...)
}

// othersMark returns a case in which another program marks all packets, and the mark has our bit:
// what goes to no service keeps its source and the mark, and services work as ever.
func othersMark(mark uint32) func(*testing.T, *env) {
	return func(t *testing.T, e *env) {
		e.carry(t, "lo", strayAddr)
		e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
		e.markAll(t, mark)
		both := by(e.Local[0], e.Remote[0])
		e.expect(t,
			check{from: e.Client, to: e.Local[0].Addr(), port: 8080, want: by(e.Local[0]).keeping()},
			check{from: e.Node, source: strayAddr, to: e.Local[0].Addr(), port: 8080, want: by(e.Local[0]).keeping()},
		)
		out, err := e.Node.Run("nft", "list", "counters", "table", "inet", "marks")
		if err != nil || strings.Contains(out, "packets 0 ") || strings.Count(out, "packets") != 2 {
			t.Errorf("packets that left with their mark: %v\n%s", err, out)
		}
		e.expect(t, check{from: e.Client, to: e.vip(1), want: both.masked()}, check{from: e.Node, source: strayAddr, to: e.vip(1), want: both.masked()})
		e.expect(t, e.outsideAddresses(e.Client, both.masked())...)
		e.expect(t, e.everyAddress(e.Local[0], both.masked())...)
	}
}

// markAll marks what node forwards and sends while the case lasts, and counts first packets to
// endpoints themselves that leave with the mark.
func (e *env) markAll(t *testing.T, mark uint32) {
	t.Helper()
	e.marks(t, fmt.Sprintf(`
	counter ipv4 { }
	counter ipv6 { }
	chain forwarded { type filter hook prerouting priority mangle; meta mark set %[1]d; }
	chain sent { type route hook output priority mangle; meta mark set %[1]d; }
	chain left {
		type filter hook postrouting priority 300
		ct state new ct status ! dnat meta mark %[1]d tcp dport 8080 meta nfproto ipv4 counter name ipv4
		ct state new ct status ! dnat meta mark %[1]d tcp dport 8080 meta nfproto ipv6 counter name ipv6
	}`, mark))
}

// testOwnMark: a packet that is masqueraded has lost our bit of its mark when it leaves, for a
// tunnel would copy the mark to its outer packet, which would then be taken for one of ours.
func testOwnMark(t *testing.T, e *env) {
	e.carry(t, "lo", strayAddr)
	e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
	e.marks(t, fmt.Sprintf(`
	counter cleared { }
	counter with { }
	chain left {
		type filter hook postrouting priority 300
		tcp flags & (syn | ack) == syn tcp dport 8080 meta mark & %[1]d == 0 counter name cleared
		tcp dport 8080 meta mark & %[1]d != 0 counter name with
	}`, 1<<14)) // masquerade_bit, as no setting says otherwise
	both := by(e.Local[0], e.Remote[0])
	e.expect(t, check{from: e.Client, to: e.vip(1), want: both.masked()}, check{from: e.Node, source: strayAddr, to: e.vip(1), want: both.masked()})
	e.expect(t, e.outsideAddresses(e.Client, both.masked())...)
	e.expect(t, e.everyAddress(e.Local[0], both.masked())...)
	cleared, err := e.Node.Run("nft", "list", "counter", "inet", "marks", "cleared")
	if err != nil || !strings.Contains(cleared, "packets") || strings.Contains(cleared, "packets 0 ") {
		t.Errorf("first packets that left without our bit: %v\n%s", err, cleared)
	}
	with, err := e.Node.Run("nft", "list", "counter", "inet", "marks", "with")
	if err != nil || !strings.Contains(with, "packets 0 ") {
		t.Errorf("packets that left with our bit: %v\n%s", err, with)
	}
}

// marks adds a table of another program while the case lasts.
func (e *env) marks(t *testing.T, chains string) {
	t.Helper()
	if err := nft(e.Node, "table inet marks {"+chains+"\n}"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nft(e.Node, "delete table inet marks"); err != nil {
			t.Error(err)
		}
	})
}
