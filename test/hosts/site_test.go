//go:build netns

package hosts

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/internal/routertest"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

// A site is a host that runs svcproxy, on one network with an FRR and a BIRD router, each with a client behind it.
type site struct {
	shape
	t       *testing.T
	n       *lab.Network
	lan     *lab.Host // the switch between the host and the routers
	host    *lab.Host
	d       *lab.Daemon
	routers []*router

	server *lab.Host // of the endpoint, behind the host
	up     *echotest.Servers
}

// A router is one of a site.
type router struct {
	*routertest.Router
	name     string
	as       int
	password string
	host     *lab.Host
	client   *lab.Host
	routes   *routes
}

// The addresses of a site. Those of the host and of the routers are in docs/many-hosts.md.
var (
	hostAddr   = pair("192.0.2.1", "2001:db8:2::1")
	hostInner  = pair("10.0.0.1", "fd00:10::1")
	serverAddr = pair("10.0.0.2", "fd00:10::2")
	announced  = pair("203.0.113.1", "2001:db8:113::1")
)

// patience is for what takes GoBGP's two seconds until it connects, its five until it tries again, and a
// router's own two.
const patience = 30 * time.Second

func newSite(t *testing.T) *site { return newSiteOf(t, near) }

func newSiteOf(t *testing.T, sh shape) *site {
	n := newNetwork(t)
	s := &site{shape: sh, t: t, n: n, lan: newHost(t, n, "lan"), host: newHost(t, n, "host", hostAddr), server: newHost(t, n, "server", serverAddr)}
	s.run(s.lan, "ip link add lan type bridge", "ip link set lan up")
	s.forwards(s.host)
	s.plug(s.host, "host", s.on(hostAddr))
	s.link(lab.End{Host: s.host, Name: "inner", Addrs: []lab.Dual{hostInner}}, lab.End{Host: s.server, Name: "eth0", Addrs: s.server.Addrs})
	s.defaultRoute(s.server, hostInner)
	s.routers = []*router{
		s.router("frr", 64500, "s3cret", s.frr, "198.18.1", "2001:db8:c1::"),
		s.router("bird", 64501, "an0ther", s.bird, "198.18.2", "2001:db8:c2::"),
	}
	s.d = newDaemon(t, s.host, serverAddr)
	t.Cleanup(s.fail)
	return s
}

// router makes a router and its client, and starts it with the configuration of the documentation.
func (s *site) router(name string, as int, password string, addr lab.Dual, net4, net6 string) *router {
	s.t.Helper()
	inner, outer := pair(net4+".1", net6+"1"), pair(net4+".2", net6+"2")
	r := &router{name: name, as: as, password: password, host: newHost(s.t, s.n, name, addr), client: newHost(s.t, s.n, name+"-client", outer)}
	s.forwards(r.host)
	via := s.join(s, r)
	s.link(lab.End{Host: r.host, Name: "inner", Addrs: []lab.Dual{inner}}, lab.End{Host: r.client, Name: "eth0", Addrs: r.client.Addrs})
	s.defaultRoute(r.client, inner)
	for _, h := range via {
		s.run(h.host, fmt.Sprintf("ip route add %s.0/24 via %s", net4, h.v4), fmt.Sprintf("ip route add %s/64 via %s", net6, h.v6))
	}
	r.routes = watchRoutes(s.t, r.host)
	s.start(r)
	return r
}

// start starts the daemon of a router.
func (s *site) start(r *router) {
	s.t.Helper()
	dir, err := netnstest.TempDir()
	s.must(err)
	s.t.Cleanup(func() { os.RemoveAll(dir) })
	if r.name == "frr" {
		r.Router, err = routertest.StartFRR(r.host.Namespace, dir, s.documented("FRR", r), true)
	} else {
		r.Router, err = routertest.StartBird(r.host.Namespace, dir, s.documented("BIRD 2", r))
	}
	s.must(err)
	s.t.Cleanup(func() {
		if err := r.Close(); err != nil {
			s.t.Error(err)
		}
	})
}

