//go:build netns && vm

package nftables_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/nftables"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A router is a host between a client and an endpoint, each in a namespace of its own, with a
// flow table between them.
type router struct {
	*host
	client, server string // namespaces
	endpoint, vip  netip.AddrPort
}

func newRouter(t *testing.T, fam policy.Family) *router {
	netnstest.Enter(t)
	r := &router{host: newHost(t, fam)}
	r.Open = func() (*nftables.Backend, error) {
		return nftables.New(context.Background(), fam, nftables.Options{Flowtable: []string{"to-client", "to-server"}})
	}
	prefix, bits := map[policy.Family]string{policy.IPv4: "10.%d.0.%d", policy.IPv6: "fd0%d::%d"}[fam], 24
	if fam == policy.IPv6 {
		bits = 64
	}
	addr := func(net, host int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(prefix, net, host)) }
	forward := map[policy.Family]string{policy.IPv4: "ipv4/ip_forward", policy.IPv6: "ipv6/conf/all/forwarding"}[fam]
	r.Must(os.WriteFile("/proc/sys/net/"+forward, []byte("1"), 0o644))
	run(r, "ip", "link", "set", "lo", "up")
	for i, side := range []struct {
		ns  *string
		dev string
	}{{&r.client, "to-client"}, {&r.server, "to-server"}} {
		*side.ns = netnstest.Make(t).Name
		r.wire(side.dev, *side.ns, addr(i+1, 1), addr(i+1, 2), bits)
	}
	run(r, "ip", "route", "add", "default", "via", addr(2, 2).String(), "dev", "to-server") // what no rule refuses has somewhere to go
	r.endpoint = netip.AddrPortFrom(addr(2, 2), 8080)
	r.vip = netip.AddrPortFrom(backendtest.Addr(fam, "vip", 1), 80)
	return r
}

// wire makes an interface to a namespace whose default route is this host.
func (r *router) wire(dev, ns string, near, far netip.Addr, bits int) {
	r.Helper()
	with := func(a netip.Addr) []string {
		words := []string{"addr", "add", a.String() + "/" + strconv.Itoa(bits)}
		if a.Is6() {
			words = append(words, "nodad")
		}
		return words
	}
	run(r, "ip", "link", "add", dev, "type", "veth", "peer", "name", "eth0", "netns", ns)
	run(r, "ip", append(with(near), "dev", dev)...)
	run(r, "ip", "link", "set", dev, "up")
	run(r, "ip", append(append([]string{"-n", ns}, with(far)...), "dev", "eth0")...)
	run(r, "ip", "-n", ns, "link", "set", "eth0", "up")
	run(r, "ip", "-n", ns, "route", "add", "default", "via", near.String())
}

// serve has the endpoint answer with what it is sent.
func (r *router) serve() {
	r.Helper()
	var servers echotest.Servers
	r.Cleanup(servers.Close)
	r.In(r.server, func() {
		l, err := net.Listen("tcp", r.endpoint.String())
		r.Must(err)
		servers.Accept(l, echotest.Echo)
		u, err := net.ListenPacket("udp", r.endpoint.String())
		r.Must(err)
		servers.Run(u, func() {
			b := make([]byte, 100)
			for {
				n, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				u.WriteTo(b[:n], from)
			}
		})
	})
}

func (r *router) service(proto source.Protocol, endpoints ...netip.AddrPort) *policy.Resolved {
	s := backendtest.Service{Name: "web", Protocol: proto}
	for _, a := range endpoints {
		s.Targets = append(s.Targets, policy.NewTarget(a, 1))
	}
	pool, _ := s.Pools()
	route := backendtest.Route(pool, policy.NoOne, policy.Reject)
	return s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Protocol: proto, Addr: r.vip.Addr(), Port: 80}, Outside: route, FromLocal: route})
}

// forwarded returns how many packets have passed the hook of forwarding.
func (r *router) forwarded() (n int) {
	r.Helper()
	_, text, _ := strings.Cut(run(r, "nft", "list", "chain", "inet", "watch", "forward"), "counter packets ")
	fmt.Sscan(text, &n)
	return n
}

func patience() time.Time { return time.Now().Add(pace.Scale(20 * time.Second)) }

// talk sends words, each after the one before has come back.
func talk(c net.Conn, words int) error {
	c.SetDeadline(patience())
	b := make([]byte, 4)
	for range words {
		if _, err := c.Write([]byte("word")); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
	}
	return nil
}

