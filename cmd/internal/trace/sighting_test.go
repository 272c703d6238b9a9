package trace

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// testNames are services with every kind of answer.
func testNames() *Names {
	frontend := func(addr, service string, vip bool, outside, local policy.Action) Frontend {
		return Frontend{Addr: netip.MustParseAddrPort(addr), Protocol: source.TCP, Service: service, Port: "http", VIP: vip, Outside: outside, Local: local}
	}
	restricted := frontend("198.19.0.1:80", "default/ranges", false, policy.Balance, policy.Balance)
	restricted.Restricted, restricted.Ranges = true, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	forwarded := func(addr, service string, way source.ForwardMethod) Frontend {
		f := frontend(addr, service, true, policy.Balance, policy.Balance)
		f.Forward = way.String()
		return f
	}
	placed := frontend("0.0.0.0:30081", "default/placed", false, policy.Balance, policy.Balance)
	placed.Placed, placed.At = true, []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	return &Names{
		Frontends: []Frontend{
			frontend("10.96.0.10:80", "default/web", true, policy.Balance, policy.Balance),
			frontend("10.96.0.11:80", "default/empty", true, policy.Reject, policy.Reject),
			frontend("198.18.0.1:80", "default/local", false, policy.Drop, policy.Balance),
			frontend("0.0.0.0:30080", "default/web", false, policy.Balance, policy.Balance),
			restricted, placed,
			forwarded("10.96.0.20:80", "default/direct", source.ForwardDirect), forwarded("10.96.0.21:80", "default/tunnel", source.ForwardTunnel),
		},
		Endpoints:       map[netip.Addr]string{netip.MustParseAddr("192.168.10.11"): "a", netip.MustParseAddr("192.168.10.12"): ""},
		NodePortAddrs:   []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		ServiceCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		LocalCIDRs:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		LocalInterfaces: []string{"cni*"},
	}
}

