//go:build netns

package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
	"svcproxy.dev/svcproxy/test/policy"
)

// A site is a lab in which svcproxy runs, and what is known of it.
type site struct {
	*lab.Lab
	*History // of the episode
	daemon   *lab.Daemon
	mode     string
	binaries []string // two builds
	files    map[string]lab.Service
	full     string // a file that fills the file system of the state directory
}

// settings are those of svcproxy in each mode. All addresses of the node serve node ports.
const settings = `mode = %q
node_name = "node"
zone = "here"
node_port_addresses = ["all"]
[sync]
resync_interval = "5s"
`

// extraAddr is one that the node sometimes has.
var extraAddr = netip.MustParseAddr("203.0.113.9")

// newSite builds a lab and starts svcproxy with all services.
func newSite(t *testing.T, mode string, binaries []string) *site {
	t.Helper()
	l, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, l.Close()) })
	s := &site{Lab: l, mode: mode, binaries: binaries, files: map[string]lab.Service{}}
	s.daemon, err = lab.NewDaemon(l, binaries[0])
	must(t, err)
	t.Cleanup(func() { check(t, s.daemon.Remove()) })
	must(t, unix.Mount("state", s.daemon.StateDir(), "tmpfs", 0, "size=16m,mode=755"))
	s.full = filepath.Join(s.daemon.StateDir(), "full")
	must(t, s.prepare(mode))
	must(t, s.daemon.Settings(fmt.Sprintf(settings, modeName(mode))))
	must(t, s.writeAll())
	must(t, s.daemon.Start())
	return s
}

// writeAll gives all services the versions that each episode begins with.
func (s *site) writeAll() error {
	r := rand.New(rand.NewPCG(0, 0))
	for i := range kinds {
		name := serviceName(i)
		s.files[name] = s.version(r, i, slices.Concat(s.Local, s.Remote))
		text, err := lab.File(s.files[name])
		if err = errors.Join(err, s.daemon.WriteFile(name+".json", text)); err != nil {
			return err
		}
	}
	return nil
}

// Modes that have no variants.
const (
	nftables = "nftables"
	ipvs     = "ipvs"
)

// modeName is a mode as the setting has it.
func modeName(mode string) string {
	if mode == nftables || mode == ipvs {
		return mode
	}
	return "iptables"
}

// prepare makes the rules of others, which choose the variant of iptables.
func (s *site) prepare(mode string) error {
	if mode == ipvs {
		if err := lab.PrepareIPVS(s.Node); err != nil {
			return err
		}
	}
	variant := "nft"
	if mode == "iptables-legacy" {
		variant = "legacy"
	}
	for _, tool := range []string{"iptables-" + variant, "ip6tables-" + variant} {
		for _, rule := range []string{"-N OTHERS", "-A FORWARD -j OTHERS", "-A OTHERS -m comment --comment others -j RETURN", "-t nat -N OTHERS", "-t nat -A POSTROUTING -j OTHERS"} {
			if err := s.iptables(tool, rule); err != nil {
				return err
			}
		}
	}
	return nil
}

func serviceName(i int) string { return fmt.Sprint("svc-", i) }

// begin begins an episode: a history whose facts are as they are now.
func (s *site) begin(ctx context.Context) error {
	if err := s.writeAll(); err != nil {
		return err
	}
	quiet(ctx)
	h := &History{Bound: s.mode == ipvs, Host: NewFact(s.host(false)), Services: map[string]*Fact[*source.Service]{}, Hosts: map[netip.Addr]*Endpoint{}}
	for name, f := range s.files {
		h.Services[name] = NewFact(f.Model())
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
func (s *site) host(extra bool) policy.Host {
	h := policy.Host{Name: "node", Zone: "here", NodePortAddresses: source.SelectAddresses([]string{"all"})}
	for _, d := range s.Node.Addrs {
		for _, a := range d.Each() {
			h.Addresses = append(h.Addresses, policy.Address{Addr: a, Up: true, Primary: lab.UplinkAddr.Is(a)})
		}
	}
	if extra {
		h.Addresses = append(h.Addresses, policy.Address{Addr: extraAddr, Up: true})
	}
	return h
}

// The kinds of services: each has an address of its own, and what makes it one.
var kinds = []func(s *site, r *rand.Rand, svc *lab.Service){
	func(*site, *rand.Rand, *lab.Service) {},
	func(s *site, _ *rand.Rand, svc *lab.Service) { svc.SessionAffinity = "client_ip" },
	func(s *site, r *rand.Rand, svc *lab.Service) { // sources
		svc.SourceRanges = pick(r, nil, prefixes(s.Client.Addrs[:8]), prefixes(s.Client.Addrs[4:]), prefixes([]lab.Dual{lab.FrontAddr}))
	},
	func(s *site, r *rand.Rand, svc *lab.Service) { // every kind of address
		svc.ExternalIPs, svc.LoadBalancerIPs = address(198, 18, 0x98, 3).Each(), address(198, 19, 0x99, 3).Each()
		for i := range svc.Ports {
			svc.Ports[i].NodePort = nodePort
		}
		svc.LoadBalancerSourceRanges = pick(r, nil, prefixes(s.Client.Addrs[:8]))
	},
	func(s *site, r *rand.Rand, svc *lab.Service) { // for this node alone
		svc.ExternalIPs, svc.ExternalTrafficPolicy = address(198, 18, 0x98, 4).Each(), "local"
		svc.InternalTrafficPolicy = pick(r, "", "local")
	},
	func(_ *site, _ *rand.Rand, svc *lab.Service) { svc.HealthCheck = asked("use_all") },
	func(_ *site, r *rand.Rand, svc *lab.Service) { // a second tier
		svc.HealthCheck = asked("refuse")
		for i := range svc.Endpoints {
			svc.Endpoints[i].Tier = r.IntN(2)
		}
	},
	func(_ *site, r *rand.Rand, svc *lab.Service) { // weights, and those that leave
		for i := range svc.Endpoints {
			e := &svc.Endpoints[i]
			e.Weight = pick(r, nil, new(uint16(0)), new(uint16(3)))
			if r.IntN(4) == 0 {
				e.Ready, e.Terminating = new(false), new(r.IntN(2) == 0)
			}
		}
	},
	func(_ *site, r *rand.Rand, svc *lab.Service) {
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
func (s *site) version(r *rand.Rand, i int, on []*lab.Host) lab.Service {
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
	kinds[i](s, r, &svc)
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

func (s *site) iptables(tool, rule string) error {
	_, err := s.Node.Run(tool, append([]string{"-w"}, fields(rule)...)...)
	return err
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// freeDisk removes what fills the state directory.
func (s *site) freeDisk() error {
	if err := os.Remove(s.full); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
