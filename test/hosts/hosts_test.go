//go:build netns

package hosts

import (
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

func pair(v4, v6 string) lab.Dual {
	return lab.Dual{V4: netip.MustParseAddr(v4), V6: netip.MustParseAddr(v6)}
}

// The seam itself: two hosts and a daemon, without a Lab.
func TestPlainHost(t *testing.T) {
	n := newNetwork(t)
	front, back := pair("192.0.2.1", "2001:db8:2::1"), pair("192.0.2.2", "2001:db8:2::2")
	host, server := newHost(t, n, "host", front), newHost(t, n, "server", back)
	if err := lab.Link(lab.End{Host: host, Name: "eth0", Addrs: host.Addrs}, lab.End{Host: server, Name: "eth0", Addrs: server.Addrs}); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"-4"}, {"-6"}} { // an address of a service is beyond the host's own networks
		if _, err := host.Run("ip", append(args, "route", "add", "default", "dev", "eth0")...); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Serve(server, netip.AddrPortFrom(netip.IPv6Unspecified(), lab.EndpointPorts[0])); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, host, back)
	if err := d.Settings("mode = \"nftables\"\n"); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	vip := pair("10.96.0.1", "fd00:96::1")
	s := lab.Service{Name: "web", VIPs: vip.Each(), Ports: []lab.Port{{Port: 80, TargetPort: 8080}}, Endpoints: []lab.Endpoint{{Address: back.V4}, {Address: back.V6}}}
	if err := d.Apply("web", s); err != nil {
		t.Fatal(err)
	}
	for _, addr := range vip.Each() {
		q := lab.Question{From: host, Protocol: source.TCP, To: netip.AddrPortFrom(addr, 80)}
		if got := lab.Ask(q); got.By != "server" {
			t.Errorf("%s: %s, want an answer by server", q, got)
		}
	}
}
