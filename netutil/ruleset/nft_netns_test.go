//go:build netns

package ruleset

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/netutil/netnstest"
)

func run(t *testing.T, input string, command ...string) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// walkAll returns what all chains of a hook do with a packet.
func walkAll(rs *Ruleset, hook string, p Packet) string {
	var b strings.Builder
	for _, base := range rs.Bases {
		if base.Hook == hook {
			list, _ := base.Walk(p, nil)
			b.WriteString(hits(list))
		}
	}
	return b.String()
}

func TestRulesOfNFT(t *testing.T) {
	netnstest.Enter(t)
	tests := []struct {
		rule string // of a chain with hook forward
		want string // how its text and verdict go on
	}{
		{"drop", "drop: drops sure=true"},
		{"ip daddr 10.0.0.1 tcp dport 80 reject", "ip daddr 10.0.0.1 tcp dport 80 reject: rejects sure=true"},
		{"ip daddr 10.0.0.2 drop", ""},
		{"ip daddr != 10.0.0.2 drop", "ip daddr != 10.0.0.2 drop: drops sure=true"},
		{"ip daddr 10.0.0.0/8 drop", "ip daddr 10.0.0.0/8 drop: drops sure=true"},
		{"ip daddr 10.0.0.0/9 drop", "ip daddr 10.0.0.0/9 drop: drops sure=true"},
		{"ip daddr 10.128.0.0/9 drop", ""},
		{"ip6 daddr fd00::1 drop", ""},
		{"ip daddr { 10.0.0.1, 10.0.0.3 } drop", "ip daddr @__set0 drop: drops sure=true"},
		{"ip daddr { 10.0.0.2, 10.0.0.3 } drop", ""},
		{"ip daddr { 10.0.0.0/24, 10.2.0.0-10.2.0.9 } drop", "ip daddr @__set0 drop: drops sure=true"},
		{"ip daddr { 10.0.1.0/24, 10.2.0.0-10.2.0.9 } drop", ""},
		{"ip saddr . tcp dport { 192.0.2.9 . 80 } drop", "drops sure=true"},
		{"ip saddr . tcp dport { 192.0.2.9 . 81 } drop", ""},
		{"tcp dport 79-81 drop", "drops sure=true"},
		{"tcp dport != 81-90 drop", "tcp dport != 81-90 drop: drops sure=true"},
		{"tcp sport 7 tcp dport 80 drop", "drops sure=false"},
		{"tcp dport > 80 drop", ""},
		{"tcp dport >= 80 drop", "drops sure=true"},
		{"udp dport 80 drop", ""},
		{"tcp sport 1024 drop", "drops sure=false"},
		{"iifname \"eth1\" drop", "meta iifname \"eth1\" drop: drops sure=true"},
		{"iifname \"eth*\" drop", "drops sure=true"},
		{"iifname \"wlan*\" drop", ""},
		{"oifname \"eth2\" drop", "drops sure=false"},
		{"ct state new drop", "ct state new drop: drops sure=true"},
		{"ct state established,related drop", ""},
		{"ct state { established, related } drop", ""},
		{"ct state vmap { established : accept, new : drop }", "drops sure=true"},
		{"ct status dnat drop", "drops sure=true"},
		{"ct status dnat accept; drop", ""},
		{"meta mark 0x1 drop", ""},
		{"meta mark & 0x4000 == 0x4000 drop", "drops sure=true"},
		{"meta mark set 0x7; meta mark 0x7 drop", "drops sure=false"},
		{"fib daddr type local drop", ""},
		{"fib daddr type unicast drop", "drops sure=true"},
		{"fib saddr type != local drop", "fib saddr type != local drop: drops sure=true"},
		{"limit rate 5/minute accept; drop", "drop: drops sure=false"},
		{"counter log prefix \"x\" drop", "drops sure=true"},
		{"ip daddr 10.0.0.1 jump sub", "[c sub]: ip saddr 192.0.2.9 drop: drops sure=true"},
		{"ip daddr 10.0.0.2 jump sub", ""},
		{"ip daddr @blocked drop", "ip daddr @blocked drop: drops sure=true"},
		{"ip daddr != @blocked drop", ""},
		{"ip dscp 1 drop", "drops sure=false"},
		{"return; drop", ""},
		{"meta mark 16384-16400 drop", "meta mark >= 0x4000 meta mark <= 0x4010 drop: drops sure=true"},
		{"meta mark 1-16 drop", ""},
		{"tcp dport 80 meta mark 16384-16400 drop", "drops sure=true"},
		{"numgen random mod 2 0 drop", "drops sure=false"},
		{"tcp dport 80 rt mtu 1400 drop", "drops sure=false"},
		{"tcp dport 80 ct mark 1-16 drop", "drops sure=false"},
		{"ct mark 1 drop", "ct mark 0x1 drop: drops sure=false"},
		{"tcp sport vmap { 1 : accept, 2 : drop, 3 : accept }", "[c]: tcp sport @__map0: is not followed sure=false"},
		{"tcp sport vmap { 1-9 : accept, 10-20 : drop, 30-40 : accept }", "is not followed sure=false"},
		{"tcp sport vmap { 1 : accept, * : drop }", "is not followed sure=false"},
		{"tcp sport vmap { 1 : accept, 2 : return }; drop", "drop: drops sure=false"},
		{"tcp sport vmap { 1 : jump sub, 2 : accept }", "[c]: tcp sport @__map0: is not followed sure=false"},
		{"tcp sport vmap { 1 : jump sub, 2 : jump other }", "[c]: tcp sport @__map0: is not followed sure=false"},
		{"ip daddr . tcp sport vmap { 10.0.0.1 . 1 : accept, 10.0.0.1 . 2 : drop, 10.0.0.2 . 2 : jump sub }", "is not followed sure=false"},
		{"tcp dport set 81", "[c]: tcp dport set 81: rewrites sure=false"},
		{"ip daddr set 10.0.0.9 accept", "rewrites sure=false"},
		{"ip daddr set 10.0.0.9 jump sub", "[c sub]: ip saddr 192.0.2.9 drop: drops sure=false"},
		{"ip daddr set ip saddr", "rewrites sure=false"},
		{"ip daddr set 10.0.0.1", ""},
		{"@nh,144,16 set 9", "rewrites sure=false"},
		{"ip ttl set 9; ip dscp set cs1; tcp window set 9", ""},
		{"update @seen { ip saddr limit rate over 1/second } drop", "drops sure=false"},
		{"add @seen { ip saddr } drop", "drops sure=false"},
	}
	for _, tt := range tests {
		rules := strings.ReplaceAll(tt.rule, "; ", "\n")
		run(t, "flush ruleset\ntable inet f {\nset blocked { type ipv4_addr; elements = { 10.0.0.1 }; }\nchain sub { ip saddr 192.0.2.9 drop; }\nchain other { }\n"+
			"set seen { type ipv4_addr; size 99; flags dynamic; timeout 1m; }\n"+
			"chain c { type filter hook forward priority 5; \n"+rules+"\n}\n}\n", "nft", "-f", "-")
		rs := Read(context.Background(), Options{MaxRules: 1000})
		p := packet("192.0.2.9", "10.0.0.1", 80)
		p.DNAT, p.Mark = true, 0x4000
		got := walkAll(rs, "forward", p)
		if len(rs.Unread) > 0 || (tt.want == "") != (got == "") || !strings.HasSuffix(got, tt.want+"\n") && tt.want != "" {
			t.Errorf("%s\n got: %s\nwant: %s\n%q", tt.rule, got, tt.want, rs.Unread)
		}
	}
}

