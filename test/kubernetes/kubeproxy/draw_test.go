//go:build netns

package kubeproxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// The node that packets pass, its addresses of both families, and its bridge of pods.
const (
	nodeName = "here"
	bridge   = "cni0"
)

// A family is one address family, and who has which addresses in it: formats of
// the number of the set and a number in it.
type family struct {
	policy.Family
	api                        core.IPFamily
	vip, external, balancer    string
	here, there                string // endpoints on this node and on others
	primary, second            string // of this node
	pods                       string // the range of pods of this node
	outside, inRange, otherPod string // sources
	ranges                     []string
}

var families = []family{
	{
		policy.IPv4, core.IPv4Protocol, "10.96.%d.%d", "198.18.%d.%d", "198.19.%d.%d", "10.4.%d.%d", "10.5.%d.%d",
		"192.0.2.2", "192.0.2.130", "10.4.0.0/16", "100.64.0.9", "203.0.113.9", "10.4.255.7",
		[]string{"203.0.113.0/24", "10.4.0.0/16", "192.0.2.0/25", "192.0.2.128/25", "0.0.0.0/0", " 203.0.113.0/24 ", "203.000.113.0/24", "203.0.113.7/24", "::ffff:203.0.113.0/120", "198.51.100.0/24"},
	}, {
		policy.IPv6, core.IPv6Protocol, "fd00:96::%x:%x", "2001:db8:18::%x:%x", "2001:db8:19::%x:%x", "fd00:4::%x:%x", "fd00:5::%x:%x",
		"2001:db8::2", "2001:db8:1::130", "fd00:4::/64", "2001:db8:64::9", "2001:db8:113::9", "fd00:4::ffff:7",
		[]string{"2001:db8:113::/48", "fd00:4::/64", "2001:db8::/64", "2001:db8:1::/64", "::/0", "2001:db8:113::9/48", "2001:db8:51::/48"},
	},
}

// A node is how both proxies are set up.
type node struct {
	zone          string
	pods          []string // ranges of local sources
	bridge        bool     // local sources are those that come by the bridge
	masqueradeAll bool
}

// A cluster is what both proxies are told.
type cluster struct {
	node
	services []*core.Service
	slices   []*discovery.EndpointSlice
}

// A drawer draws one set of objects, in a namespace of its own.
type drawer struct {
	*rand.Rand
	set   int
	out   *cluster
	known map[string]discovery.Endpoint // of the service, by address: slices mostly say the same of one
	taken map[string]bool               // node ports of the set: an API server gives each once for a protocol
}

// drawCluster draws as many sets, that have nothing in common.
func drawCluster(r *rand.Rand, sets int) *cluster {
	c := &cluster{node: node{zone: pick(r, "", "z1", "z1"), masqueradeAll: r.IntN(5) == 0}}
	switch r.IntN(4) {
	case 0:
		c.bridge = true
	case 1:
		c.pods = []string{families[r.IntN(2)].pods}
	case 2:
		c.pods = []string{families[0].pods, families[1].pods}
	}
	for set := range sets {
		d := drawer{Rand: r, set: set, out: c, taken: map[string]bool{}}
		for n := range 1 + r.IntN(4) {
			d.service(n)
		}
	}
	return c
}

func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

func (d *drawer) oneIn(n int) bool { return d.IntN(n) == 0 }

func ptr[T any](v T) *T { return &v }

// own is an address of service n, shared one that several services of the set may have.
func (d *drawer) own(format string, n int) string { return fmt.Sprintf(format, d.set, n+1) }

func (d *drawer) shared(format string) string { return fmt.Sprintf(format, d.set, 99) }

// odd writes an address as old API servers have let it pass.
func (d *drawer) odd(addr string) string {
	if !d.oneIn(8) || strings.Contains(addr, ":") {
		return addr
	}
	first, rest, _ := strings.Cut(addr, ".")
	return fmt.Sprintf("%03s.%s", first, rest)
}

func (d *drawer) service(n int) {
	s := &core.Service{ObjectMeta: meta.ObjectMeta{
		Namespace: fmt.Sprintf("n%d", d.set), Name: fmt.Sprintf("s%d", n), Labels: map[string]string{},
		CreationTimestamp: meta.Unix(1000+d.Int64N(3), 0),
	}}
	types := []core.ServiceType{core.ServiceTypeClusterIP, core.ServiceTypeNodePort, core.ServiceTypeLoadBalancer}
	s.Spec.Type = types[d.IntN(3)]
	if d.oneIn(30) {
		s.Spec.Type = core.ServiceTypeExternalName
	}
	if d.oneIn(30) {
		s.Labels["service.kubernetes.io/service-proxy-name"] = "another"
	}
	fams := pick(d.Rand, families[:1], families[1:], families, families)
	d.addresses(s, n, fams)
	d.policies(s, n)
	d.ports(s, n)
	d.out.services = append(d.out.services, s)
	hints := d.IntN(noHints + 4)
	d.known = map[string]discovery.Endpoint{}
	for _, f := range fams {
		for i := range d.IntN(4) {
			d.slice(s, n, i, f, hints)
		}
	}
}

