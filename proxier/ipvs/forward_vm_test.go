//go:build vm

package ipvs

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

var soak = os.Getenv("SVCPROXY_SOAK") != ""

// payload is how much an endpoint answers, in bytes.
func payload() int64 {
	if soak {
		return 1 << 30
	}
	return 4 << 20
}

// A segment is an Ethernet that the host shares with a client and an endpoint. The endpoint has
// the first VIP on loopback, as one that answers clients itself, and the client a route to it by
// way of the host.
type segment struct {
	*host
	vip            netip.AddrPort
	client, server netip.Addr
	own            netip.Addr // of the host
	clientNS       string     // namespaces
	serverNS       string
}

func newSegment(t *testing.T, fam policy.Family) *segment {
	h := newHost(t, fam)
	prefix := map[policy.Family]string{policy.IPv4: "10.1.0.", policy.IPv6: "fd01::"}[fam]
	addr := func(n int) netip.Addr { return netip.MustParseAddr(prefix + strconv.Itoa(n)) }
	s := &segment{host: h, vip: h.vip(1), client: addr(1), own: addr(2), server: addr(3)}
	wire := s.namespace("ip link add br0 type bridge; ip link set br0 up")
	s.clientNS = s.namespace("")
	s.serverNS = s.namespace("ip link set lo up; cd /proc/sys/net/ipv4/conf; echo 1 > all/arp_ignore; echo 2 > all/arp_announce")
	s.attach(wire, s.clientNS, s.client)
	s.attach(wire, s.serverNS, s.server)
	s.attach(wire, "", s.own)
	run(h, "ip", "-n", s.clientNS, "route", "add", s.vip.Addr().String(), "via", s.own.String())
	run(h, "ip", append(strings.Fields("-n "+s.serverNS+" addr add dev lo "+s.vip.Addr().String()), noDAD(fam)...)...)
	h.Must(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644)) // nothing of this is forwarding
	return s
}

func noDAD(fam policy.Family) []string {
	if fam == policy.IPv6 {
		return []string{"nodad"}
	}
	return nil
}

// namespace makes one, runs a script in it, and returns its name.
func (s *segment) namespace(script string) string {
	s.Helper()
	name := netnstest.Make(s).Name
	run(s, "ip", "netns", "exec", name, "sh", "-ec", script)
	return name
}

// attach gives a namespace, or the host itself, an interface on the wire.
func (s *segment) attach(wire, ns string, a netip.Addr) {
	s.Helper()
	far := "to" + strconv.Itoa(int(a.AsSlice()[len(a.AsSlice())-1]))
	var in []string
	run(s, "ip", "link", "add", "wire0", "type", "veth", "peer", "name", far, "netns", wire)
	if ns != "" {
		in = []string{"-n", ns}
		run(s, "ip", "link", "set", "wire0", "netns", ns)
	}
	run(s, "ip", "-n", wire, "link", "set", far, "master", "br0", "up")
	run(s, "ip", append(in, "link", "set", "wire0", "up")...)
	bits := map[bool]string{true: "/24", false: "/64"}[a.Is4()]
	run(s, "ip", append(append(in, "addr", "add", a.String()+bits, "dev", "wire0"), noDAD(s.Family)...)...)
}

// serve has the endpoint answer over TCP on all of its addresses, over UDP on the VIP. It says who
// asks; after that it answers each byte with itself, and a line with so many bytes.
func (s *segment) serve() {
	s.Helper()
	var servers echotest.Servers
	s.Cleanup(servers.Close)
	s.In(s.serverNS, func() {
		stream, err := net.Listen("tcp", ":80")
		s.Must(err)
		servers.Accept(stream, answer)
		packets, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(s.vip))
		s.Must(err)
		servers.Run(packets, func() { answerPackets(packets) })
	})
}

func answer(c net.Conn) {
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	fmt.Fprintln(c, host)
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		io.CopyN(c, zeros{}, n)
	}
}