// Of a connection's status the bits that matter are known.
func TestStatusOfNFT(t *testing.T) {
	netnstest.Enter(t)
	run(t, "table ip f { chain c { type filter hook forward priority 5; ct status dnat drop; }; }\n", "nft", "-f", "-")
	rs := Read(context.Background(), Options{MaxRules: 1000})
	if got := walkAll(rs, "forward", packet("192.0.2.9", "10.0.0.1", 80)); got != "" {
		t.Errorf("of a packet that was not translated: %s", got)
	}
}

func TestRulesOfNFTInIPv6(t *testing.T) {
	netnstest.Enter(t)
	run(t, "table ip6 f {\nchain c { type nat hook prerouting priority -110; \nip6 daddr fd00::/64 tcp dport 80 dnat to [fd00:1::1]:8080\n}\n}\n", "nft", "-f", "-")
	rs := Read(context.Background(), Options{IPv6: true, MaxRules: 1000})
	want := "ip6 f c [c]: ip6 daddr fd00::/64 tcp dport 80 dnat to fd00:1::1 port 8080: translates sure=true\n"
	if got := walkAll(rs, "prerouting", packet("2001:db8::9", "fd00::10", 80)); got != want {
		t.Errorf("got: %swant: %s", got, want)
	}
	if list, _ := rs.Bases[0].Walk(packet("2001:db8::9", "fd00::10", 80), nil); list[0].Verdict.To != "[fd00:1::1]:8080" || rs.Bases[0].Priority != -110 {
		t.Errorf("it sends packets to %q with priority %d", list[0].Verdict.To, rs.Bases[0].Priority)
	}
	if got := walkAll(rs, "prerouting", packet("2001:db8::9", "fd01::10", 80)); got != "" {
		t.Errorf("of another address: %s", got)
	}
}

