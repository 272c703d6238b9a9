//go:build !nokubernetes

package kubernetes

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"svcproxy.dev/svcproxy/source"
)

var compareAddrs = cmp.Options{
	cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}),
}

func mustAddrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestParseService(t *testing.T) {
	type spec = func(*core.Service)
	type want = func(*source.Service)
	dual := func(s *core.Service) { s.Spec.ClusterIPs = []string{"10.96.0.1", "fd00:96::1"} }
	balancer := func(ips ...string) spec {
		return func(s *core.Service) {
			s.Spec.Type = core.ServiceTypeLoadBalancer
			for _, ip := range ips {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, core.LoadBalancerIngress{IP: ip})
			}
		}
	}
	external := func(ips ...string) spec { return func(s *core.Service) { s.Spec.ExternalIPs = ips } }
	ranges := func(list ...string) spec {
		return func(s *core.Service) { s.Spec.LoadBalancerSourceRanges = list }
	}
	policyLocal := func(s *core.Service) {
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = core.ServiceExternalTrafficPolicyLocal, 32000
	}
	bothIPs := func(s *source.Service) { s.VIPs = mustAddrs("10.96.0.1", "fd00:96::1") }
	lb := func(ips ...string) want { return func(s *source.Service) { s.LoadBalancerIPs = mustAddrs(ips...) } }
	tests := []struct {
		name string
		spec []spec
		want []want // on top of default/a, 10.96.0.1, 80/tcp
	}{
		{"plain", nil, nil},
		{"dual stack", []spec{dual}, []want{bothIPs}},
		{"before cluster IPs were a list", []spec{func(s *core.Service) { s.Spec.ClusterIPs = nil }}, nil},
		{"ports", []spec{func(s *core.Service) {
			s.Spec.Ports = []core.ServicePort{
				{Name: "http", Protocol: core.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: 30080},
				{Name: "dns", Protocol: core.ProtocolUDP, Port: 53, TargetPort: intstr.FromString("dns")},
				{Name: "diameter", Protocol: core.ProtocolSCTP, Port: 3868},
				{Name: "odd", Protocol: "DCCP", Port: 5001},
			}
		}}, []want{func(s *source.Service) {
			s.Ports = []source.Port{
				{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 8080, NodePort: 30080},
				{Name: "dns", Protocol: source.UDP, Port: 53, TargetPort: 53},
				{Name: "diameter", Protocol: source.SCTP, Port: 3868, TargetPort: 3868},
			}
		}}},
		{"external addresses of families that it has", []spec{external("192.0.2.1", "2001:db8::1", "10.96.0.1", "127.0.0.1", "010.0.0.1")},
			[]want{func(s *source.Service) { s.ExternalIPs = mustAddrs("192.0.2.1", "10.0.0.1") }}},
		{"addresses as kube-proxy reads them", []spec{func(s *core.Service) { s.Spec.ClusterIPs = []string{"010.096.0.01"} }, external("::ffff:192.0.2.1"), balancer("192.000.002.002")},
			[]want{lb("192.0.2.2"), func(s *source.Service) { s.ExternalIPs = mustAddrs("192.0.2.1") }}},
		{"address of balancer and external", []spec{external("192.0.2.1", "192.0.2.2"), balancer("192.0.2.1")},
			[]want{lb("192.0.2.1"), func(s *source.Service) { s.ExternalIPs = mustAddrs("192.0.2.2") }}},
		{"balancers", []spec{balancer("192.0.2.1", ""), func(s *core.Service) {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
				core.LoadBalancerIngress{IP: "192.0.2.2", IPMode: new(core.LoadBalancerIPModeProxy)},
				core.LoadBalancerIngress{IP: "192.0.2.3", IPMode: new(core.LoadBalancerIPModeVIP)},
				core.LoadBalancerIngress{Hostname: "lb.example.com"})
		}}, []want{lb("192.0.2.1", "192.0.2.3")}},
		{"source ranges", []spec{balancer("192.0.2.1"), ranges(" 10.1.2.3/8 ", "10.0.0.0/8", "fd00::/8", "x")},
			[]want{lb("192.0.2.1"), func(s *source.Service) { s.LoadBalancerSourceRanges = prefixes("10.0.0.0/8") }}},
		{"source ranges as kube-proxy reads them", []spec{balancer("192.0.2.1"), ranges("010.0.0.0/8", "::ffff:10.1.0.0/112", "")},
			[]want{lb("192.0.2.1"), func(s *source.Service) { s.LoadBalancerSourceRanges = prefixes("10.0.0.0/8", "10.1.0.0/16") }}},
		{"a source range that cannot be read admits nobody", []spec{balancer("192.0.2.1"), ranges("10.0.0.0")},
			[]want{lb("192.0.2.1"), func(s *source.Service) { s.LoadBalancerSourceRanges = []netip.Prefix{nobody} }}},
		{"and opens no family", []spec{dual, balancer("192.0.2.1", "2001:db8::1"), ranges("10.0.0.0/8", "fd00::/x")},
			[]want{bothIPs, lb("192.0.2.1", "2001:db8::1"), func(s *source.Service) { s.LoadBalancerSourceRanges = prefixes("10.0.0.0/8") }}},
		{"source ranges that admit all", []spec{balancer("192.0.2.1"), ranges("10.0.0.0/8", "0.0.0.0/0")}, []want{lb("192.0.2.1")}},
		{"source ranges of the other family", []spec{balancer("192.0.2.1"), ranges("fd00::/8")}, []want{lb("192.0.2.1")}},
		{"source ranges of one family of two", []spec{dual, balancer("192.0.2.1", "2001:db8::1"), ranges("10.0.0.0/8")},
			[]want{bothIPs, lb("192.0.2.1", "2001:db8::1"), func(s *source.Service) { s.LoadBalancerSourceRanges = prefixes("10.0.0.0/8", "::/0") }}},
		{"policies", []spec{balancer(), policyLocal, func(s *core.Service) { s.Spec.InternalTrafficPolicy = new(core.ServiceInternalTrafficPolicyLocal) }},
			[]want{func(s *source.Service) {
				s.InternalTrafficPolicy, s.ExternalTrafficPolicy, s.HealthCheckNodePort = source.Local, source.Local, 32000
			}}},
		{"health is for balancers", []spec{policyLocal, external("192.0.2.1")},
			[]want{func(s *source.Service) {
				s.ExternalIPs, s.ExternalTrafficPolicy = mustAddrs("192.0.2.1"), source.Local
			}}},
		{"external policy without external traffic", []spec{policyLocal}, nil},
		{"affinity", []spec{func(s *core.Service) {
			s.Spec.SessionAffinity = core.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &core.SessionAffinityConfig{ClientIP: &core.ClientIPConfig{TimeoutSeconds: new(int32(60))}}
		}}, []want{func(s *source.Service) { s.Affinity = time.Minute }}},
		{"affinity without time", []spec{func(s *core.Service) { s.Spec.SessionAffinity = core.ServiceAffinityClientIP }},
			[]want{func(s *source.Service) { s.Affinity = 3 * time.Hour }}},
		{"not-ready endpoints are published by the API", []spec{func(s *core.Service) { s.Spec.PublishNotReadyAddresses = true }}, nil},
		{"distribution is given by hints", []spec{func(s *core.Service) { s.Spec.TrafficDistribution = new("PreferSameZone") }}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := &source.Service{
				Key: source.Key{Namespace: "default", Name: "a"}, VIPs: mustAddrs("10.96.0.1"), InCluster: true,
				Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 80}},
			}
			for _, f := range tt.want {
				f(want)
			}
			got := parseService(svc("a", "10.96.0.1", tt.spec...), newWords())
			if diff := cmp.Diff(want, got.Service, compareAddrs); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if got.created != 1000e9 {
				t.Errorf("created %d", got.created)
			}
		})
	}
}