// documented returns the configuration of a router that docs/many-hosts.md shows, with what is of this router and of
// the shape of the site.
func (s *site) documented(title string, r *router) string {
	s.t.Helper()
	page, err := os.ReadFile("../../docs/many-hosts.md")
	s.must(err)
	_, rest, found := strings.Cut(string(page), "\n"+title+":\n\n```\n")
	conf, _, ends := strings.Cut(rest, "\n```\n")
	if !found || !ends {
		s.t.Fatalf("docs/many-hosts.md has no configuration of %s", title)
	}
	changes := [][2]string{{"192.0.2.254", r.host.Addr().V4.String()}, {"64500", fmt.Sprint(r.as)}, {"s3cret", r.password}}
	for _, change := range append(changes, s.changes(r)...) {
		if !strings.Contains(conf, change[0]) {
			s.t.Fatalf("the configuration of %s in docs/many-hosts.md has no %s", title, change[0])
		}
		conf = strings.ReplaceAll(conf, change[0], change[1])
	}
	return conf + "\n"
}

// plug connects a host to the switch.
func (s *site) plug(h *lab.Host, port string, addr lab.Dual) {
	s.t.Helper()
	s.link(lab.End{Host: h, Name: "lan"}, lab.End{Host: s.lan, Name: port})
	s.run(s.lan, "ip link set "+port+" master lan")
	s.address(h, "lan", addr)
}

// address gives an interface the addresses of a Dual that are valid.
func (s *site) address(h *lab.Host, name string, addr lab.Dual) {
	s.t.Helper()
	if addr.V4.IsValid() {
		s.run(h, fmt.Sprintf("ip addr add %s/24 dev %s", addr.V4, name))
	}
	s.run(h, fmt.Sprintf("ip addr add %s/64 dev %s nodad", addr.V6, name))
}

// cut has the switch drop all packets from and to the host, whose link stays up; rejoin ends that.
func (s *site) cut()    { s.run(s.lan, "ip link set host nomaster") }
func (s *site) rejoin() { s.run(s.lan, "ip link set host master lan") }

// unplug takes the links of the routers away, with what they see of it; replug ends that.
func (s *site) unplug() { s.run(s.lan, "ip link set frr down", "ip link set bird down") }
func (s *site) replug() { s.run(s.lan, "ip link set frr up", "ip link set bird up") }

