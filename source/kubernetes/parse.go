//go:build !nokubernetes

package kubernetes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"svcproxy.dev/svcproxy/source"
)

// A service is what we keep of a Service object.
type service struct {
	*source.Service       // without endpoints
	created         int64 // ns since 1970; 0: not known
	notes           notes
}

// parseService returns nil for a service that has no addresses of its own to
// serve: headless, or another name for something outside.
func parseService(s *core.Service, words *words) *service {
	if s.Spec.Type == core.ServiceTypeExternalName || s.Spec.ClusterIP == "" || s.Spec.ClusterIP == core.ClusterIPNone {
		return nil
	}
	out := &service{created: nanoseconds(s.CreationTimestamp), Service: &source.Service{
		Key: source.Key{Namespace: words.one(s.Namespace), Name: s.Name}, InCluster: true,
	}}
	out.VIPs = out.notes.addrs("cluster IP", clusterIPs(s))
	out.addresses(s)
	out.LoadBalancerSourceRanges = out.notes.sourceRanges(s.Spec.LoadBalancerSourceRanges, out.LoadBalancerIPs)
	for i := range s.Spec.Ports {
		p := parsePort(&s.Spec.Ports[i], words)
		if p.Protocol == 0 || p.Port == 0 {
			out.notes.add("port %d/%s is of no protocol or number that can be served: left out", s.Spec.Ports[i].Port, source.Excerpt(string(s.Spec.Ports[i].Protocol)))
			continue
		}
		out.Ports = append(out.Ports, p)
	}
	policies(out.Service, s)
	if s.Spec.SessionAffinity == core.ServiceAffinityClientIP {
		out.Affinity = affinity(s.Spec.SessionAffinityConfig)
	}
	return out
}

// nanoseconds returns 0 for an object that says nothing of when it was created:
// the zero time, long before 1970, would make it the oldest.
func nanoseconds(t meta.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// clusterIPs returns the list, which API servers before 1.20 do not have.
func clusterIPs(s *core.Service) []string {
	if len(s.Spec.ClusterIPs) == 0 {
		return []string{s.Spec.ClusterIP}
	}
	return s.Spec.ClusterIPs
}

// addresses fills in the addresses for external traffic, as far as the service
// has their family. Kubernetes lets the same address stand in several lists. A
// load balancer's comes first, for it alone has source ranges.
func (out *service) addresses(s *core.Service) {
	seen := slices.Clone(out.VIPs)
	take := func(what string, list []string) []netip.Addr {
		return slices.DeleteFunc(out.notes.addrs(what, list), func(a netip.Addr) bool {
			if !hasFamily(out.VIPs, a) {
				out.notes.add("%s %s is of a family of which the service has no cluster IP: left out", what, a)
				return true
			}
			twice := slices.Contains(seen, a)
			seen = append(seen, a)
			return twice
		})
	}
	var balancers []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.IPMode == nil || *in.IPMode == core.LoadBalancerIPModeVIP { // others hand packets to node ports
			balancers = append(balancers, in.IP)
		}
	}
	out.LoadBalancerIPs = take("load-balancer address", balancers)
	out.ExternalIPs = take("external IP", s.Spec.ExternalIPs)
}

func hasFamily(list []netip.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(b netip.Addr) bool { return a.Is4() == b.Is4() })
}

// sourceRanges returns who may use load-balancer addresses. In Kubernetes a
// family without a range is open to all, and so is one with a range of all
// (kube-proxy, newBaseServiceInfo); the model closes a family without a range.
// kube-proxy passes over what is no range; it may have been the only one of
// its family, which is therefore closed.
func (n *notes) sourceRanges(list []string, balancers []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	unread := false
	for _, text := range list {
		switch p, ok := prefix(text); {
		case strings.TrimSpace(text) == "":
		case !ok:
			n.add("source range %s cannot be read: it admits nobody, and opens no family that has no other range", source.Excerpt(text))
			unread = true
		case !slices.Contains(out, p):
			out = append(out, p)
		}
	}
	closed := false
	for _, all := range []netip.Prefix{anyIPv4, anyIPv6} {
		ofFamily := func(p netip.Prefix) bool { return p.Addr().Is4() == all.Addr().Is4() }
		if slices.Contains(out, all) || !unread && !slices.ContainsFunc(out, ofFamily) {
			out = append(slices.DeleteFunc(out, ofFamily), all)
		} else if hasFamily(balancers, all.Addr()) {
			closed = true
		}
	}
	if !closed {
		return nil
	}
	ours := slices.DeleteFunc(slices.Clone(out), func(p netip.Prefix) bool { return !hasFamily(balancers, p.Addr()) })
	if len(ours) == 0 { // not even one that admits nobody: an empty list would admit everybody
		return []netip.Prefix{nobody}
	}
	return ours
}