// Our own table is not looked into, a dormant one does nothing, and rules of iptables are
// read once, by its program.
func TestRead(t *testing.T) {
	netnstest.Enter(t)
	run(t, "table ip own { chain c { type filter hook forward priority 0; drop; }; }\n"+
		"table ip asleep { flags dormant; chain c { type filter hook forward priority 0; drop; }; }\n"+
		"table ip later { chain c { type filter hook forward priority 0; policy drop; }; }\n", "nft", "-f", "-")
	run(t, "*filter\n-A FORWARD -p tcp -m tcp --dport 80 -j DROP\nCOMMIT\n", "iptables-nft-restore")
	run(t, "*filter\n-A FORWARD -p tcp -m tcp --dport 81 -j DROP\nCOMMIT\n", "iptables-legacy-restore")
	rs := Read(context.Background(), Options{OwnTable: "own", MaxRules: 1000})
	var origins []string
	for _, b := range rs.Bases {
		if b.Hook == "forward" {
			origins = append(origins, b.Origin)
		}
	}
	slices.Sort(origins)
	if want := []string{"ip later c", "iptables-legacy filter FORWARD", "iptables-nft filter FORWARD"}; !slices.Equal(origins, want) || len(rs.Unread) > 0 || rs.Own == 0 {
		t.Errorf("chains %q, our table %d, unread %q; want %q", origins, rs.Own, rs.Unread, want)
	}
	if rs = Read(context.Background(), Options{MaxRules: 1}); !rs.Stopped {
		t.Error("it did not stop at the first rule")
	}
}

// A table with a name of iptables need not be of iptables: its chains are read as they are, and the text of
// iptables serves where it has all of a rule.
func TestReadNamesOfIPTables(t *testing.T) {
	netnstest.Enter(t)
	const rule = " ip daddr 10.0.0.1 tcp dport 80 "
	for _, tt := range []struct {
		name   string
		tables string // of nft
		xt     string // then, of iptables-nft-restore
		hook   string
		want   string
	}{
		{"a chain of another name", "table ip filter { chain fw { type filter hook forward priority 0; " + rule + "drop; }; }", "", "forward",
			"ip filter fw [fw]: ip daddr 10.0.0.1 tcp dport 80 drop: drops sure=true\n"},
		{"its policy", "table ip filter { chain fw { type filter hook forward priority 0; policy drop; }; }", "", "forward", "ip filter fw []: policy: drops sure=true\n"},
		{"another priority", "table ip filter { chain FORWARD { type filter hook forward priority -5; " + rule + "drop; }; }", "", "forward",
			"ip filter FORWARD [FORWARD]: ip daddr 10.0.0.1 tcp dport 80 drop: drops sure=true\n"},
		{"a reject that iptables does not print", "table ip filter { chain FORWARD { type filter hook forward priority 0; " + rule + "reject; }; }", "", "forward",
			"ip filter FORWARD [FORWARD]: ip daddr 10.0.0.1 tcp dport 80 reject: rejects sure=true\n"},
		{"a set that iptables leaves out", "table ip filter { set s { type ipv4_addr; elements = { 10.0.0.2 }; }; chain FORWARD { type filter hook forward priority 0; ip daddr @s drop; }; }", "", "forward", ""},
		{"a set that has the address", "table ip filter { set s { type ipv4_addr; elements = { 10.0.0.1 }; }; chain FORWARD { type filter hook forward priority 0; ip daddr @s drop; }; }", "", "forward",
			"iptables-nft filter FORWARD [FORWARD]: ip daddr @s drop: drops sure=true\n"},
		{"both", "table ip filter { chain fw { type filter hook forward priority 5; " + rule + "drop; }; }", "*filter\n-A FORWARD -p tcp -m multiport --dports 80,81 -j REJECT\nCOMMIT\n", "forward",
			"iptables-nft filter FORWARD [FORWARD]: -p tcp -m multiport --dports 80,81 -j REJECT --reject-with icmp-port-unreachable: rejects sure=true\nip filter fw [fw]: ip daddr 10.0.0.1 tcp dport 80 drop: drops sure=true\n"},
		{"nat", "table ip nat { chain pre { type nat hook prerouting priority -110; " + rule + "dnat to 10.0.0.9; }; }", "*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n", "prerouting",
			"ip nat pre [pre]: ip daddr 10.0.0.1 tcp dport 80 dnat to 10.0.0.9: translates sure=true\n"},
		{"raw", "table ip raw { chain pre { type filter hook prerouting priority -300; " + rule + "notrack; }; }", "*raw\n-A PREROUTING -j ACCEPT\nCOMMIT\n", "prerouting",
			"ip raw pre [pre]: ip daddr 10.0.0.1 tcp dport 80 notrack: does not track sure=true\n"},
		{"mangle", "table ip mangle { chain pre { type filter hook prerouting priority -150; " + rule + "drop; }; }", "", "prerouting",
			"ip mangle pre [pre]: ip daddr 10.0.0.1 tcp dport 80 drop: drops sure=true\n"},
		{"chains of ours", "", "*filter\n:OWN-A - [0:0]\n-A OWN-A -j DROP\n-A FORWARD -j OWN-A\nCOMMIT\n", "forward", ""},
	} {
		run(t, "flush ruleset\n"+tt.tables+"\n", "nft", "-f", "-")
		if tt.xt != "" {
			run(t, tt.xt, "iptables-nft-restore", "--noflush")
		}
		rs := Read(context.Background(), Options{Prefix: "OWN-", MaxRules: 1000})
		if got := walkAll(rs, tt.hook, packet("192.0.2.9", "10.0.0.1", 80)); got != tt.want || len(rs.Unread) > 0 {
			t.Errorf("%s:\n got: %s\nwant: %s\n%q", tt.name, got, tt.want, rs.Unread)
		}
	}
	run(t, "flush ruleset\ntable ip6 filter { chain fw { type filter hook forward priority 0; ip6 daddr fd00::1 drop; }; }\n", "nft", "-f", "-")
	rs := Read(context.Background(), Options{IPv6: true, MaxRules: 1000})
	if got := walkAll(rs, "forward", packet("fd00::9", "fd00::1", 80)); got != "ip6 filter fw [fw]: ip6 daddr fd00::1 drop: drops sure=true\n" {
		t.Errorf("of IPv6: %s", got)
	}
}

// A set too large is not known, tables of a trace are not looked at, and rules are read up
// to a limit.
func TestLimitsOfRead(t *testing.T) {
	netnstest.Enter(t)
	var b strings.Builder
	for i := range maxElements + 1 {
		fmt.Fprintf(&b, "11.0.%d.%d, ", i>>8, i&255)
	}
	run(t, "table ip svcproxy-trace-1 { chain c { type filter hook forward priority 0; drop; }; }\n"+
		"table ip f {\nset large { type ipv4_addr; elements = { "+b.String()+" }; }\n"+
		"chain c { type filter hook forward priority 0; ip daddr @large drop; ip daddr 10.0.0.1 drop; }\n}\n", "nft", "-f", "-")
	rs := Read(context.Background(), Options{MaxRules: 1000})
	want := "ip f c [c]: ip daddr @large drop: drops sure=false\nip f c [c]: ip daddr 10.0.0.1 drop: drops sure=false\n"
	if got := walkAll(rs, "forward", packet("192.0.2.9", "10.0.0.1", 80)); got != want {
		t.Errorf("got: %swant: %s", got, want)
	}
	rs = Read(context.Background(), Options{MaxRules: 1})
	if len(rs.Bases) != 1 || len(rs.Bases[0].Chains["c"]) != 1 || !rs.Bases[0].Partial || !rs.Stopped || len(rs.Unread) > 0 {
		t.Errorf("up to a limit: stopped %v, unread %q, %+v", rs.Stopped, rs.Unread, rs.Bases)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if rs = Read(ctx, Options{MaxRules: 1000}); len(rs.Unread) == 0 {
		t.Error("what a reader did not wait for is not named")
	}
}

// Chains that packets meet before all hooks are not looked at, which is said.
func TestIngressOfNFT(t *testing.T) {
	netnstest.Enter(t)
	run(t, "table netdev f { chain c { type filter hook ingress device lo priority 0; drop; }; }\n", "nft", "-f", "-")
	rs := Read(context.Background(), Options{MaxRules: 1000})
	if len(rs.Unread) != 1 || !strings.HasSuffix(rs.Unread[0], "not looked at: f c") {
		t.Errorf("not read: %q", rs.Unread)
	}
}