// open has the client connect.
func (r *router) open(network string, to netip.AddrPort) net.Conn {
	r.Helper()
	var c net.Conn
	var err error
	r.In(r.client, func() { c, err = net.DialTimeout(network, to.String(), pace.Scale(20*time.Second)) })
	r.Must(err)
	r.Cleanup(func() { c.Close() })
	return c
}

// passing returns how many packets of 100 words and their answers pass the hook of forwarding,
// once the connection is established.
func (r *router) passing(c net.Conn) int {
	r.Helper()
	r.Must(talk(c, 10))
	before := r.forwarded()
	r.Must(talk(c, 100))
	return r.forwarded() - before
}

// remove takes the endpoint out of the service and its connections out of connection tracking.
func (r *router) remove(proto source.Protocol) {
	r.Helper()
	r.Put(r.service(proto))
	removed, err := conntrack.Prune(r.Context(), r.Family == policy.IPv6, conntrack.Query{Protocol: uint8(proto), To: []netip.AddrPort{r.vip}},
		func(conntrack.Flow) conntrack.Verdict { return conntrack.Remove })
	if removed != 1 || err != nil {
		r.Errorf("removed %d entries: %v", removed, err)
	}
}

// Packets of an established connection to an endpoint do not pass the hook of forwarding, and are
// counted; those of others pass it. The connection is reset when its endpoint leaves and its entry
// is removed.
func TestFlowtable(t *testing.T) {
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		t.Run(fam.String(), func(t *testing.T) {
			r := newRouter(t, fam)
			r.Must(os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_acct", []byte("1"), 0o644))
			r.Restart()
			nft(t, "table inet watch { chain forward { type filter hook forward priority 5; counter; }; }")
			r.serve()
			r.Put(r.service(source.TCP, r.endpoint))
			r.Settled("the first sync")
			if w := r.Backend.Warnings(); len(w) > 0 {
				t.Errorf("warnings: %q", w)
			}
			c := r.open("tcp", r.vip)
			if n := r.passing(c); n > 20 {
				t.Errorf("%d packets of 100 words and their answers passed the hook of forwarding", n)
			}
			if n := r.passing(r.open("tcp", r.endpoint)); n < 200 {
				t.Errorf("%d packets of a connection that is not to a service passed the hook of forwarding, want all of 100 words", n)
			}
			r.counted(220)
			r.remove(source.TCP)
			if err := talk(c, 2); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("after its entry was removed the connection ends with %v, want a reset", err)
			}
		})
	}
}

// counted fails the test if connection tracking has not counted that many packets of the connection to
// the service, or says that it is not established.
func (r *router) counted(least uint64) {
	r.Helper()
	var packets uint64
	var open int
	v6 := r.Family == policy.IPv6
	r.Must(conntrack.List(r.Context(), v6, conntrack.Filter{}, func(c *conntrack.Connection) error {
		if c.Translated {
			packets += c.Packets
		}
		if c.Established && c.Dst == r.vip {
			open++
		}
		return nil
	}))
	if packets < least || open != 1 {
		r.Errorf("%d packets are counted, want %d; %d connections are established, want 1", packets, least, open)
	}
}

// A UDP flow takes the short way too, and ends there when its endpoint leaves.
func TestFlowtableUDP(t *testing.T) {
	r := newRouter(t, policy.IPv4)
	r.Restart()
	nft(t, "table inet watch { chain forward { type filter hook forward priority 5; counter; }; }")
	r.serve()
	r.Put(r.service(source.UDP, r.endpoint))
	c := r.open("udp", r.vip)
	pace.Until(t, "packets pass without the hook of forwarding", func() bool { return r.passing(c) < 20 }) // a stream after 2 s
	r.remove(source.UDP)
	if err := talk(c, 2); err == nil {
		t.Error("the flow goes on after its entry was removed")
	}
}