func (d *drawer) addresses(s *core.Service, n int, fams []family) {
	for _, f := range fams {
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, f.api)
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, d.odd(d.own(f.vip, n)))
	}
	if d.oneIn(40) {
		s.Spec.ClusterIPs, s.Labels[core.IsHeadlessService] = []string{core.ClusterIPNone}, ""
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	if len(fams) == 1 && d.oneIn(10) { // as before there were two families
		s.Spec.IPFamilies, s.Spec.ClusterIPs = nil, nil
	}
	for _, f := range families { // also of one that the service does not have
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, d.externals(f, n)...)
		d.balancers(s, f, n)
	}
	if d.oneIn(2) {
		s.Spec.LoadBalancerSourceRanges = d.ranges()
	}
}

func (d *drawer) externals(f family, n int) []string {
	var out []string
	for range d.IntN(5) / 2 {
		out = append(out, d.odd(pick(d.Rand, d.own(f.external, n), d.own(f.external, n), d.shared(f.external), f.primary,
			d.own(f.vip, n), d.own(f.vip, n+1), d.own(f.balancer, n))))
	}
	if d.oneIn(20) {
		out = append(out, pick(d.Rand, "", "rubbish", "::ffff:198.18.250.1"))
	}
	return out
}

func (d *drawer) balancers(s *core.Service, f family, n int) {
	if s.Spec.Type != core.ServiceTypeLoadBalancer && !d.oneIn(20) {
		return
	}
	for range d.IntN(3) {
		in := core.LoadBalancerIngress{IP: d.odd(pick(d.Rand, d.own(f.balancer, n), d.shared(f.balancer)))}
		if d.oneIn(3) {
			in.IPMode = ptr(pick(d.Rand, core.LoadBalancerIPModeVIP, core.LoadBalancerIPModeProxy))
		}
		if d.oneIn(20) {
			in = core.LoadBalancerIngress{Hostname: "lb.example.com"}
		}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, in)
	}
}

func (d *drawer) ranges() []string {
	var out []string
	for range 1 + d.IntN(3) {
		f := families[d.IntN(2)]
		out = append(out, f.ranges[d.IntN(len(f.ranges))])
	}
	if d.oneIn(10) {
		out = append(out, pick(d.Rand, "", "rubbish", "203.0.113.0/33"))
	}
	return out
}

func (d *drawer) policies(s *core.Service, n int) {
	if d.oneIn(2) {
		s.Spec.InternalTrafficPolicy = ptr(pick(d.Rand, core.ServiceInternalTrafficPolicyLocal, core.ServiceInternalTrafficPolicyCluster))
	}
	s.Spec.ExternalTrafficPolicy = pick(d.Rand, "", core.ServiceExternalTrafficPolicyLocal, core.ServiceExternalTrafficPolicyCluster)
	if s.Spec.Type == core.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == core.ServiceExternalTrafficPolicyLocal {
		s.Spec.HealthCheckNodePort = int32(20000 + d.set*10 + n)
	}
	s.Spec.SessionAffinity = core.ServiceAffinityNone
	if d.oneIn(3) {
		s.Spec.SessionAffinity = core.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &core.SessionAffinityConfig{ClientIP: &core.ClientIPConfig{TimeoutSeconds: ptr(pick(d.Rand, int32(1), 10, 10800, 86400))}}
	}
	s.Spec.PublishNotReadyAddresses = d.oneIn(4)
	if d.oneIn(3) {
		s.Spec.TrafficDistribution = ptr(pick(d.Rand, core.ServiceTrafficDistributionPreferClose, core.ServiceTrafficDistributionPreferSameZone, core.ServiceTrafficDistributionPreferSameNode))
	}
}

var protocols = []core.Protocol{core.ProtocolTCP, core.ProtocolUDP, core.ProtocolSCTP}