var (
	anyIPv4 = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	anyIPv6 = netip.PrefixFrom(netip.IPv6Unspecified(), 0)

	// nobody has this address: it is of the prefix for discarding, RFC 6666.
	nobody = netip.MustParsePrefix("100::/128")
)

// parsePort takes the target port as it stands where it is a number. Slices have
// the numbers that count; see ports in merge.go.
func parsePort(p *core.ServicePort, words *words) source.Port {
	out := source.Port{
		Name: words.one(p.Name), Protocol: protocol(p.Protocol),
		Port: number(p.Port), NodePort: number(p.NodePort),
	}
	out.TargetPort = out.Port
	if p.TargetPort.Type == intstr.Int && number(p.TargetPort.IntVal) != 0 {
		out.TargetPort = number(p.TargetPort.IntVal)
	}
	return out
}

// protocol returns 0 for one that we do not know.
func protocol(p core.Protocol) source.Protocol {
	switch p {
	case core.ProtocolTCP, "":
		return source.TCP
	case core.ProtocolUDP:
		return source.UDP
	case core.ProtocolSCTP:
		return source.SCTP
	}
	return 0
}

// number returns 0 for what is no port number.
func number(n int32) uint16 {
	if n < 0 || n > 65535 {
		return 0
	}
	return uint16(n)
}

// policies fills in the traffic policies. The external one counts only where
// there can be external traffic, and only load balancers ask for health.
func policies(out *source.Service, s *core.Service) {
	spec := &s.Spec
	if p := spec.InternalTrafficPolicy; p != nil && *p == core.ServiceInternalTrafficPolicyLocal {
		out.InternalTrafficPolicy = source.Local
	}
	external := spec.Type == core.ServiceTypeLoadBalancer || spec.Type == core.ServiceTypeNodePort || len(spec.ExternalIPs) > 0
	if external && spec.ExternalTrafficPolicy == core.ServiceExternalTrafficPolicyLocal {
		out.ExternalTrafficPolicy = source.Local
		if spec.Type == core.ServiceTypeLoadBalancer {
			out.HealthCheckNodePort = number(spec.HealthCheckNodePort)
		}
	}
}

// affinity returns how long a client keeps its endpoint: what the API server fills in, 3 h, where nothing is written.
func affinity(c *core.SessionAffinityConfig) time.Duration {
	secs := core.DefaultClientIPServiceAffinitySeconds
	if c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		secs = *c.ClientIP.TimeoutSeconds
	}
	return time.Duration(secs) * time.Second
}

// A slice is what we keep of an EndpointSlice object.
type slice struct {
	name      string
	service   source.Key
	ports     []slicePort
	endpoints []source.Endpoint // sorted; with Hints as given, without Ports
	hinted    bool              // some have Hints
	notes     notes
	changed   time.Time // when what it tells of was; zero: not known
}

// A slicePort is one port of all endpoints of a slice.
type slicePort struct {
	name     string // of the service's port
	protocol source.Protocol
	number   uint16
}

// parseSlice returns nil for a slice of no service.
func parseSlice(s *discovery.EndpointSlice, words *words) *slice {
	name := s.Labels[discovery.LabelServiceName]
	if name == "" {
		return nil
	}
	out := &slice{name: s.Name, service: source.Key{Namespace: words.one(s.Namespace), Name: name}}
	// Of the endpoints controller, for kube-proxy's network programming latency.
	out.changed, _ = time.Parse(time.RFC3339Nano, s.Annotations[core.EndpointsLastChangeTriggerTime])
	if s.AddressType == discovery.AddressTypeFQDN {
		out.notes.add("slice %s has names in place of addresses: left out", source.Excerpt(s.Name))
		return out
	}
	for _, p := range s.Ports {
		if p.Port != nil && number(*p.Port) != 0 {
			out.ports = append(out.ports, slicePort{words.one(ptr.Deref(p.Name, "")), protocol(ptr.Deref(p.Protocol, "")), number(*p.Port)})
		}
	}
	weight := out.weight(s)
	out.endpoints = make([]source.Endpoint, 0, len(s.Endpoints))
	for i := range s.Endpoints {
		e, ok := out.notes.endpoint(&s.Endpoints[i], words)
		if ok {
			e.Weight = weight
			out.endpoints = append(out.endpoints, e)
			out.hinted = out.hinted || e.Extras().Hints != nil
		}
	}
	slices.SortStableFunc(out.endpoints, compareEndpoints)
	return out
}

