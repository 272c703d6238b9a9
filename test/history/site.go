package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
	"svcproxy.dev/svcproxy/test/policy"
)

// A Balancer is a program that is judged, on the node of a lab.
type Balancer interface {
	Put(svc lab.Service) error // gives a service a version
	Delete(name string) error

	Start() error // and waits until it is ready
	Stop() error  // as a service manager does
	Kill() error
	Freeze() error // by SIGSTOP
	Thaw() error
}

// A Site is a lab in which a balancer is judged.
type Site struct {
	*lab.Lab
	*History // of the episode
	Balancer

	Mode  string
	Kinds []Kind // of services
	Lanes []Lane // of faults

	// What package policy is told beside what all balancers have in common; nil: nothing.
	Adapt     func(*source.Service)
	AdaptHost func(*policy.Host)

	Log func() string // what the balancer wrote last

	// Arrange prepares the episode of a seed, and says what was drawn. Takes is for how long the balancer may not know of
	// another version of a service. nil: nothing, not at all.
	Arrange func(seed uint64) (what string, err error)
	Takes   func(service string) time.Duration

	versions  map[string]lab.Service
	killing   sync.Mutex
	contended time.Time // when another program last put rules before those of the balancer
}

// extraAddr is one that the node sometimes has.
var extraAddr = netip.MustParseAddr("203.0.113.9")

// Modes that are treated apart.
const (
	nftables       = "nftables"
	iptablesLegacy = "iptables-legacy"
	ipvs           = "ipvs"
)