// What was seen of a packet, and what the services say of it, makes a line.
func TestLinesOfSightings(t *testing.T) {
	const client, endpoint = "203.0.113.9:40112", "192.168.10.11:8080"
	for _, tt := range []struct {
		name, from, to string // as sent
		in             string // interface
		where          string // last seen
		src, dst       string // by then; empty: as sent
		want           string // service and outcome
	}{
		{"balanced", client, "10.96.0.10:80", "eth0", seenOut, "", endpoint, "default/web:http  balanced to 192.168.10.11:8080 on a"},
		{"masqueraded", client, "10.96.0.10:80", "eth0", seenOut, "192.0.2.1:40112", "192.168.10.12:8080",
			"default/web:http  balanced to 192.168.10.12:8080, masqueraded as 192.0.2.1"},
		{"endpoint on this host", client, "10.96.0.10:80", "eth0", seenHost, "", endpoint, "default/web:http  balanced to 192.168.10.11:8080 on a"},
		{"node port", client, "192.0.2.1:30080", "eth0", seenOut, "", endpoint, "default/web:http  balanced to 192.168.10.11:8080 on a"},
		{"node port of other addresses", client, "192.0.2.2:30081", "eth0", seenOut, "", endpoint, "default/placed:http  balanced to 192.168.10.11:8080 on a"},
		{"node port not of this address", client, "192.0.2.1:30081", "eth0", seenOut, "", "", "-  untouched: not an address of a service"},
		{"foreign translation", client, "10.96.0.10:80", "eth0", seenOut, "", "192.0.2.99:8080",
			"default/web:http  balanced to 192.0.2.99:8080: no endpoint of a service: by a rule of another program"},
		{"firewall behind us", client, "10.96.0.10:80", "eth0", seenRouted, "", endpoint,
			"default/web:http  dropped: on its way to 192.168.10.11:8080: a firewall, or no route (svcproxy explain)"},
		{"firewall before us", client, "10.96.0.10:80", "eth0", seenNew, "", "", "default/web:http  dropped: by a firewall, or no route (svcproxy explain)"},
		{"rules are missing", client, "10.96.0.10:80", "eth0", seenOut, "", "",
			"default/web:http  untouched: the rules do not do what the services say (svcproxy status)"},
		{"foreign reject", client, "10.96.0.10:80", "eth0", seenUnreachable, "", "", "default/web:http  refused: by a rule of another program"},
		{"foreign reject in forward", client, "10.96.0.10:80", "eth0", seenReset, "", endpoint,
			"default/web:http  refused: on its way to 192.168.10.11:8080, by a rule of another program"},
		{"direct", client, "10.96.0.20:80", "eth0", seenOut, "", "", "default/direct:http  balanced: forward is direct: the endpoint is not seen here, and answers the client itself"},
		{"direct, a firewall", client, "10.96.0.20:80", "eth0", seenRouted, "", "", "default/direct:http  dropped: by a firewall, or no route (svcproxy explain)"},
		{"direct, of this host", "192.0.2.1:5", "10.96.0.20:80", "", seenOut, "", endpoint, "default/direct:http  balanced to 192.168.10.11:8080 on a"},
		{"tunnel", client, "10.96.0.21:80", "eth0", seenRouted, "", "",
			"default/tunnel:http  balanced: forward is tunnel: the endpoint is not seen here, and answers the client itself; unless a firewall drops it (svcproxy explain)"},
		{"tunnel, a firewall", client, "10.96.0.21:80", "eth0", seenNew, "", "", "default/tunnel:http  dropped: by a firewall, or no route (svcproxy explain)"},
		{"tunnel, rules are missing", client, "10.96.0.21:80", "eth0", seenHost, "", "", "default/tunnel:http  untouched: the rules do not do what the services say (svcproxy status)"},
		{"no endpoints", client, "10.96.0.11:80", "eth0", seenReset, "", "", "default/empty:http  refused: no endpoints"},
		{"no answer", client, "10.96.0.11:80", "eth0", seenRouted, "", "",
			"default/empty:http  dropped: no endpoints; an answer was not seen: the kernel limits how many it sends, or a firewall was first"},
		{"policy local", client, "198.18.0.1:80", "eth0", seenNew, "", "", "default/local:http  dropped: policy local, no endpoint on this node"},
		{"policy local, of this host", "192.0.2.1:5", "198.18.0.1:80", "", seenOut, "", endpoint, "default/local:http  balanced to 192.168.10.11:8080 on a"},
		{"policy local, local source", "10.244.0.5:5", "198.18.0.1:80", "eth0", seenNew, "", "",
			"default/local:http  dropped: by a firewall, or no route (svcproxy explain)"},
		{"policy local, local interface", client, "198.18.0.1:80", "cni0", seenNew, "", "",
			"default/local:http  dropped: by a firewall, or no route (svcproxy explain)"},
		{"source ranges", client, "198.19.0.1:80", "eth0", seenNew, "", "", "default/ranges:http  dropped: not in the source ranges"},
		{"inside of them", "192.0.2.7:5", "198.19.0.1:80", "eth0", seenOut, "", endpoint, "default/ranges:http  balanced to 192.168.10.11:8080 on a"},
		{"port not served", client, "10.96.0.10:81", "eth0", seenReset, "", "", "-  refused: port not served"},
		{"not served, external", client, "198.18.0.1:81", "eth0", seenOut, "", "", "-  untouched: port not served"},
		{"no service", client, "10.96.9.9:80", "eth0", seenReset, "", "", "-  refused: no service has this address"},
		{"not ours", client, "8.8.8.8:80", "eth0", seenOut, "", "", "-  untouched: not an address of a service"},
		{"untracked", client, "10.96.0.10:80", "eth0", seenUntracked, "", "", "default/web:http  untracked: a notrack rule hides it from all services"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := tuple{netip.MustParseAddrPort(tt.from), netip.MustParseAddrPort(tt.to), source.TCP}
			s := sighting{conn: conn, now: conn, in: tt.in, where: tt.where}
			if tt.src != "" {
				s.now.src = netip.MustParseAddrPort(tt.src)
			}
			if tt.dst != "" {
				s.now.dst = netip.MustParseAddrPort(tt.dst)
			}
			l := s.line(testNames())
			if got := l.service() + "  " + l.outcome(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// A line has its columns, and chains below, and nothing that a terminal obeys.
func TestWriteText(t *testing.T) {
	at := time.Date(2026, 11, 22, 18, 33, 11, 123e6, time.Local)
	l := Line{
		Time: at, Source: "203.0.113.9:40112", Destination: "10.96.0.10:80/tcp", Service: "default/web", Port: "http",
		Verdict: Balanced, Endpoint: "192.168.10.11:8080", Node: "a\x1b[2J", Masquerade: "192.0.2.1",
		Chains: chains([]step{{"ip svcproxy", "prerouting", ""}, {"ip svcproxy", "pick-2", "accept"}, {"ip filter", "FORWARD", "accept"}}),
	}
	var b strings.Builder
	fatal.If(t, l.WriteText(&b))
	want := Header + "\n" +
		`18:33:11.123  203.0.113.9:40112      10.96.0.10:80/tcp        default/web:http      balanced to 192.168.10.11:8080 on a\x1b[2J, masqueraded as 192.0.2.1` + "\n" +
		"              ip svcproxy: prerouting, pick-2 accept\n              ip filter: FORWARD accept\n"
	if got := Header + "\n" + b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Headers are read as far as they go, and no further.
func TestTupleOf(t *testing.T) {
	v4 := []byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 203, 0, 113, 9, 10, 96, 0, 10, 0x9c, 0xb0, 0, 80}
	v6 := append(append([]byte{0x60, 0, 0, 0, 0, 8, 58, 64}, netip.MustParseAddr("fd00::1").AsSlice()...), netip.MustParseAddr("fd00::2").AsSlice()...)
	v6 = append(v6, 128, 0, 1, 2, 0xab, 0xcd)
	for _, tt := range []struct {
		family byte
		packet []byte
		want   string
	}{
		{unix.NFPROTO_IPV4, v4, "203.0.113.9:40112 to 10.96.0.10:80/tcp"},
		{unix.NFPROTO_IPV6, v6, "fd00::1 to fd00::2/icmp"},
	} {
		got, ok := tupleOf(tt.family, tt.packet)
		s := sighting{conn: got}
		if text := s.address(got.src, false) + " to " + s.address(got.dst, true); !ok || text != tt.want {
			t.Errorf("got %s, %v, want %s", text, ok, tt.want)
		}
		for n := range tt.packet {
			if got, ok := tupleOf(tt.family, tt.packet[:n]); ok && n < 24 {
				t.Errorf("%d bytes: got %+v", n, got)
			}
		}
	}
}
