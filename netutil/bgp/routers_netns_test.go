//go:build netns

package bgp_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/internal/routertest"
	"svcproxy.dev/svcproxy/netutil/bgp"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// Addresses of the link between the router and this host.
const (
	routerV4, hostV4 = "10.99.0.1", "10.99.0.2"
	routerV6, hostV6 = "fd00:99::1", "fd00:99::2"
	v4Route, v6Route = "198.51.100.1/32", "2001:db8:5::1/128"
)

// A daemon is a router of Debian, which is told to expect a peer.
type daemon struct {
	name  string
	start func(in *netnstest.Namespace, dir, peer, password string) (*routertest.Router, error)
}

var daemons = []daemon{{"frr", startFRR}, {"bird", startBird}}

func startFRR(in *netnstest.Namespace, dir, peer, password string) (*routertest.Router, error) {
	conf := fmt.Sprintf(`router bgp 64500
 bgp router-id 10.99.0.1
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 neighbor %[1]s remote-as 64512
 neighbor %[1]s disable-connected-check
 neighbor %[1]s timers 1 3
 neighbor %[1]s timers connect 1
`, peer)
	if password != "" {
		conf += fmt.Sprintf(" neighbor %s password %s\n", peer, password)
	}
	for _, f := range []string{"ipv4", "ipv6"} {
		conf += fmt.Sprintf(" address-family %s unicast\n  neighbor %s activate\n exit-address-family\n", f, peer)
	}
	return routertest.StartFRR(in, dir, conf, false)
}

func startBird(in *netnstest.Namespace, dir, peer, password string) (*routertest.Router, error) {
	local := routerV4
	if strings.Contains(peer, ":") {
		local = routerV6
	}
	if password != "" {
		password = fmt.Sprintf("password %q;", password)
	}
	return routertest.StartBird(in, dir, fmt.Sprintf(`router id 10.99.0.1;
protocol device { }
protocol bgp host {
	local %s as 64500;
	neighbor %s as 64512;
	hold time 3; keepalive time 1; connect retry time 1; error wait time 1, 2;
	graceful restart on;
	%s
	ipv4 { import all; export none; extended next hop on; };
	ipv6 { import all; export none; };
}
`, local, peer, password))
}