// NewSite builds a lab for a mode. The rules of others in it choose the variant of iptables.
func NewSite(mode string) (*Site, error) {
	l, err := lab.New()
	if err != nil {
		return nil, err
	}
	s := &Site{Lab: l, Mode: mode, versions: map[string]lab.Service{}}
	if err := s.prepare(mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// PutAll gives all services the versions that each episode begins with.
func (s *Site) PutAll() error {
	r := rand.New(rand.NewPCG(0, 0))
	for i := range s.Kinds {
		svc := s.version(r, i, slices.Concat(s.Local, s.Remote))
		s.versions[svc.Name] = svc
		if err := s.Put(svc); err != nil {
			return err
		}
	}
	return nil
}

// arrange is Arrange, if there is one.
func (s *Site) arrange(seed uint64) (what string, err error) {
	if s.Arrange == nil {
		return "", nil
	}
	return s.Arrange(seed)
}

// takes is Takes, if there is one.
func (s *Site) takes(service string) time.Duration {
	if s.Takes == nil {
		return 0
	}
	return s.Takes(service)
}

// model is a version as package policy has it.
func (s *Site) model(svc lab.Service) *source.Service {
	m := svc.Model()
	if s.Adapt != nil {
		s.Adapt(m)
	}
	return m
}

// prepare makes the rules of others. Those in the table raw stay through all faults, and choose the variant of
// iptables: without them, svcproxy takes the other one where it is started after all rules were flushed.
func (s *Site) prepare(mode string) error {
	if mode == ipvs {
		if err := lab.PrepareIPVS(s.Node); err != nil {
			return err
		}
	}
	variant := "nft"
	if mode == iptablesLegacy {
		variant = "legacy"
	}
	for _, tool := range []string{"iptables-" + variant, "ip6tables-" + variant} {
		for _, rule := range []string{"-N OTHERS", "-A FORWARD -j OTHERS", "-A OTHERS -m comment --comment others -j RETURN", "-t nat -N OTHERS", "-t nat -A POSTROUTING -j OTHERS",
			"-t raw -A OUTPUT -m comment --comment others -j RETURN", "-t raw -A PREROUTING -m comment --comment others -j RETURN"} {
			if err := s.iptables(tool, rule); err != nil {
				return err
			}
		}
	}
	return nil
}

func serviceName(i int) string { return fmt.Sprint("svc-", i) }

// begin begins an episode: a history whose facts are as they are now.
func (s *Site) begin(ctx context.Context) error {
	if err := s.PutAll(); err != nil {
		return err
	}
	quiet(ctx)
	h := &History{Bound: s.Mode == ipvs, Steps: s.Mode != nftables, Host: NewFact(s.host(false)), Services: map[string]*Fact[*source.Service]{}, Hosts: map[netip.Addr]*Endpoint{}}
	if s.Mode == iptablesLegacy {
		h.Unseen = 5 * time.Second
	}
	if s.History != nil {
		h.before = s.History.ports(time.Now())
	}
	for name, f := range s.versions {
		h.Services[name] = NewFact(s.model(f))
	}
	for _, host := range slices.Concat(s.Local, s.Remote) {
		e := &Endpoint{NewFact(true), NewFact(false)}
		for _, a := range host.Addr().Each() {
			h.Hosts[a] = e
		}
	}
	s.History = h
	return nil
}

// host is the node as package policy has it, with the extra address or without.
func (s *Site) host(extra bool) policy.Host {
	h := policy.Host{Name: "node", Zone: "here", NodePortAddresses: source.SelectAddresses([]string{"all"})}
	for _, d := range s.Node.Addrs {
		for _, a := range d.Each() {
			h.Addresses = append(h.Addresses, policy.Address{Addr: a, Up: true, Primary: lab.UplinkAddr.Is(a)})
		}
	}
	if extra {
		h.Addresses = append(h.Addresses, policy.Address{Addr: extraAddr, Up: true})
	}
	if s.AdaptHost != nil {
		s.AdaptHost(&h)
	}
	return h
}

// A Kind makes a version of a service one of its kind.
type Kind func(s *Site, r *rand.Rand, svc *lab.Service)

// Kinds are those that svcproxy has. The clients know the numbers of some.
var Kinds = []Kind{
	func(*Site, *rand.Rand, *lab.Service) {},
	func(s *Site, _ *rand.Rand, svc *lab.Service) { svc.SessionAffinity = "client_ip" },
	func(s *Site, r *rand.Rand, svc *lab.Service) { // sources
		svc.SourceRanges = pick(r, nil, prefixes(s.Client.Addrs[:8]), prefixes(s.Client.Addrs[4:]), prefixes([]lab.Dual{lab.FrontAddr}))
	},
	func(s *Site, r *rand.Rand, svc *lab.Service) { // every kind of address
		svc.ExternalIPs, svc.LoadBalancerIPs = address(198, 18, 0x98, 3).Each(), address(198, 19, 0x99, 3).Each()
		for i := range svc.Ports {
			svc.Ports[i].NodePort = nodePort
		}
		svc.LoadBalancerSourceRanges = pick(r, nil, prefixes(s.Client.Addrs[:8]))
	},
	func(s *Site, r *rand.Rand, svc *lab.Service) { // for this node alone
		svc.ExternalIPs, svc.ExternalTrafficPolicy = address(198, 18, 0x98, 4).Each(), "local"
		svc.InternalTrafficPolicy = pick(r, "", "local")
	},
	func(_ *Site, _ *rand.Rand, svc *lab.Service) { svc.HealthCheck = asked("use_all") },
	func(_ *Site, r *rand.Rand, svc *lab.Service) { // a second tier
		svc.HealthCheck = asked("refuse")
		for i := range svc.Endpoints {
			svc.Endpoints[i].Tier = r.IntN(2)
		}
	},
	func(_ *Site, r *rand.Rand, svc *lab.Service) { // weights, and those that leave
		for i := range svc.Endpoints {
			e := &svc.Endpoints[i]
			e.Weight = pick(r, nil, new(uint16(0)), new(uint16(3)))
			if r.IntN(4) == 0 {
				e.Ready, e.Terminating = new(false), new(r.IntN(2) == 0)
			}
		}
	},
	func(_ *Site, r *rand.Rand, svc *lab.Service) {
		svc.TrafficDistribution, svc.Masquerade = pick(r, "", "prefer_same_node"), pick(r, "", "all", "never")
	},
}

// nodePort is that of the service with node ports.
const nodePort = 31003

// asked is a check that finds within detection what it asks for.
func asked(allFailed string) map[string]any {
	return map[string]any{"type": "tcp", "interval": "200ms", "timeout": "200ms", "rise": 1, "fall": 2, "all_failed": allFailed}
}

// version is a random version of the i-th service, with endpoints on some hosts.
func (s *Site) version(r *rand.Rand, i int, on []*lab.Host) lab.Service {
	svc := lab.Service{Name: serviceName(i), VIPs: address(10, 96, 0x96, byte(i)).Each(), Ports: []lab.Port{
		{Name: "stream", Protocol: "tcp", Port: 80, TargetPort: lab.EndpointPorts[0]},
		{Name: "packets", Protocol: "udp", Port: 80, TargetPort: lab.EndpointPorts[0]},
	}}
	for _, h := range on {
		node := "elsewhere"
		if slices.Contains(s.Local, h) {
			node = "node"
		}
		for _, a := range h.Addr().Each() {
			svc.Endpoints = append(svc.Endpoints, lab.Endpoint{Address: a, Node: node})
		}
	}
	s.Kinds[i](s, r, &svc)
	return svc
}

// address is one of a service.
func address(a, b, network, i byte) lab.Dual {
	v6 := [16]byte{0: 0xfd, 3: network, 13: 1, 15: i}
	return lab.Dual{V4: netip.AddrFrom4([4]byte{a, b, 1, i}), V6: netip.AddrFrom16(v6)}
}

func prefixes(addrs []lab.Dual) (list []netip.Prefix) {
	for _, d := range addrs {
		for _, a := range d.Each() {
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return list
}

func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

func (s *Site) iptables(tool, rule string) error {
	_, err := s.Node.Run(tool, append([]string{"-w"}, fields(rule)...)...)
	return err
}