// weightKey is the annotation by which Cilium gives all endpoints of a slice a weight.
const weightKey = "service.cilium.io/weight"

// weight returns the weight of the endpoints of a slice.
func (out *slice) weight(s *discovery.EndpointSlice) uint16 {
	text, written := s.Annotations[weightKey]
	n, err := strconv.ParseUint(text, 10, 16)
	if err == nil {
		return uint16(n)
	}
	if written {
		out.notes.add("the weight %s of slice %s is no number up to 65535: 1 in its place", source.Excerpt(text), source.Excerpt(s.Name))
	}
	return 1
}

// endpoint takes the first address: others have no meaning (discovery/v1).
// Conditions that are not written mean that all is well.
func (n *notes) endpoint(e *discovery.Endpoint, words *words) (source.Endpoint, bool) {
	list := n.addrs("endpoint", e.Addresses[:min(1, len(e.Addresses))])
	if len(list) == 0 {
		return source.Endpoint{}, false
	}
	zone := ptr.Deref(e.Zone, "")
	if !source.IsName(zone) { // it counts nowhere: hints say who is near
		zone = ""
	}
	c := &e.Conditions
	out := source.Endpoint{
		Addr: list[0], Weight: 1,
		Ready:       c.Ready == nil || *c.Ready,
		Serving:     c.Serving == nil || *c.Serving,
		Terminating: c.Terminating != nil && *c.Terminating,
	}
	out = out.With(source.Extras{Node: words.one(ptr.Deref(e.NodeName, "")), Zone: words.one(zone), Hints: parseHints(e.Hints, words)})
	return out, true
}

func parseHints(h *discovery.EndpointHints, words *words) *source.Hints {
	if h == nil || len(h.ForZones)+len(h.ForNodes) == 0 {
		return nil
	}
	var out source.Hints
	for _, z := range h.ForZones {
		out.Zones = append(out.Zones, words.one(z.Name))
	}
	for _, n := range h.ForNodes {
		out.Nodes = append(out.Nodes, words.one(n.Name))
	}
	return words.hints(out)
}

// compareEndpoints orders endpoints by address. Of those with one address, which
// pods have of which the network gave the address of one that ends to a new one,
// the one that does not end comes first.
func compareEndpoints(a, b source.Endpoint) int {
	return cmp.Or(a.Addr.Compare(b.Addr), trueFirst(!a.Terminating, !b.Terminating),
		trueFirst(a.Ready, b.Ready), trueFirst(a.Serving, b.Serving))
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// toBeDeleted is the taint by which the cluster autoscaler says that a node goes.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

func parseNode(n *core.Node) *source.ClusterNode {
	out := &source.ClusterNode{Zone: n.Labels[core.LabelTopologyZone], Addrs: nodeAddrs(n), PodCIDRs: readPrefixes(n.Spec.PodCIDRs)}
	out.Eligible = n.DeletionTimestamp.IsZero() &&
		!slices.ContainsFunc(n.Spec.Taints, func(t core.Taint) bool { return t.Key == toBeDeleted })
	return out
}

// nodeAddrs returns the first address of each family, internal ones before external ones.
func nodeAddrs(n *core.Node) []netip.Addr {
	var out []netip.Addr
	var unused notes // nodes have addresses for many purposes
	for _, kind := range []core.NodeAddressType{core.NodeInternalIP, core.NodeExternalIP} {
		for _, na := range n.Status.Addresses {
			if na.Type != kind {
				continue
			}
			for _, a := range unused.addrs("address", []string{na.Address}) {
				if !hasFamily(out, a) {
					out = append(out, a)
				}
			}
		}
	}
	return out
}

// words keeps one copy of each string and of each set of hints that many objects
// have. It belongs to one goroutine.
type words struct {
	strings map[string]string
	sets    map[string]*source.Hints
}

// maxWords bounds what is remembered of nodes and zones that came and went.
const maxWords = 100_000

func newWords() *words {
	return &words{strings: map[string]string{}, sets: map[string]*source.Hints{}}
}

func (w *words) one(s string) string {
	if have, ok := w.strings[s]; ok {
		return have
	}
	if len(w.strings) >= maxWords {
		clear(w.strings)
	}
	w.strings[s] = s
	return s
}

func (w *words) hints(h source.Hints) *source.Hints {
	key := fmt.Sprintf("%q %q", h.Nodes, h.Zones)
	if have, ok := w.sets[key]; ok {
		return have
	}
	if len(w.sets) >= maxWords {
		clear(w.sets)
	}
	w.sets[key] = &h
	return &h
}
