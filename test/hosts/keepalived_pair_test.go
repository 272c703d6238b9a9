//go:build netns

package hosts

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/test/lab"
)

// A keepalivedPair is two hosts between a network of clients and one of endpoints.
type keepalivedPair struct {
	net             *lab.Network
	client          *lab.Host
	inside          *lab.Host // the switch between hosts and endpoints
	endpoints       []*lab.Host
	hosts           [2]*lab.Host
	daemons         [2]*lab.Daemon
	keepers         [2]*keeper
	service, shared []netip.Addr // of the service, and of all that moves
}

func newKeepalivedPair(t *testing.T) *keepalivedPair {
	t.Helper()
	p := &keepalivedPair{net: newNetwork(t)}
	p.service = pair("192.0.2.80", "2001:db8:2::80").Each()
	p.shared = append(pair("192.168.10.1", "fd00:10::1").Each(), p.service...)
	outside := p.newSwitch(t, "outside")
	p.inside = p.newSwitch(t, "inside")
	p.client = newHost(t, p.net, "client", pair("192.0.2.100", "2001:db8:2::100"))
	plug(t, outside, p.client, "eth0", p.client.Addr())
	for i := range 3 {
		p.newEndpoint(t, fmt.Sprint("web", i+1), pair(fmt.Sprint("192.168.10.", 11+i), fmt.Sprint("fd00:10::", 11+i)))
	}
	for i := range p.hosts {
		p.newHost(t, outside, i)
	}
	return p
}

// newSwitch makes a host that is a switch.
func (p *keepalivedPair) newSwitch(t *testing.T, role string) *lab.Host {
	t.Helper()
	h := newHost(t, p.net, role)
	shell(t, h, "ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
	shell(t, h, "ip", "link", "set", "br0", "up")
	return h
}

// plug joins an interface of a host to a switch, by a port with the name of the host.
func plug(t *testing.T, to, h *lab.Host, name string, addr lab.Dual) {
	t.Helper()
	if err := lab.Link(lab.End{Host: h, Name: name, Addrs: []lab.Dual{addr}}, lab.End{Host: to, Name: h.Role}); err != nil {
		t.Fatal(err)
	}
	shell(t, to, "ip", "link", "set", h.Role, "master", "br0")
}

func shell(t *testing.T, h *lab.Host, name string, args ...string) {
	t.Helper()
	if _, err := h.Run(name, args...); err != nil {
		t.Fatal(err)
	}
}

// newEndpoint makes a server, which answers by way of the gateway that moves.
func (p *keepalivedPair) newEndpoint(t *testing.T, role string, addr lab.Dual) {
	t.Helper()
	h := newHost(t, p.net, role, addr)
	p.endpoints = append(p.endpoints, h)
	plug(t, p.inside, h, "eth0", addr)
	shell(t, h, "ip", "route", "add", "default", "via", p.shared[0].String())
	shell(t, h, "ip", "route", "add", "default", "via", p.shared[1].String())
	if err := p.net.Serve(h, netip.AddrPortFrom(netip.IPv6Unspecified(), 8080)); err != nil {
		t.Fatal(err)
	}
}

// newHost makes one of the pair, which serves before keepalived is there.
func (p *keepalivedPair) newHost(t *testing.T, outside *lab.Host, i int) {
	t.Helper()
	addr := pair(fmt.Sprint("192.0.2.", 2+i), fmt.Sprint("2001:db8:2::", 2+i))
	h := newHost(t, p.net, "host"+"ab"[i:i+1], addr)
	plug(t, outside, h, "eth0", addr)
	plug(t, p.inside, h, "eth1", pair(fmt.Sprint("192.168.10.", 2+i), fmt.Sprint("fd00:10::", 2+i)))
	d := newDaemon(t, h, addr)
	for _, name := range []string{"svcproxy.toml", "web.toml"} {
		if err := d.WriteFile(name, example(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Command("init"); err != nil {
		t.Fatal(err)
	}
	p.hosts[i], p.daemons[i] = h, d
	p.start(t, i)
	p.await(t, "the first checks", func() error { return p.check(i) })
	p.keepalives(t, i)
}

// example returns a file that users copy.
func example(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../configs/examples/keepalived", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// keepalives starts keepalived on a host, where it removes what one that was killed has left.
func (p *keepalivedPair) keepalives(t *testing.T, i int) {
	t.Helper()
	d := p.daemons[i]
	conf := strings.ReplaceAll(example(t, "keepalived.conf"), "/usr/sbin/svcproxy status",
		fmt.Sprintf("%s status --run-dir %s", must(svcproxyBinary())(t), filepath.Join(d.Dir, "run")))
	p.keepers[i] = startKeeper(t, p.hosts[i], d.Dir, conf)
	if p.keepers[other(i)] == nil {
		p.await(t, "the first host has no addresses", func() error { return p.holds(i) })
		return
	}
	p.holder(t)
}

func must(s string, err error) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// explain logs what everybody knows of a connection that does not go on.
func (p *keepalivedPair) explain(t *testing.T, conn *lab.Conn) {
	t.Helper()
	_, port, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		t.Error(err)
		return
	}
	show := func(h *lab.Host, only, name string, args ...string) {
		out, err := h.Run(name, args...)
		for line := range strings.Lines(out) {
			if strings.Contains(line, only) {
				t.Logf("%s: %s: %s", h.Role, name, strings.TrimSpace(line))
			}
		}
		if err != nil {
			t.Logf("%s: %s: %v", h.Role, name, err)
		}
	}
	show(p.client, "", "ss", "-Htino", "sport", "=", ":"+port)
	show(p.client, "", "ip", "neigh")
	for _, h := range p.endpoints {
		show(h, "", "ss", "-Htino", "dport", "=", ":"+port)
		show(h, "", "ip", "neigh")
	}
	for _, h := range p.hosts {
		for _, fam := range []string{"ipv4", "ipv6"} {
			show(h, "port="+port, "conntrack", "-L", "-f", fam)
		}
		show(h, " "+port+" ", "nft", "list", "ruleset")
		show(h, "", "ip", "neigh")
	}
}