func TestParseServiceWithoutAddress(t *testing.T) {
	for _, s := range []*core.Service{
		svc("a", "None"), svc("a", ""),
		svc("a", "10.96.0.1", func(s *core.Service) { s.Spec.Type = core.ServiceTypeExternalName }),
	} {
		if got := parseService(s, newWords()); got != nil {
			t.Errorf("%+v gives %+v", s.Spec, got.Service)
		}
	}
}

func TestParseSlice(t *testing.T) {
	s := eps("s", "a", "10.0.0.2", "10.0.0.1!")
	s.Endpoints[0].NodeName, s.Endpoints[0].Zone = new("n1"), new("z1")
	s.Endpoints[0].Hints = &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: "z1"}, {Name: "z2"}}, ForNodes: []discovery.ForNode{{Name: "n2"}}}
	s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, "10.0.0.77")
	s.Endpoints = append(s.Endpoints,
		discovery.Endpoint{Addresses: []string{"10.0.0.3"}}, // all conditions nil
		discovery.Endpoint{Addresses: []string{"10.0.0.4"}, Conditions: discovery.EndpointConditions{Ready: new(false), Terminating: new(true)}},
		discovery.Endpoint{Addresses: []string{"169.254.0.1"}}, discovery.Endpoint{Addresses: []string{"pod"}}, discovery.Endpoint{})
	s.Ports = append(s.Ports, discovery.EndpointPort{Name: new("all")}, discovery.EndpointPort{Port: new(int32(53)), Protocol: new(core.ProtocolUDP)})
	want := &slice{
		notes: notes{lines: []string{"endpoint 169.254.0.1 is a link-local address: left out", `endpoint "pod" is not an address: left out`}},
		name:  "s", service: source.Key{Namespace: "default", Name: "a"}, hinted: true,
		ports: []slicePort{{"", source.TCP, 8080}, {"", source.UDP, 53}},
		endpoints: []source.Endpoint{
			{Addr: netip.MustParseAddr("10.0.0.1"), Weight: 1},
			source.Endpoint{Addr: netip.MustParseAddr("10.0.0.2"), Weight: 1, Ready: true, Serving: true}.With(source.Extras{
				Node: "n1", Zone: "z1", Hints: &source.Hints{Zones: []string{"z1", "z2"}, Nodes: []string{"n2"}},
			}),
			{Addr: netip.MustParseAddr("10.0.0.3"), Weight: 1, Ready: true, Serving: true},
			{Addr: netip.MustParseAddr("10.0.0.4"), Weight: 1, Serving: true, Terminating: true},
		},
	}
	got := parseSlice(s, newWords())
	compareEndpoints := cmp.Comparer(func(a, b source.Endpoint) bool { return len(a.Differences(&b)) == 0 })
	if diff := cmp.Diff(want, got, compareAddrs, compareEndpoints, cmp.AllowUnexported(slice{}, slicePort{}, notes{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	alone := eps("s", "a")
	alone.Labels = nil
	if parseSlice(alone, newWords()) != nil {
		t.Errorf("%+v is of a service", alone)
	}
}

// The annotation of Cilium gives all endpoints of a slice their weight.
func TestParseWeight(t *testing.T) {
	for text, want := range map[string]uint16{"90": 90, "0": 0, "65535": 65535, "65536": 1, "-1": 1, "": 1} {
		s := eps("s", "a", "10.0.0.1", "10.0.0.2")
		s.Annotations = map[string]string{"service.cilium.io/weight": text}
		got := parseSlice(s, newWords())
		noted := len(got.notes.all()) > 0
		if len(got.endpoints) != 2 || got.endpoints[0].Weight != want || got.endpoints[1].Weight != want || noted != (text == "65536" || text == "-1" || text == "") {
			t.Errorf("%q: %+v, %v; want weight %d", text, got.endpoints, got.notes.all(), want)
		}
	}
}

func TestParseNode(t *testing.T) {
	n := &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: "here", Labels: map[string]string{core.LabelTopologyZone: "z"}},
		Spec:       core.NodeSpec{PodCIDRs: []string{"10.244.1.0/24", "fd00:244::/64", "x"}},
		Status: core.NodeStatus{Addresses: []core.NodeAddress{
			{Type: core.NodeHostName, Address: "here"}, {Type: core.NodeExternalIP, Address: "203.0.113.1"},
			{Type: core.NodeInternalIP, Address: "192.0.2.1"}, {Type: core.NodeInternalIP, Address: "192.0.2.2"},
			{Type: core.NodeExternalIP, Address: "2001:db8::1"},
		}},
	}
	want := &source.ClusterNode{Zone: "z", Eligible: true, PodCIDRs: prefixes("10.244.1.0/24", "fd00:244::/64"), Addrs: mustAddrs("192.0.2.1", "2001:db8::1")}
	if diff := cmp.Diff(want, parseNode(n), compareAddrs); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	tainted, deleted := n.DeepCopy(), n.DeepCopy()
	tainted.Spec.Taints = []core.Taint{{Key: toBeDeleted}}
	deleted.DeletionTimestamp = new(meta.Now())
	for _, n := range []*core.Node{tainted, deleted} {
		if parseNode(n).Eligible {
			t.Errorf("eligible: %+v", n)
		}
	}
}