func (d *drawer) ports(s *core.Service, n int) {
	taken := map[string]bool{}
	for i := range 1 + d.IntN(3) {
		p := core.ServicePort{Name: fmt.Sprintf("p%d", i), Protocol: protocols[d.IntN(3)], Port: pick(d.Rand, int32(53), 80, 443)}
		if key := fmt.Sprint(p.Protocol, p.Port); taken[key] {
			continue
		} else {
			taken[key] = true
		}
		if s.Spec.Type != core.ServiceTypeClusterIP && !d.oneIn(4) {
			p.NodePort = int32(30000 + d.set*40 + n*10 + i)
			if shared := fmt.Sprint(p.Protocol); d.oneIn(10) && !d.taken[shared] { // of several services
				p.NodePort, d.taken[shared] = int32(30000+d.set*40+39), true
			}
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	if len(s.Spec.Ports) == 1 && d.oneIn(2) {
		s.Spec.Ports[0].Name = ""
	}
}

// slice draws one slice of a service; hints says what the endpoints of the service have.
func (d *drawer) slice(s *core.Service, n, i int, f family, hints int) {
	kind := discovery.AddressType(f.api)
	out := &discovery.EndpointSlice{
		ObjectMeta:  meta.ObjectMeta{Namespace: s.Namespace, Name: fmt.Sprintf("%s-%d-%d", s.Name, f.Family, i), Labels: map[string]string{discovery.LabelServiceName: s.Name}},
		AddressType: kind,
	}
	for key, value := range s.Labels { // the controller copies them, after a while
		if !d.oneIn(4) {
			out.Labels[key] = value
		}
	}
	if d.oneIn(40) {
		out.Labels["service.kubernetes.io/service-proxy-name"] = "another"
	}
	for _, p := range s.Spec.Ports {
		if d.oneIn(12) {
			continue // a named target port that these pods do not have
		}
		number := pick(d.Rand, p.Port, 8000+p.Port, 8000+p.Port, 9000+p.Port)
		out.Ports = append(out.Ports, discovery.EndpointPort{Name: ptr(p.Name), Protocol: ptr(p.Protocol), Port: ptr(number)})
	}
	for range d.IntN(4) {
		out.Endpoints = append(out.Endpoints, d.endpoint(s, n, f, hints))
	}
	if d.oneIn(50) {
		out.AddressType = discovery.AddressTypeFQDN
		for j := range out.Endpoints {
			out.Endpoints[j].Addresses = []string{"pod.example.com"}
		}
	}
	d.out.slices = append(d.out.slices, out)
}

func (d *drawer) endpoint(s *core.Service, n int, f family, hints int) discovery.Endpoint {
	number := n*50 + 1 + d.IntN(12) // few, so that slices have some in common
	e := discovery.Endpoint{Addresses: []string{d.odd(fmt.Sprintf(f.there, d.set, number))}, NodeName: ptr(pick(d.Rand, "there", "elsewhere"))}
	switch d.IntN(8) {
	case 0, 1, 2:
		e.Addresses[0], e.NodeName = d.odd(fmt.Sprintf(f.here, d.set, number)), ptr(nodeName)
	case 3:
		e.Addresses[0], e.NodeName = pick(d.Rand, f.primary, f.second), ptr(nodeName)
		if hints < noHints && slices.Contains(s.Spec.ExternalIPs, f.primary) {
			e.Addresses[0] = f.second
		}
	}
	switch odd := d.IntN(30); {
	case odd == 0:
		e.NodeName = nil
	case hints < noHints: // what we leave out has no say in whether all have hints
	case odd == 1:
		e.Addresses[0] = pick(d.Rand, d.own(f.external, n), d.own(f.vip, n), d.own(f.vip, n+1))
	case odd == 2:
		e.Addresses[0] = pick(d.Rand, "127.0.0.5", "::1", "169.254.7.7", "fe80::7")
	}
	if (f.Family == policy.IPv6) != strings.Contains(e.Addresses[0], ":") {
		e.Addresses[0] = f.second
	}
	if before, known := d.known[e.Addresses[0]]; known && !d.oneIn(20) {
		return before
	}
	c := &e.Conditions
	switch d.IntN(5) {
	case 0, 1:
		c.Ready, c.Serving, c.Terminating = ptr(true), ptr(true), ptr(false)
	case 2:
		c.Ready, c.Serving, c.Terminating = ptr(false), ptr(true), ptr(true)
	case 3:
		some := func() *bool { return pick(d.Rand, nil, ptr(true), ptr(false)) }
		c.Ready, c.Serving, c.Terminating = some(), some(), some()
	}
	if !d.oneIn(3) {
		e.Zone = ptr(pick(d.Rand, "z1", "z2", "", "an odd zone/!"))
	}
	e.Hints = d.hints(hints)
	d.known[e.Addresses[0]] = e
	return e
}

// noHints is the first kind of services whose endpoints have no hints.
const noHints = 4

// hints draws hints of a kind.
func (d *drawer) hints(kind int) *discovery.EndpointHints {
	if kind >= noHints || d.oneIn(15) {
		return nil
	}
	var out discovery.EndpointHints
	if kind != 1 {
		out.ForZones = []discovery.ForZone{{Name: pick(d.Rand, "z1", "z1", "z2")}}
	}
	if kind != 2 {
		out.ForNodes = []discovery.ForNode{{Name: pick(d.Rand, nodeName, nodeName, "there")}}
	}
	if kind == 3 && d.oneIn(2) {
		out.ForZones = append(out.ForZones, discovery.ForZone{Name: "z3"})
	}
	return &out
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }
