package explain

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/ruleset"
	"svcproxy.dev/svcproxy/source"
)

// What endpoints answer themselves needs no forwarding, no masquerading and no way back, but a
// direct way there.
func TestAnsweringEndpoints(t *testing.T) {
	direct := source.Forwarding{Method: source.ForwardDirect}
	ipip := source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.IPIP}
	gue := source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.GUE, Port: 6080}
	routed := func(h *fakeHost) { h.via = addr("192.168.10.254") }
	drops := func(p func(*ruleset.Packet) bool) func(*fakeHost) {
		return func(h *fakeHost) {
			b := base("filter", "output", 0, ruleset.Verdict{})
			b.Chains["c"] = []ruleset.Rule{dropsWhere(p)}
			h.rules.Bases = []*ruleset.Base{b}
		}
	}
	const stopped = `does not work: is dropped by inet fw c, rule "a rule" (6)`
	for _, tt := range []struct {
		name, src string
		way       source.Forwarding
		change    func(*fakeHost)
		want      string
		says      string // a part of a line
	}{
		{name: "direct", way: direct, want: "works", says: "keeps its address: forward is direct, and endpoints answer the client themselves"},
		{name: "tunnel", way: gue, want: "works", says: "forward is tunnel gue 6080"},
		{name: "no forwarding", way: direct, change: func(h *fakeHost) { h.sysctls["net/ipv4/ip_forward"] = "0" }, want: "works"},
		{name: "no connection tracking by IPVS", way: direct, change: func(h *fakeHost) { h.sysctls["net/ipv4/vs/conntrack"] = "0" }, want: "works"},
		{name: "no way back", way: direct, change: func(h *fakeHost) { h.noRoute = []netip.Addr{addr(client)} }, want: "works",
			says: "endpoints answer the client by routes of their own"},
		{name: "behind a router", way: direct, change: routed,
			want: "does not work: the endpoint is behind the router 192.168.10.254, which sends packets to 10.96.0.10 back (5)"},
		{name: "a tunnel behind a router", way: ipip, change: routed, want: "works"},
		{name: "masqueraded behind a router", change: routed, want: "works"},
		{name: "this host asks", src: "192.168.10.1", way: direct, change: routed, want: "works", says: "masqueraded"},
		{name: "as it came", way: direct, want: stopped,
			change: drops(func(p *ruleset.Packet) bool { return p.Dst == addr("10.96.0.10") && p.DstPort == 80 && !p.DNAT })},
		{name: "in a tunnel", way: ipip, want: `works for 1 of 2 endpoints only: 192.168.10.12:80: is dropped by inet fw c, rule "a rule" (6)`,
			change: drops(func(p *ruleset.Packet) bool { return p.Dst == addr("192.168.10.12") && p.Protocol == unix.IPPROTO_IPIP })},
		{name: "in a tunnel over UDP", way: gue, want: stopped,
			change: drops(func(p *ruleset.Packet) bool { return p.Protocol == unix.IPPROTO_UDP && p.DstPort == 6080 })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, h := service(), &fakeHost{sysctls: map[string]string{}}
			s.Forward, s.Ports[0].TargetPort, s.Ports[0].NodePort = tt.way, 80, 0
			w := world(s)
			w.Mode, w.Balancing, w.Accepts = "ipvs", ipvs(true), true
			if tt.change != nil {
				tt.change(h)
			}
			if tt.src == "" {
				tt.src = client
			}
			r := ask(t, w, h, tt.src, "10.96.0.10:80", "")
			if r.Verdict != tt.want {
				t.Errorf("\n got: %s\nwant: %s", r.Verdict, tt.want)
			}
			var text strings.Builder
			if r.Write(&text); !strings.Contains(text.String(), tt.says) {
				t.Errorf("nothing says %q:\n%s", tt.says, text.String())
			}
			if masq := tt.src != client || tt.way == (source.Forwarding{}); r.Expected[0].Masquerade != masq {
				t.Errorf("masqueraded: %v, want %v", r.Expected[0].Masquerade, masq)
			}
		})
	}
	// Packets are masqueraded in every mode that has no other way, whatever a file says.
	s := service()
	s.Forward = direct
	if r := ask(t, world(s), &fakeHost{sysctls: map[string]string{}}, client, "10.96.0.10:80", ""); strings.Contains(r.Steps[1].Lines[1], "direct") {
		t.Errorf("in nftables mode: %q", r.Steps[1].Lines)
	}
}

// dropsWhere drops packets of a kind.
type dropsWhere func(*ruleset.Packet) bool

func (dropsWhere) String() string { return "a rule" }

func (d dropsWhere) Eval(p *ruleset.Packet) (ruleset.Match, ruleset.Verdict) {
	if d(p) {
		return ruleset.Yes, ruleset.Verdict{Kind: ruleset.Drop}
	}
	return ruleset.No, ruleset.Verdict{}
}
