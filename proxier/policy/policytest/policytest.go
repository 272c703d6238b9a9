// Package policytest makes services, units, nodes and conditions for tests of what is decided about packets.
package policytest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Node owns 192.0.2.1 and 2001:db8::1, in zone "a".
func Node(edit ...func(*policy.Node)) *policy.Node {
	n := &policy.Node{
		Name: "here", Zone: "a", MarkBit: 14,
		Addrs:         []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		NodePortAddrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	}
	for _, f := range edit {
		f(n)
	}
	return n
}

// Service is default/web, 10.96.0.10:80/tcp, without endpoints.
func Service(edit ...func(*source.Service)) *source.Service {
	s := &source.Service{
		Key:   source.Key{Namespace: "default", Name: "web"},
		VIPs:  Addrs("10.96.0.10"),
		Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 8080}},
	}
	for _, f := range edit {
		f(s)
	}
	return s
}

// Addrs parses addresses.
func Addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// Endpoints parses "10.0.0.1", followed by any of: @node, zone=z, weight=n, tier=n, notready, terminating, disabled. It
// panics on another word.
func Endpoints(list ...string) func(*source.Service) {
	return func(s *source.Service) {
		for _, text := range list {
			s.Endpoints = append(s.Endpoints, Endpoint(text))
		}
	}
}

// Endpoint parses what Endpoints does.
func Endpoint(text string) source.Endpoint {
	words := strings.Fields(text)
	e := source.Endpoint{Addr: netip.MustParseAddr(words[0]), Weight: 1, Ready: true, Serving: true}
	more := source.Extras{}
	for _, w := range words[1:] {
		switch {
		case w[0] == '@':
			more.Node = w[1:]
		case w == "notready":
			e.Ready, e.Serving = false, false
		case w == "terminating":
			e.Ready, e.Terminating = false, true
		case strings.HasPrefix(w, "zone="):
			more.Zone = w[5:]
		case w == "disabled":
			e.Disabled = true
		case scan(w, "tier=%d", &e.Tier), scan(w, "weight=%d", &e.Weight):
		default:
			panic("an endpoint has no word " + w)
		}
	}
	e = e.With(more)
	return e
}

func scan(word, format string, to any) bool {
	n, _ := fmt.Sscanf(word, format, to)
	return n == 1
}

// External has an external address in place of VIPs.
func External(s *source.Service) {
	s.VIPs, s.ExternalIPs = nil, Addrs("203.0.113.1")
}

// Direct forwards to endpoints directly.
func Direct(s *source.Service) {
	s.Forward.Method, s.Ports[0].TargetPort = source.ForwardDirect, s.Ports[0].Port
}

// ExternalLocal is External with policy local.
func ExternalLocal(s *source.Service) { External(s); s.ExternalTrafficPolicy = source.Local }

// InternalLocal has policy local inside.
func InternalLocal(s *source.Service) { s.InternalTrafficPolicy = source.Local }

// Show returns a route in words.
func Show(l policy.Route) string {
	if l.Action != policy.Balance {
		return l.Action.String()
	}
	var t []string
	for _, x := range l.Pool.Targets {
		s := x.String()
		if x.Weight != 1 {
			s += fmt.Sprintf("*%d", x.Weight)
		}
		t = append(t, s)
	}
	return fmt.Sprintf("%s masquerade %s", strings.Join(t, " "), l.Masquerade)
}

// InCluster has a service come from a cluster.
func InCluster(s *source.Service) { s.InCluster = true }

// Distribution sets traffic_distribution.
func Distribution(d source.TrafficDistribution) func(*source.Service) {
	return func(s *source.Service) { s.TrafficDistribution = d }
}