func (s *site) forwards(h *lab.Host) {
	s.t.Helper()
	if err := h.Sysctl("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) link(a, b lab.End) {
	s.t.Helper()
	if err := lab.Link(a, b); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) defaultRoute(h *lab.Host, via lab.Dual) {
	s.t.Helper()
	s.run(h, fmt.Sprint("ip route add default via ", via.V4), fmt.Sprint("ip route add default via ", via.V6))
}

func (s *site) run(h *lab.Host, commands ...string) {
	s.t.Helper()
	for _, c := range commands {
		words := strings.Fields(c)
		if _, err := h.Run(words[0], words[1:]...); err != nil {
			s.t.Fatal(err)
		}
	}
}

// fail says what routers wrote when a test has failed.
func (s *site) fail() {
	for _, r := range s.routers {
		if s.t.Failed() {
			s.t.Logf("%s wrote:\n%s", r.name, r.Log())
		}
	}
}

// bgpSettings are those of svcproxy.toml. The zero value of one is that of the routers.
type bgpSettings struct {
	hold, restart string
	as            int    // of all routers
	password      string // of all routers
	without       string // the name of a router that is left out
	node          string // node_name
}

// settings writes svcproxy.toml.
func (s *site) settings(b bgpSettings) {
	s.t.Helper()
	text := fmt.Sprintf("mode = \"nftables\"\n[bgp]\nas = 64512\nhold_time = %q\ngraceful_restart = %q\n", b.hold, b.restart)
	if b.node != "" {
		text = fmt.Sprintf("node_name = %q\n%s", b.node, text)
	}
	for _, r := range s.routers {
		if r.name == b.without {
			continue
		}
		as, password := r.as, r.password
		if b.as != 0 {
			as = b.as
		}
		if b.password != "" {
			password = b.password
		}
		path := filepath.Join(s.d.Dir, password+".secret")
		if err := os.WriteFile(path, []byte(password), 0o600); err != nil {
			s.t.Fatal(err)
		}
		text += fmt.Sprintf("[[bgp.peers]]\naddress = %q\nas = %d\npassword_file = %q\n%s", s.peer(r), as, path, s.ofPeer)
	}
	s.must(s.d.Settings(text))
}

// service writes a service that is announced, whose endpoint is checked.
func (s *site) service() {
	s.t.Helper()
	s.must(s.d.WriteFile("web.toml", fmt.Sprintf(`[[services]]
name = "web"
external_ips = ["%s", "%s"]
ports = [{ port = 80, target_port = 8080 }]
endpoints = ["%s", "%s"]
announce = ["bgp"]
health_check = { type = "tcp", interval = "200ms", timeout = "100ms", rise = 1, fall = 1 }
`, announced.V4, announced.V6, serverAddr.V4, serverAddr.V6)))
}

// serve starts the endpoint, unserve ends it with its connections.
func (s *site) serve() {
	s.t.Helper()
	s.up = &echotest.Servers{}
	s.t.Cleanup(s.up.Close)
	s.must(s.server.Do(func() error {
		return s.up.Serve("server", netip.AddrPortFrom(netip.IPv6Unspecified(), 8080))
	}))
}

func (s *site) unserve() { s.up.Close() }

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// A session is one as status tells it.
type session struct {
	Peer       netip.Addr
	State      string
	Since      time.Time
	LastError  string `json:"last_error"`
	IPv4, IPv6 struct{ Announced int }
}

// sessions returns those with the routers, in their order.
func (s *site) sessions() ([]session, error) {
	text, err := s.d.Command("status", "-o", "json")
	if err != nil {
		return nil, err
	}
	var status struct {
		Sessions []session `json:"bgp_sessions"`
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return nil, fmt.Errorf("reading the status: %w", err)
	}
	if len(status.Sessions) != len(s.routers) {
		return nil, fmt.Errorf("status tells of %d sessions, want %d", len(status.Sessions), len(s.routers))
	}
	return status.Sessions, nil
}

// established waits until there is a session with each router that carries a number of routes of each family.
func (s *site) established(each int) []session {
	s.t.Helper()
	var list []session
	s.must(pace.Poll(patience, func() (err error) {
		list, err = s.sessions()
		for _, x := range list {
			if x.State != "established" || x.IPv4.Announced != each || x.IPv6.Announced != each {
				return fmt.Errorf("session with %v: %+v, want it established with %d routes of each family", x.Peer, x, each)
			}
		}
		return err
	}))
	return list
}

// there waits until both routers route both addresses, and their clients reach the service. It logs for how long.
func (s *site) there(what string, since time.Time) {
	s.t.Helper()
	s.awaitRoutes(what, since, true)
	for _, r := range s.routers {
		for _, q := range r.questions() {
			if got := lab.Ask(q); got.By != "server" {
				s.t.Errorf("%s: %s: %s, want an answer by server", what, q, got)
			}
		}
	}
}

// gone waits until no router routes any address. It logs for how long, and returns the longest.
func (s *site) gone(what string, since time.Time) time.Duration {
	s.t.Helper()
	return s.awaitRoutes(what, since, false)
}

func (s *site) awaitRoutes(what string, since time.Time, want bool) (longest time.Duration) {
	s.t.Helper()
	for _, r := range s.routers {
		for _, a := range announced.Each() {
			at, err := r.routes.await(a, want)
			if err != nil {
				s.t.Fatalf("%s: %s: %v", what, r.name, err)
			}
			took := at.Sub(since)
			s.t.Logf("%s: %s %s after %v", what, r.name, a, took.Round(time.Millisecond))
			longest = max(longest, took)
		}
	}
	return longest
}

// questions are those of the client, one of each family.
func (r *router) questions() (list []lab.Question) {
	for _, a := range announced.Each() {
		list = append(list, lab.Question{From: r.client, Protocol: source.TCP, To: netip.AddrPortFrom(a, 80)})
	}
	return list
}