func answerPackets(c *net.UDPConn) {
	for b := make([]byte, 100); ; {
		_, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		c.WriteToUDPAddrPort([]byte(from.Addr().String()), from)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A stream is a connection to the VIP, and as whom the endpoint sees it.
type stream struct {
	net.Conn
	*bufio.Reader
	seen string
}

// patience is how long anything takes at most, longer for what is long.
func patience(bytes int64) time.Duration {
	return pace.Scale(20*time.Second + time.Duration(bytes>>20)*200*time.Millisecond)
}

// connect connects to the VIP from a namespace, or the host itself.
func (s *segment) connect(ns string) *stream {
	s.Helper()
	var c net.Conn
	var err error
	dial := func() { c, err = (&net.Dialer{Timeout: patience(0)}).Dial("tcp", s.vip.String()) }
	if ns == "" {
		dial()
	} else {
		s.In(ns, dial)
	}
	s.Must(err)
	s.Cleanup(func() { c.Close() })
	c.SetReadDeadline(time.Now().Add(patience(0)))
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	s.Must(err)
	return &stream{c, r, strings.TrimSpace(line)}
}

// ask has the endpoint answer with so many bytes.
func (c *stream) ask(n int64) error {
	c.SetDeadline(time.Now().Add(patience(n)))
	if _, err := fmt.Fprintln(c.Conn, n); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, c.Reader, n)
	return err
}

// askByUDP returns as whom the endpoint sees a datagram of the client.
func (s *segment) askByUDP() string {
	s.Helper()
	seen := "nobody, no answer came"
	s.In(s.clientNS, func() {
		c, err := net.Dial("udp", s.vip.String())
		s.Must(err)
		defer c.Close()
		b := make([]byte, 100)
		for range 10 {
			_, err = c.Write([]byte("who?"))
			s.Must(err)
			c.SetReadDeadline(time.Now().Add(patience(0) / 10))
			if n, err := c.Read(b); err == nil {
				seen = string(b[:n])
				return
			}
		}
	})
	return seen
}

// carried returns how many bytes have come in to the host, or left it: the larger.
func (s *segment) carried() int64 {
	s.Helper()
	wire, err := netlink.LinkByName("wire0")
	s.Must(err)
	count := wire.Attrs().Statistics
	return int64(max(count.RxBytes, count.TxBytes))
}

// serviceOf returns one of the VIP whose packets get to endpoints in a way.
func (s *segment) serviceOf(way source.Forwarding, endpoints ...netip.Addr) *policy.Resolved {
	return s.edited(func(svc *source.Service) { svc.Forward = way }, endpoints...)
}

// edited returns one of the VIP that is edited before it is resolved.
func (s *segment) edited(edit func(*source.Service), endpoints ...netip.Addr) *policy.Resolved {
	svc := &source.Service{
		Key: source.Key{Namespace: "default", Name: "web"}, VIPs: []netip.Addr{s.vip.Addr()},
		Ports: []source.Port{
			{Name: "tcp", Protocol: source.TCP, Port: 80, TargetPort: 80}, {Name: "udp", Protocol: source.UDP, Port: 80, TargetPort: 80},
		},
	}
	for _, a := range endpoints {
		svc.Endpoints = append(svc.Endpoints, source.Endpoint{Addr: a, Weight: 1, Ready: true, Serving: true})
	}
	edit(svc)
	return policy.Resolve(svc, nil, &policy.Node{Name: "here", MarkBit: s.World.Host.MarkBit}, s.Family)
}

// refuses wants new connections to be refused.
func (s *segment) refuses(when string) {
	s.Helper()
	s.In(s.clientNS, func() {
		c, err := (&net.Dialer{Timeout: patience(0)}).Dial("tcp", s.vip.String())
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			s.Errorf("a new connection %s: %v, want it to be refused", when, err)
		}
	})
}

// A way is one of a family, and what the endpoint needs to take packets of a tunnel.
type way struct {
	source.Forwarding
	setUp string
	soak  bool // it is tried in the soak only: it differs from the one before in the kernel's part only
}

