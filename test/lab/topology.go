package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source"
)

// Numbers of hosts and addresses in a lab.
const (
	EndpointHosts   = 3  // local ones, and as many remote ones
	ClientAddresses = 24 // so that affinity has clients to tell apart
)

// EndpointPorts are the ports, TCP and UDP, that every endpoint host serves.
var EndpointPorts = []uint16{8080, 8081, 8082}

// A Dual is an address in either family.
type Dual struct{ V4, V6 netip.Addr }

// dual returns the host-th address of a network. Networks are 10.<net>.0.0/16 and fd00:<net>::/64.
func dual(network, host byte) Dual {
	v6 := [16]byte{0: 0xfd, 3: network, 15: host}
	return Dual{netip.AddrFrom4([4]byte{10, network, 0, host}), netip.AddrFrom16(v6)}
}

// Each returns both addresses.
func (d Dual) Each() []netip.Addr { return []netip.Addr{d.V4, d.V6} }

// Is reports whether a is one of the two.
func (d Dual) Is(a netip.Addr) bool { return a == d.V4 || a == d.V6 }

// A Host is one machine of the lab.
type Host struct {
	*netnstest.Namespace
	Role  string // "client", "router", "node", "gateway", "local1" to "local3", "remote1" to "remote3"
	Addrs []Dual
}

// Addr returns the host's first address.
func (h *Host) Addr() Dual { return h.Addrs[0] }

// Owns reports whether a is an address of the host.
func (h *Host) Owns(a netip.Addr) bool {
	return slices.ContainsFunc(h.Addrs, func(d Dual) bool { return d.Is(a) })
}

// A Lab is one network with its servers. Its hosts are never changed once made.
type Lab struct {
	*Network
	Client, Router, Node, Gateway *Host
	Local, Remote                 []*Host
	Many                          []*Host // none before AddMany
}

// Networks of the lab, by the number that dual takes. The two addresses of node
// are UplinkAddr, on the interface of the default route, and FrontAddr.
const (
	clientNet = 1
	frontNet  = 2 // router to node
	uplinkNet = 3 // node to gateway
	localNet  = 4
	remoteNet = 5
	manyNet   = 6
)

// The node's addresses.
var (
	FrontAddr  = dual(frontNet, 2)
	UplinkAddr = dual(uplinkNet, 2)
)

// New builds a lab. Close removes it.
func New() (*Lab, error) {
	l := &Lab{Network: NewNetwork()}
	if err := l.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("building the lab: %w", err), l.Close())
	}
	return l, nil
}

func (l *Lab) build() error {
	for _, step := range []func() error{l.makeHosts, l.connect, l.route, l.catchAll, l.serve, l.settle} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) makeHosts() error {
	var clientAddrs []Dual
	for i := range ClientAddresses {
		clientAddrs = append(clientAddrs, dual(clientNet, byte(10+i)))
	}
	l.Local, l.Remote = make([]*Host, EndpointHosts), make([]*Host, EndpointHosts)
	var g errgroup.Group
	l.makeHost(&g, &l.Client, "client", clientAddrs...)
	l.makeHost(&g, &l.Router, "router", dual(clientNet, 1), dual(frontNet, 1))
	l.makeHost(&g, &l.Node, "node", FrontAddr, UplinkAddr)
	l.makeHost(&g, &l.Gateway, "gateway", dual(uplinkNet, 1))
	for i := range EndpointHosts {
		l.makeHost(&g, &l.Local[i], fmt.Sprint("local", i+1), dual(localNet, byte(i+1)))
		l.makeHost(&g, &l.Remote[i], fmt.Sprint("remote", i+1), dual(remoteNet, byte(i+1)))
	}
	return g.Wait()
}

func (l *Lab) makeHost(g *errgroup.Group, to **Host, role string, addrs ...Dual) {
	g.Go(func() (err error) {
		*to, err = l.Host(role, addrs...)
		return err
	})
}

// connect makes the links and puts addresses on them.
func (l *Lab) connect() error {
	for _, h := range []*Host{l.Router, l.Node} {
		if err := h.Sysctl("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"); err != nil {
			return err
		}
	}
	err := errors.Join(
		Link(End{l.Client, "eth0", l.Client.Addrs}, End{l.Router, "client", l.Router.Addrs[:1]}),
		Link(End{l.Router, "node", l.Router.Addrs[1:]}, End{l.Node, "front", []Dual{FrontAddr}}),
		Link(End{l.Node, "uplink", []Dual{UplinkAddr}}, End{l.Gateway, "eth0", l.Gateway.Addrs}),
	)
	for i := range EndpointHosts {
		err = errors.Join(err,
			attach(l.Node, FrontAddr.V4, l.Local[i]),
			attach(l.Router, l.Router.Addrs[0].V4, l.Remote[i]))
	}
	return err
}