// startDaemon starts a router that ends with the test.
func startDaemon(t *testing.T, d daemon, ns *netnstest.Namespace, peer, password string) *routertest.Router {
	t.Helper()
	dir, err := netnstest.TempDir()
	fatal.If(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	r, err := d.start(ns, dir, peer, password)
	fatal.If(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// link makes two namespaces with a link between them, of both families.
func link(t *testing.T) (router, host *netnstest.Namespace) {
	t.Helper()
	router, host = netnstest.Make(t), netnstest.Make(t)
	err := netnstest.Veth(router, "bgp0", host, "bgp0")
	for ns, addrs := range map[*netnstest.Namespace][]string{router: {routerV4 + "/24", routerV6 + "/64"}, host: {hostV4 + "/24", hostV6 + "/64"}} {
		if err == nil {
			err = ns.SetUp("bgp0", netip.MustParsePrefix(addrs[0]), netip.MustParsePrefix(addrs[1]))
		}
	}
	fatal.If(t, err)
	return router, host
}

// has reports whether a router has a route.
func has(r *routertest.Router, prefix string) bool { return r.Has(netip.MustParsePrefix(prefix)) }

// lacks reports whether a router says that it has no such route.
func lacks(r *routertest.Router, prefix string) bool { return r.Lacks(netip.MustParsePrefix(prefix)) }

// TestRouters: real routers get our routes of both families over one session, with a password; they lose them at
// once when they are withdrawn and when the process is killed without graceful restart, and keep them over a restart with it.
func TestRouters(t *testing.T) {
	for _, d := range daemons {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			t.Run("ipv4", func(t *testing.T) { t.Parallel(); testRouter(t, d, "4", routerV4, hostV4) })
			t.Run("ipv6", func(t *testing.T) { t.Parallel(); testRouter(t, d, "6", routerV6, hostV6) })
			t.Run("faults", func(t *testing.T) { t.Parallel(); testRouterFaults(t, d) })
		})
	}
}

func testRouter(t *testing.T, d daemon, name, router, host string) {
	rns, hns := link(t)
	r := startDaemon(t, d, rns, host, "secret")
	st := settings{AS: ourAS, GracefulRestart: 30 * time.Second, Peers: []bgp.Peer{{
		Address: netip.MustParseAddr(router), AS: routerAS, Password: "secret", Source: netip.MustParseAddr(host),
	}}}
	both := func(want bool) func() bool {
		return func() bool { return has(r, v4Route) == want && has(r, v6Route) == want }
	}
	s := startSpeaker(t, hns, st)
	s.say("set " + v4Route + " " + v6Route)
	pace.Until(t, "both routes at the router", both(true))
	if got := s.state()[0]; got.IPv4.Announced != 1 || got.IPv6.Announced != 1 {
		t.Errorf("announced %+v", got)
	}
	s.say("set")
	pace.Until(t, "withdrawn", func() bool { return lacks(r, v4Route) && lacks(r, v6Route) })
	s.say("set " + v4Route + " " + v6Route)
	pace.Until(t, "both routes again", both(true))

	s.stop(true)
	s = startSpeaker(t, hns, st)
	for range 10 { // nothing is opened before the first set
		if lacks(r, v4Route) || lacks(r, v6Route) {
			t.Fatalf("routes are gone while the speaker is away:\n%s", r.Log())
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.say("set " + v4Route) // the other one is gone at End-of-RIB
	pace.Until(t, "established", func() bool {
		if lacks(r, v4Route) {
			t.Fatalf("the route is gone over a restart:\n%s", r.Log())
		}
		return s.state()[0].State == bgp.Established
	})
	pace.Until(t, "what was not announced again is gone", func() bool { return !has(r, v6Route) })
	s.stop(false)
	pace.Until(t, "gone after the end", both(false))

	st.GracefulRestart = 0
	s = startSpeaker(t, hns, st)
	s.say("set " + v4Route + " " + v6Route)
	pace.Until(t, "both routes without graceful restart", both(true))
	s.kill()
	pace.Until(t, "gone after kill -9", both(false))
}

// The state names what an operator has configured wrong.
func testRouterFaults(t *testing.T, d daemon) {
	rns, hns := link(t)
	startDaemon(t, d, rns, hostV4, "secret")
	right := bgp.Peer{Address: netip.MustParseAddr(routerV4), AS: routerAS, Password: "secret"}
	for _, tt := range []struct {
		name, want string
		change     func(*settings)
	}{
		{"password", "a wrong password looks the same", func(st *settings) { st.Peers[0].Password = "wrong" }},
		{"AS of the peer", "wrong AS: the peer is not in AS 64501", func(st *settings) { st.Peers[0].AS = 64501 }},
		{"our AS", "the peer refused our OPEN: wrong AS", func(st *settings) { st.AS = 64513 }},
	} {
		st := settings{AS: ourAS, ListenPort: -1, Peers: []bgp.Peer{right}}
		tt.change(&st)
		s := startSpeaker(t, hns, st)
		s.say("set")
		pace.Until(t, tt.name, func() bool { return strings.Contains(s.state()[0].LastError, tt.want) })
		s.stop(false)
	}
}

// TestTTLSecurity: a router that does the same gets a session while its packets come with a TTL of 255. With 254, as
// those of one behind another router do, it loses the session, and does not answer when we connect.
func TestTTLSecurity(t *testing.T) {
	for name, addrs := range map[string][2]string{"4": {routerV4, hostV4}, "6": {routerV6, hostV6}} {
		t.Run("ipv"+name, func(t *testing.T) { t.Parallel(); testTTLSecurity(t, name, addrs[0], addrs[1]) })
	}
}

func testTTLSecurity(t *testing.T, name, router, host string) {
	rns, hns := link(t)
	r := startDaemon(t, daemons[0], rns, host, "")
	fatal.If(t, r.Configure(fmt.Sprintf("router bgp 64500\n neighbor %s ttl-security hops 1\n", host)))
	s := startSpeaker(t, hns, settings{AS: ourAS, ListenPort: -1, Peers: []bgp.Peer{{
		Address: netip.MustParseAddr(router), AS: routerAS, TTLSecurity: true,
	}}})
	s.say("set " + v4Route)
	pace.Until(t, "a route over a TTL of 255", func() bool { return has(r, v4Route) })

	rule := "table inet farther { chain c { type filter hook output priority 0; meta l4proto tcp %s set 254; }; }"
	if _, err := rns.Run("nft", fmt.Sprintf(rule, map[string]string{"4": "ip ttl", "6": "ip6 hoplimit"}[name])); err != nil {
		t.Fatal(err)
	}
	pace.Until(t, "lost over a TTL of 254", func() bool { return s.state()[0].State != bgp.Established })
	pace.Until(t, "no answer over a TTL of 254", func() bool {
		st := s.state()[0]
		if st.State == bgp.Established {
			t.Fatal("a session over a TTL of 254")
		}
		return strings.Contains(st.LastError, "no answer from")
	})
	if has(r, v4Route) {
		t.Error("a route over a TTL of 254")
	}
}