// A daemon that is killed leaves the table. One that is started without the setting removes its flow
// table, and so does a cleanup; hardware that cannot do it is told of, and the kernel does it.
func TestFlowtableIsRemoved(t *testing.T) {
	r := newRouter(t, policy.IPv4)
	var opts nftables.Options
	r.Open = func() (*nftables.Backend, error) { return nftables.New(context.Background(), r.Family, opts) }
	r.Put(r.service(source.TCP, r.endpoint))
	plain := r.dump()
	for _, tt := range []struct {
		opts  nftables.Options
		warns string
	}{
		{nftables.Options{Flowtable: []string{"to-client", "to-server"}}, ""},
		{nftables.Options{}, ""},
		{nftables.Options{Flowtable: []string{"to-client", "to-server"}, Offload: true}, "no hardware does it"},
	} {
		opts = tt.opts
		r.Restart()
		r.Sync(nil)
		r.Settled("a start")
		if there := strings.Contains(r.everything(), "flowtable"); there != (len(opts.Flowtable) > 0) || !there && r.dump() != plain {
			t.Errorf("with %v the kernel holds\n%s", opts, r.everything())
		}
		if w := strings.Join(r.Backend.Warnings(), "\n"); !strings.Contains(w, tt.warns) || (w == "") != (tt.warns == "") {
			t.Errorf("with %v: warnings %q, want %q", opts, w, tt.warns)
		}
	}
	r.Must(r.Backend.Cleanup(t.Context()))
	if strings.Contains(r.everything(), "flowtable") {
		t.Errorf("after the cleanup\n%s", r.everything())
	}
}

// What others do to the flow table is undone, and it follows its interfaces. Services go on without any.
func TestFlowtableIsRepaired(t *testing.T) {
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		t.Run(fam.String(), func(t *testing.T) {
			r := newRouter(t, fam)
			r.Restart()
			r.serve()
			r.Put(r.service(source.TCP, r.endpoint))
			whole := r.dump()
			for _, damage := range []string{
				"flush chain TABLE filter-forward\ndelete flowtable TABLE forwarded",
				"add flowtable TABLE other { hook ingress priority 5; devices = { lo }; }",
				"delete table TABLE",
			} {
				r.nft(damage)
				r.Backend.Recheck()
				if !r.Look() {
					t.Errorf("not found: %s", damage)
				}
				r.Repair(&policy.Delta{})
				if now := r.dump(); now != whole {
					t.Errorf("after %q\n%s\nwant\n%s", damage, now, whole)
				}
				r.Settled(damage)
				r.calm(damage)
			}
			for _, step := range []struct{ do, devices, warns string }{
				{"link del to-client", "to-server", "no interface to-client"},
				{"link add to-client type dummy", "to-client, to-server", ""},
				{"link del to-client;link add to-client type dummy", "to-client, to-server", ""},
				{"link del to-client", "to-server", "no interface to-client"},
				{"link del to-server", "", "packets take the usual way"},
				{"link add to-server type dummy", "to-server", "no interface to-client"},
			} {
				for line := range strings.SplitSeq(step.do, ";") {
					run(r, "ip", strings.Fields(line)...)
				}
				if !r.Look() {
					t.Errorf("not found: ip %s", step.do)
				}
				r.Repair(&policy.Delta{})
				_, devices, _ := strings.Cut(r.everything(), "devices = { ")
				if devices, _, _ = strings.Cut(devices, " }"); devices != step.devices {
					t.Errorf("after ip %s: devices %q, want %q", step.do, devices, step.devices)
				}
				if w := strings.Join(r.Backend.Warnings(), "\n"); !strings.Contains(w, step.warns) || (w == "") != (step.warns == "") {
					t.Errorf("after ip %s: warnings %q, want %q", step.do, w, step.warns)
				}
				r.Settled(step.do)
				r.calm(step.do)
			}
		})
	}
}

// Connections stay in the flow table when rules are written again, and over a restart.
func TestFlowtableStays(t *testing.T) {
	r := newRouter(t, policy.IPv4)
	r.Restart()
	r.Put(r.service(source.TCP, r.endpoint))
	handle := regexp.MustCompile(`flowtable forwarded \{ # handle \d+`)
	first := handle.FindString(r.everything())
	r.nft("flush chain TABLE filter-forward")
	r.Backend.Recheck()
	r.Repair(&policy.Delta{})
	rules := handle.FindString(r.everything())
	r.Restart()
	r.Sync(nil)
	if now := handle.FindString(r.everything()); first == "" || rules != first || now != first {
		t.Errorf("%q, after a repair %q, after a restart %q in\n%s", first, rules, now, r.everything())
	}
}

// calm fails the test if a look finds something to repair, whether it reads the table or not.
func (r *router) calm(after string) {
	r.Helper()
	r.Backend.Recheck()
	for range 2 {
		if r.Look() {
			r.Errorf("after %q and its repair a look finds a difference", after)
		}
	}
}