// returnTable is the router's table of routes for packets from remote endpoints.
const returnTable = 100

// route tells every host the ways that its links do not. Answers of remote
// endpoints go by way of node, also to the client itself, because only node can
// translate them back when it has not masqueraded the question.
func (l *Lab) route() error {
	router, front, gateway := l.Router.Addrs, FrontAddr, l.Gateway.Addr()
	err := errors.Join(
		l.Client.defaultRoute(router[0], 0),
		l.Router.defaultRoute(front, 0),
		l.Router.defaultRoute(front, returnTable),
		l.Node.defaultRoute(gateway, 0),
		l.Node.routeNetwork(clientNet, router[1]),
		l.Node.routeNetwork(remoteNet, router[1]),
		l.Gateway.defaultRoute(UplinkAddr, 0),
	)
	for _, h := range l.Remote {
		for _, family := range families {
			rule := netlink.NewRule()
			rule.Family, rule.IifName, rule.Table = family, h.Role, returnTable
			err = errors.Join(err, l.Router.Links.RuleAdd(rule))
		}
	}
	return err
}

// catchAll makes gateway answer on every address: pings by itself, the rest by one server.
func (l *Lab) catchAll() error {
	for _, tool := range []string{"iptables-restore", "ip6tables-restore"} {
		if _, err := l.Gateway.RunInput(catchAllRules, tool); err != nil {
			return err
		}
	}
	return nil
}

// AddMany adds n endpoints behind node that are addresses of one namespace. Each is a Host of its own, and serves the first
// of EndpointPorts.
func (l *Lab) AddMany(n int) error {
	var addrs []Dual
	for i := range n {
		addrs = append(addrs, dual(manyNet, byte(i+1)))
	}
	host, err := l.Host("many", addrs...)
	if err != nil {
		return err
	}
	err = attach(l.Node, FrontAddr.V4, host)
	for i, d := range addrs {
		h := &Host{Namespace: host.Namespace, Role: fmt.Sprint("many", i+1), Addrs: []Dual{d}}
		l.Many = append(l.Many, h)
		for _, a := range d.Each() {
			if i > 0 {
				err = errors.Join(err, host.AddAddr("eth0", a), l.Node.AddRoute(host.Role, a, netip.Addr{}))
			}
			err = errors.Join(err, l.Serve(h, netip.AddrPortFrom(a, EndpointPorts[0])))
		}
	}
	return err
}

const catchAllPort = 7

var catchAllRules = fmt.Sprintf(`*nat
-A PREROUTING -p tcp -j REDIRECT --to-ports %[1]d
-A PREROUTING -p udp -j REDIRECT --to-ports %[1]d
-A PREROUTING -j REDIRECT
COMMIT
`, catchAllPort)

// serve starts the servers of gateway and of all endpoint hosts.
func (l *Lab) serve() error {
	err := errors.Join(
		l.Serve(l.Gateway, netip.AddrPortFrom(netip.IPv6Unspecified(), catchAllPort)),
		l.serveSCTP(l.Gateway))
	for _, h := range slices.Concat(l.Local, l.Remote) {
		err = errors.Join(err, l.serveSCTP(h))
		for _, port := range EndpointPorts {
			err = errors.Join(err, l.Serve(h, netip.AddrPortFrom(netip.IPv6Unspecified(), port)))
		}
	}
	return err
}

// settlePatience is five times what the kernel may take to bring a link up: it
// tells of links once a second at most, net/core/link_watch.c.
var settlePatience = Slow(5 * time.Second)

// settle waits until the client reaches everybody. A link that is not quite up loses packets.
func (l *Lab) settle() error {
	var g errgroup.Group
	for _, h := range slices.Concat([]*Host{l.Gateway}, l.Local, l.Remote) {
		for _, addr := range h.Addr().Each() {
			q := Question{From: l.Client, Protocol: source.TCP, To: netip.AddrPortFrom(addr, EndpointPorts[0])}
			g.Go(func() error {
				return pace.Poll(settlePatience, func() error {
					if got := Ask(q); got.Outcome > Untouched {
						return fmt.Errorf("waiting for links: %s: %s", q, got)
					}
					return nil
				})
			})
		}
	}
	return g.Wait()
}