var ways = map[policy.Family][]way{
	policy.IPv4: {
		{source.Forwarding{Method: source.ForwardDirect}, "", false},
		{source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.IPIP}, "modprobe ipip; ip link set tunl0 up", false},
		{source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.GUE, Port: 6080}, "modprobe fou; ip fou add port 6080 gue", true},
		{source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.GRE}, "modprobe ip_gre; ip link set gre0 up", true},
	},
	policy.IPv6: {
		{source.Forwarding{Method: source.ForwardDirect}, "", false},
		{source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.IPIP}, "modprobe ip6_tunnel; ip link set ip6tnl0 up", false},
		{source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.GUE, Port: 6080}, "modprobe fou6; ip -6 fou add port 6080 gue", true},
		{source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.GRE}, "modprobe ip6_gre; ip link set ip6gre0 up", true},
	},
}

// The endpoint sees the client's address and answers around the host, whichever way packets take.
func TestForward(t *testing.T) {
	everySegment(t, func(s *segment) {
		for _, way := range ways[s.Family] {
			if way.soak && !soak {
				continue
			}
			run(s, "ip", "netns", "exec", s.serverNS, "sh", "-ec", cmp.Or(way.setUp, "true")+
				"; for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done")
			s.Put(s.serviceOf(way.Forwarding, s.server))
			s.wantState()
			s.settled()
			s.carries(way.Forwarding)
		}
	})
}

func everySegment(t *testing.T, test func(*segment)) {
	for _, fam := range families {
		t.Run(fam.String(), func(t *testing.T) {
			s := newSegment(t, fam)
			s.serve()
			test(s)
		})
	}
}

// carries holds the way to what is promised of it.
func (s *segment) carries(way source.Forwarding) {
	s.Helper()
	before := s.carried()
	c := s.connect(s.clientNS)
	defer c.Close()
	if err := c.ask(payload()); err != nil {
		s.Errorf("%v: %v", way, err)
	}
	if n := s.carried() - before; n == 0 || n > payload()/8 {
		s.Errorf("%v: %d bytes by way of the host, of an answer of %d", way, n, payload())
	}
	if c.seen != s.client.String() {
		s.Errorf("%v: the endpoint sees %s, not the client", way, c.seen)
	}
	if seen := s.askByUDP(); seen != s.client.String() {
		s.Errorf("%v, by UDP: the endpoint sees %s, not the client", way, seen)
	}
	if seen := s.connect("").seen; seen != s.own.String() {
		s.Errorf("%v: of what the host itself sends the endpoint sees %s, not an address of the host", way, seen)
	}
	counters, err := s.Backend.conn.Counters(s.Context(), s.key(1))
	s.Must(err)
	for _, n := range counters {
		if n.Bytes > uint64(payload()/8) {
			s.Errorf("%v: IPVS counts %d bytes of an answer of %d", way, n.Bytes, payload())
		}
	}
}

// Connections that connection tracking knows one direction of, and has forgotten, go on while their
// endpoint drains, and while their service does that was removed; new ones are refused.
func TestForwardedConnectionsDrain(t *testing.T) {
	everySegment(t, func(s *segment) {
		run(s, "sh", "-ec", "echo 1 > /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_syn_sent")
		direct := source.Forwarding{Method: source.ForwardDirect}
		s.Put(s.serviceOf(direct, s.server))
		s.ipvsadm("-e -t " + s.vip.String() + " -r " + netip.AddrPortFrom(s.server, 80).String() + " -m -w 1")
		if !s.Look() {
			s.Error("a look does not find that another program changed the way")
		}
		s.Repair(&policy.Delta{})
		s.wantState()
		c := s.connect(s.clientNS)
		time.Sleep(2 * time.Second) // it is not tracked any more
		goesOn := func(when string) {
			s.Helper()
			if err := c.ask(1000); err != nil {
				s.Fatalf("the connection ended %s: %v", when, err)
			}
		}
		goesOn("after it was forgotten")
		drains := "-a -t " + s.vip.String() + " -r " + netip.AddrPortFrom(s.server, 80).String() + " -g -w 0"
		s.Put(s.serviceOf(direct))
		s.want("-A -t "+s.vip.String()+" -s wrr", drains)
		goesOn("while its endpoint drains")
		s.refuses("while the endpoint drains")
		s.Remove(s.serviceOf(direct))
		s.want("-A -t "+s.vip.String()+" -s wrr", drains)
		goesOn("while its service drains")
		s.refuses("while the service drains")
	})
}