// Prefixes parses prefixes, with a space between them.
func Prefixes(text string) (list []netip.Prefix) {
	for _, p := range strings.Fields(text) {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

// Balanced has addresses of load balancers.
func Balanced(list ...string) func(*source.Service) {
	return func(s *source.Service) { s.LoadBalancerIPs = Addrs(list...) }
}

// Conditions parses "10.0.0.1 failed", with any of: passed, failed, failing, returning, drained, overdue, share=n.
func Conditions(list ...string) policy.Conditions {
	known := make(policy.Conditions)
	for _, text := range list {
		words := strings.Fields(text)
		var c policy.Condition
		for _, w := range words[1:] {
			switch w {
			case "passed":
				c.Check = source.CheckPassed
			case "failed": // for long
				c.Check, c.Settled = source.CheckFailed, true
			case "failing":
				c.Check = source.CheckFailed
			case "returning":
				c.Returning = true
			case "overdue":
				c.Overdue = true
			case "drained":
				c.Drained = true
			default:
				fmt.Sscanf(w, "share=%d", &c.Share)
			}
		}
		known[netip.AddrPortFrom(netip.MustParseAddr(words[0]), 8080)] = c
	}
	return known
}

// Probed has a health check.
func Probed(s *source.Service) { s.HealthCheck = &source.HealthCheck{Type: source.CheckTCP} }

// ProbedRefuse has a health check, and refuses where none passes.
func ProbedRefuse(s *source.Service) {
	s.HealthCheck = &source.HealthCheck{Type: source.CheckTCP, Refuse: true}
}

// Slowly has a slow start.
func Slowly(s *source.Service) { s.SlowStart = time.Minute }

// MinUp sets min_up.
func MinUp(n uint16) func(*source.Service) { return func(s *source.Service) { s.MinUp = n } }

// OtherPort has an endpoint not serve the port http.
func OtherPort(i int) func(*source.Service) {
	return func(s *source.Service) { s.Endpoints[i].Ports = map[string]uint16{s.Ports[0].Name: 0} }
}

// rebaseAddrs are shared by nodes, services and endpoints, so that they meet.
var rebaseAddrs = Addrs("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "2001:db8::1", "2001:db8::2", "2001:db8::3")

func randomAddrs(t *rapid.T, most int, name string) []netip.Addr {
	list := rapid.SliceOfNDistinct(rapid.SampledFrom(rebaseAddrs), 0, most, rapid.ID).Draw(t, name)
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// RandomNode draws a node.
func RandomNode(t *rapid.T) *policy.Node {
	n := Node(func(n *policy.Node) { n.Addrs = randomAddrs(t, 5, "addresses of the node") })
	n.NodePortAddrs = lists.Keep(n.Addrs, func(netip.Addr) bool { return rapid.Bool().Draw(t, "serves node ports") })
	n.UpAddrs = lists.Keep(n.Addrs, func(netip.Addr) bool { return rapid.Bool().Draw(t, "up") })
	n.PrimaryAddrs = lists.Keep(n.UpAddrs, func(netip.Addr) bool { return rapid.Bool().Draw(t, "primary") })
	n.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/29"), netip.MustParsePrefix("2001:db8::2/128")}
	if rapid.IntRange(0, 9).Draw(t, "settings") == 0 {
		n.Zone, n.Masquerade, n.LocalCIDRs = "b", source.MasqueradeNever, nil
		n.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30")}
	}
	return n
}

// RandomServices are some of five files, each with a service that shares no address with the others.
func RandomServices(t *rapid.T) (units []source.Unit) {
	for i, name := range []string{"a", "b", "c", "d", "e"} {
		if rapid.Bool().Draw(t, "unchanged") {
			continue
		}
		s := Service(func(s *source.Service) { s.Key.Name, s.VIPs = name, Addrs(fmt.Sprintf("10.96.0.%d", i)) })
		u := source.Unit{ID: source.UnitID{Source: "file", Name: name}, Services: []*source.Service{s}}
		s.Ports[0].Port = uint16(80 + i)
		s.VIPs = append(s.VIPs, randomAddrs(t, 1, "vips")...)
		for _, a := range randomAddrs(t, 2, "external") {
			if !slices.Contains(s.VIPs, a) {
				s.LoadBalancerIPs = append(s.LoadBalancerIPs, a)
			}
		}
		if rapid.Bool().Draw(t, "local") {
			s.ExternalTrafficPolicy, s.HealthCheckNodePort = source.Local, uint16(32000+i)
		}
		s.TrafficDistribution = rapid.SampledFrom([]source.TrafficDistribution{source.Evenly, source.PreferSameNode}).Draw(t, "distribution")
		if rapid.IntRange(0, 2).Draw(t, "ranges") == 0 {
			s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30"), netip.MustParsePrefix("2001:db8::2/127")}
		}
		if rapid.IntRange(0, 2).Draw(t, "all ranges") == 0 {
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/31"), netip.MustParsePrefix("2001:db8::2/127")}
		}
		if rapid.Bool().Draw(t, "node port") {
			s.Ports[0].NodePort = uint16(31000 + i)
			s.NodePortAddresses = rapid.SampledFrom([]*source.NodeAddresses{nil, {All: true}, {Primary: true}, {Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30")}}}).Draw(t, "where")
		}
		s.Masquerade = rapid.SampledFrom([]source.Masquerading{source.MasqueradeAsSet, source.MasqueradeAuto, source.MasqueradeAll, source.MasqueradeNever}).Draw(t, "masquerade")
		for _, a := range randomAddrs(t, 3, "endpoints") {
			e := Endpoint(a.String())
			e = e.With(source.Extras{Node: rapid.SampledFrom([]string{"", "here", "elsewhere"}).Draw(t, "node")})
			s.Endpoints = append(s.Endpoints, e)
		}
		units = append(units, u)
	}
	return units
}

// Announce has addresses of a service announced.
func Announce(m source.Means) func(*source.Service) {
	return func(s *source.Service) { s.Announce = m }
}

// ByBGP has addresses of a service announced by BGP.
func ByBGP(s *source.Service) { s.Announce = source.BGP }

// TurnedOff disables a service.
func TurnedOff(s *source.Service) { s.Disabled = true }

// TwoPorts adds the port tls.
func TwoPorts(s *source.Service) {
	s.Ports = append(s.Ports, source.Port{Name: "tls", Protocol: source.TCP, Port: 443, TargetPort: 8443})
}

// ShowAnnounced has one word for each announcement: the address, the means unless bgp, and why it is withheld.
func ShowAnnounced(list []policy.Announcement) string {
	var words []string
	for _, a := range list {
		word := a.Addr.String()
		if a.Means != source.BGP {
			word += "/" + a.Means.String()
		}
		if a.Withheld != policy.NotWithheld {
			word += "=" + a.Withheld.String()
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// File is a unit of services, each written "name vip:port" or "name nodeport".
func File(name string, services ...string) source.Unit {
	u := source.Unit{ID: source.UnitID{Source: "file", Name: name}}
	for i, text := range services {
		u.Services = append(u.Services, claimant(text, source.Position{File: name, Line: i + 1, Col: 1}))
	}
	return u
}

func claimant(text string, pos source.Position) *source.Service {
	name, what, _ := strings.Cut(text, " ")
	s := &source.Service{Key: source.Key{Namespace: "default", Name: name}, Pos: pos}
	p := source.Port{Protocol: source.TCP, TargetPort: 8080}
	if ap, err := netip.ParseAddrPort(what); err == nil {
		s.VIPs, p.Port = []netip.Addr{ap.Addr()}, ap.Port()
	} else {
		p.Port = 80
		fmt.Sscan(what, &p.NodePort)
	}
	s.Ports = []source.Port{p}
	return s
}

// Object is a unit of an API, made at some time, that may be used in part.
func Object(name string, created int64, services ...string) source.Unit {
	u := File(name, services...)
	u.ID.Source, u.Partial, u.Since = "kubernetes", true, created
	for _, s := range u.Services {
		s.Pos = source.Position{}
	}
	return u
}

// Set is a change that sets units.
func Set(units ...source.Unit) source.Changes { return source.Changes{Set: units} }

// Gone is a change that removes a file.
func Gone(name string) source.Changes {
	return source.Changes{Delete: []source.UnitID{{Source: "file", Name: name}}}
}

// GoneObject is a change that removes an object.
func GoneObject(name string) source.Changes {
	return source.Changes{Delete: []source.UnitID{{Source: "kubernetes", Name: name}}}
}

// RandomStep draws changes of three files and three objects, which want each other's names and addresses.
func RandomStep(t *rapid.T) source.Changes {
	var ch source.Changes
	used := map[string]bool{}
	for range rapid.IntRange(1, 3).Draw(t, "units") {
		name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "unit")
		if used[name] {
			continue
		}
		used[name] = true
		unit, most, id := File, 3, source.UnitID{Source: "file", Name: name}
		if name >= "d" {
			unit = func(name string, services ...string) source.Unit {
				return Object(name, int64('g'-name[0]), services...)
			}
			id.Source, most = "kubernetes", 1 // an object is one service
		}
		if rapid.IntRange(0, 4).Draw(t, "delete") == 0 {
			ch.Delete = append(ch.Delete, id)
			continue
		}
		ch.Set = append(ch.Set, unit(name, rapid.SliceOfN(rapid.SampledFrom([]string{
			"x 10.96.0.1:80", "x 10.96.0.2:80", "y 10.96.0.1:80", "y 10.96.0.3:80", "z 10.96.0.3:80", "w 30080", "v 30080",
		}), 0, most).Draw(t, "services")...))
	}
	return ch
}

// DNS is a service of one UDP port, 53, which endpoints have at 5353 and the node at 30053.
func DNS(edit ...func(*source.Service)) *source.Service {
	s := Service(edit...)
	s.Ports = []source.Port{{Protocol: source.UDP, Port: 53, TargetPort: 5353, NodePort: 30053}}
	return s
}

// Closing sets close_connections.
func Closing(c source.CloseConnections) func(*source.Service) {
	return func(s *source.Service) { s.CloseConnections = c }
}
