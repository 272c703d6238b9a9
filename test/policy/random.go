package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// Few addresses, so that services, hosts and clients meet.
var (
	hostAddrs     = addrs("192.0.2.1", "192.0.2.2", "10.96.0.9", "2001:db8::1", "fd00:96::9")
	serviceAddrs  = addrs("10.96.0.1", "10.96.0.2", "10.96.0.9", "203.0.113.1", "192.0.2.2", "10.97.0.1", "fd00:96::1", "fd00:96::9", "2001:db8:1::1")
	endpointAddrs = addrs("192.168.10.11", "192.168.10.12", "192.168.20.11", "192.168.20.12", "192.0.2.1", "fd00:10::11", "fd00:10::12", "2001:db8::1")
	clientAddrs   = append(addrs("198.51.100.7", "192.168.20.200", "fd00:20::7", "2001:db8:9::7"), endpointAddrs...)
	someRanges    = prefixes("198.51.100.0/24", "192.168.0.0/16", "192.168.20.0/24", "192.0.2.0/24", "fd00:20::/32", "2001:db8::/48", "10.96.0.0/16")
	interfaces    = []string{"eth0", "veth1", "wg0"}
	nodes         = []string{"a", "b", ""}
	zones         = []string{"z1", "z2", ""}
	protocols     = []source.Protocol{source.TCP, source.UDP}
)

func addrs(texts ...string) (list []netip.Addr) {
	for _, t := range texts {
		list = append(list, netip.MustParseAddr(t))
	}
	return list
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

// A Drawer draws worlds and packets.
type Drawer struct{ *rand.Rand }

// Draw returns a Drawer that draws the same for the same seed.
func Draw(seed uint64) Drawer { return Drawer{rand.New(rand.NewPCG(seed, 0))} }

// one reports true once in n times.
func (d Drawer) one(n int) bool { return d.IntN(n) == 0 }

func pick[T any](d Drawer, list []T) T { return list[d.IntN(len(list))] }

// some returns up to most elements of a list, each once.
func some[T any](d Drawer, list []T, most int) []T {
	list = slices.Clone(list)
	d.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:d.IntN(min(most, len(list))+1)]
}

// World draws services that do not claim the same thing, a host, and what is known of endpoints.
func (d Drawer) World() *World {
	w := &World{Host: d.Host(), Known: map[source.Key]map[netip.AddrPort]Known{}}
	taken := map[source.PortAddr]bool{}
	for i := range 1 + d.IntN(3) {
		s := d.Service(i)
		if IsFaulty(s) {
			continue
		}
		for _, c := range Claims(s) {
			if taken[c] {
				s.Without = append(s.Without, c)
			}
			taken[c] = true
		}
		w.Services = append(w.Services, s)
		w.Known[s.Key] = d.known(s)
	}
	return w
}

// Host draws a host.
func (d Drawer) Host() Host {
	h := Host{Name: "a", Zone: pick(d, zones), NodePortAddresses: d.nodeAddresses()}
	for _, a := range some(d, hostAddrs, len(hostAddrs)) {
		up := !d.one(5)
		h.Addresses = append(h.Addresses, Address{a, up, up && d.one(2)})
	}
	if d.one(3) {
		h.LocalCIDRs = some(d, someRanges, 2)
	}
	if d.one(4) {
		h.LocalInterfaces = some(d, []string{"eth0", "veth*"}, 1)
	}
	h.Masquerade = source.Masquerading(d.IntN(4))
	if d.one(3) {
		h.ServiceCIDRs = some(d, prefixes("10.96.0.0/16", "fd00:96::/64"), 2)
	}
	return h
}

func (d Drawer) nodeAddresses() *source.NodeAddresses {
	return source.SelectAddresses(some(d, []string{"all", "primary", "192.0.2.0/24", "2001:db8::/48"}, 2))
}

// Service draws a service of a number. It may be faulty.
func (d Drawer) Service(i int) *source.Service {
	s := &source.Service{Key: source.Key{Namespace: "default", Name: fmt.Sprintf("s%d", i)}, Labels: map[string]string{}}
	for _, a := range some(d, serviceAddrs, 4) {
		list := pick(d, []*[]netip.Addr{&s.VIPs, &s.ExternalIPs, &s.LoadBalancerIPs})
		*list = append(*list, a)
	}
	if d.one(4) {
		s.SourceRanges = some(d, someRanges, 2)
	}
	if len(s.LoadBalancerIPs) > 0 && d.one(3) {
		s.LoadBalancerSourceRanges = some(d, someRanges, 2)
	}
	for n := range 1 + d.IntN(2) {
		p := source.Port{Name: fmt.Sprintf("p%d", n), Protocol: pick(d, protocols), Port: uint16(80 + n), TargetPort: uint16(8080 + n)}
		if d.one(2) {
			p.NodePort = uint16(30000 + d.IntN(4))
		}
		s.Ports = append(s.Ports, p)
	}
	for _, a := range some(d, endpointAddrs, 5) {
		s.Endpoints = append(s.Endpoints, d.endpoint(a))
	}
	s.InternalTrafficPolicy, s.ExternalTrafficPolicy = source.TrafficPolicy(d.IntN(2)), source.TrafficPolicy(d.IntN(2))
	s.Masquerade = source.Masquerading(d.IntN(4))
	s.TrafficDistribution = source.TrafficDistribution(d.IntN(4))
	s.PublishNotReady, s.Disabled, s.InCluster = d.one(8), d.one(10), d.one(6)
	s.MinUp = uint16(d.IntN(3))
	if d.one(5) {
		s.NodePortAddresses = d.nodeAddresses()
	}
	if d.one(5) {
		s.Affinity = time.Hour
	}
	if d.one(3) {
		s.HealthCheck = &source.HealthCheck{Type: source.CheckTCP, Interval: 5 * time.Second, IntervalDown: 5 * time.Second,
			Timeout: time.Second, Rise: 2, Fall: 3, Refuse: d.one(2)}
	}
	if d.one(4) {
		s.Announce = source.BGP
	}
	if d.one(5) {
		s.SlowStart = time.Minute
	}
	return s
}

func (d Drawer) endpoint(a netip.Addr) source.Endpoint {
	more := source.Extras{Node: pick(d, nodes), Zone: pick(d, zones)}
	e := source.Endpoint{Addr: a, Weight: uint16(d.IntN(4)),
		Ready: !d.one(3), Serving: !d.one(3), Terminating: d.one(3), Disabled: d.one(10)}
	if d.one(4) {
		e.Tier = pick(d, []uint8{0, 1, 2, source.MaxTier - 1, source.MaxTier})
	}
	if d.one(2) {
		more.Hints = &source.Hints{Nodes: some(d, []string{"a", "b"}, 1), Zones: some(d, []string{"z1", "z2"}, 1)}
	}
	if d.one(6) {
		e.Ports = map[string]uint16{"p0": uint16(d.IntN(2) * 9000)}
	}
	e = e.With(more)
	return e
}

func (d Drawer) known(s *source.Service) map[netip.AddrPort]Known {
	all := map[netip.AddrPort]Known{}
	for i := range s.Endpoints {
		k := Known{Drained: d.one(8)}
		if s.SlowStart > 0 {
			k.Share = d.IntN(10)
		}
		if s.HealthCheck != nil {
			k.Check = Check(d.IntN(3))
		}
		all[s.EndpointAt(&s.Endpoints[i])] = k
	}
	return all
}

// Packet draws a packet, in nine of ten cases to something that a service has.
func (d Drawer) Packet(w *World) Packet {
	for {
		p := Packet{Protocol: pick(d, protocols), To: d.anywhere(), Process: d.one(4)}
		if len(w.Services) > 0 && !d.one(10) {
			p.Protocol, p.To = d.frontend(w)
		}
		var senders []netip.Addr
		for _, a := range w.Host.Addresses {
			if p.Process && a.Is4() == p.To.Addr().Is4() {
				senders = append(senders, a.Addr)
			}
		}
		for _, a := range clientAddrs {
			if !p.Process && a.Is4() == p.To.Addr().Is4() && !w.Host.carries(a) {
				senders = append(senders, a)
			}
		}
		if len(senders) == 0 {
			continue
		}
		p.From = pick(d, senders)
		if !p.Process {
			p.Interface = pick(d, interfaces)
		}
		return p
	}
}

func (d Drawer) anywhere() netip.AddrPort {
	return netip.AddrPortFrom(pick(d, slices.Concat(serviceAddrs, hostAddrs)), pick(d, []uint16{80, 81, 82, 30000, 30001, 30002, 30003}))
}

// frontend draws one port of a service, on one of its addresses or of those of the host.
func (d Drawer) frontend(w *World) (source.Protocol, netip.AddrPort) {
	s := pick(d, w.Services)
	port := pick(d, s.Ports)
	own := slices.Concat(s.VIPs, s.ExternalIPs, s.LoadBalancerIPs)
	if port.NodePort == 0 && len(own) == 0 {
		return port.Protocol, d.anywhere()
	}
	if len(own) == 0 || port.NodePort != 0 && d.one(2) {
		return port.Protocol, netip.AddrPortFrom(pick(d, hostAddrs), port.NodePort)
	}
	return port.Protocol, netip.AddrPortFrom(pick(d, own), port.Port)
}

// Claims returns what no other service may have.
func Claims(s *source.Service) (list []source.PortAddr) {
	for _, port := range s.Ports {
		for _, l := range s.AddressLists() {
			for _, a := range l.Addrs {
				list = append(list, source.PortAddr{Protocol: port.Protocol, AddrPort: netip.AddrPortFrom(a, port.Port)})
			}
		}
		if port.NodePort != 0 {
			list = append(list, source.PortAddr{Protocol: port.Protocol, AddrPort: netip.AddrPortFrom(netip.Addr{}, port.NodePort)})
		}
	}
	return list
}

// IsFaulty reports whether a service is invalid.
func IsFaulty(s *source.Service) bool {
	return slices.ContainsFunc(source.Validate(s), func(p source.Problem) bool { return !p.Warning })
}
