package peers

import (
	"fmt"
	"net/netip"
	"slices"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"svcproxy.dev/svcproxy/test/lab"
)

const (
	nodeName   = "node"
	vipPort    = 80
	perFile    = 100 // services in a file
	podRange   = "10.244.0.0/16"
	targetPort = 8080 // lab.EndpointPorts[0]
)

// Where endpoints are: those that services have at first, and those that take their
// place, by turns. One host answers for all of each range.
var (
	endpointRange = netip.MustParsePrefix("10.128.0.0/10")
	spareRanges   = []netip.Prefix{netip.MustParsePrefix("10.192.0.0/11"), netip.MustParsePrefix("10.224.0.0/12")}
	vips          = netip.MustParsePrefix("10.96.0.0/12")
	firstVIP      = netip.MustParseAddr("10.96.0.1")
)

// A service is one of those that all programs are given.
type service struct {
	index     int
	endpoints []netip.Addr
	leaving   []netip.Addr // endpoints that others have just replaced, for the API
}

// makeServices returns services of which no two share an endpoint.
func makeServices(s size) []service {
	all := make([]service, s.services)
	for i := range all {
		all[i] = service{index: i, endpoints: make([]netip.Addr, s.endpoints)}
		for j := range s.endpoints {
			all[i].endpoints[j] = offset(endpointRange.Addr(), 1+i*s.endpoints+j)
		}
	}
	return all
}

// offset returns the n-th IPv4 address after addr.
func offset(addr netip.Addr, n int) netip.Addr {
	b := addr.As4()
	v := int(b[0])<<24 + int(b[1])<<16 + int(b[2])<<8 + int(b[3]) + n
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// move replaces the first count endpoints of the service by those of a spare range. For
// the API that is a step of a rollout: those that were replaced are still there, and
// terminating, until the next step.
func (s *service) move(count, spare int) {
	s.leaving = slices.Clone(s.endpoints[:count])
	for j := range count {
		s.endpoints[j] = offset(spareRanges[spare].Addr(), 1+(s.index*len(s.endpoints)+j)%1_000_000)
	}
}

func (s *service) name() string { return fmt.Sprintf("service-%06d", s.index) }

// address is where the service listens.
func (s *service) address() netip.AddrPort {
	return netip.AddrPortFrom(offset(firstVIP, s.index), vipPort)
}

// object is the service as the API has it.
func (s *service) object() *core.Service {
	vip, policy, internal := s.address().Addr().String(), core.IPFamilyPolicySingleStack, core.ServiceInternalTrafficPolicyCluster
	return &core.Service{
		ObjectMeta: s.meta(s.name()),
		Spec: core.ServiceSpec{
			Type: core.ServiceTypeClusterIP, ClusterIP: vip, ClusterIPs: []string{vip},
			IPFamilies: []core.IPFamily{core.IPv4Protocol}, IPFamilyPolicy: &policy, InternalTrafficPolicy: &internal,
			SessionAffinity: core.ServiceAffinityNone, Selector: map[string]string{"app": s.name()},
			Ports: []core.ServicePort{{Name: "http", Protocol: core.ProtocolTCP, Port: vipPort, TargetPort: intstr.FromInt32(targetPort)}},
		},
	}
}

// slice has the endpoints as the controller of Kubernetes makes them.
func (s *service) slice() *discovery.EndpointSlice {
	m := s.meta(s.name() + "-abcde")
	m.Labels[discovery.LabelServiceName] = s.name()
	m.Labels[discovery.LabelManagedBy] = "endpointslice-controller.k8s.io"
	out := &discovery.EndpointSlice{
		ObjectMeta: m, AddressType: discovery.AddressTypeIPv4, Endpoints: make([]discovery.Endpoint, len(s.endpoints)),
		Ports: []discovery.EndpointPort{{Name: ptr("http"), Port: ptr(int32(targetPort)), Protocol: ptr(core.ProtocolTCP)}},
	}
	for j, addr := range s.endpoints {
		out.Endpoints[j] = s.endpoint(j, addr, true)
	}
	for j, addr := range s.leaving {
		out.Endpoints = append(out.Endpoints, s.endpoint(len(s.endpoints)+j, addr, false))
	}
	return out
}

// endpoint is one that is ready, or serves and is about to end.
func (s *service) endpoint(j int, addr netip.Addr, ready bool) discovery.Endpoint {
	e := s.index*len(s.endpoints) + j
	return discovery.Endpoint{
		Addresses:  []string{addr.String()},
		Conditions: discovery.EndpointConditions{Ready: &ready, Serving: ptr(true), Terminating: ptr(!ready)},
		NodeName:   ptr(fmt.Sprintf("node-%d", e%500)), Zone: ptr(fmt.Sprintf("zone-%d", e%3)),
		TargetRef: &core.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("%s-5d4f8c7b9-%05d", s.name(), j), UID: uid(e)},
	}
}

func (s *service) meta(name string) meta.ObjectMeta {
	return meta.ObjectMeta{
		Name: name, Namespace: "default", UID: uid(s.index), Generation: 1, ResourceVersion: fmt.Sprint(firstVersion),
		Labels: map[string]string{"app": s.name()},
	}
}

func uid(n int) types.UID { return types.UID(fmt.Sprintf("0b1b0c5e-0000-4000-8000-%012x", n)) }

func ptr[T any](v T) *T { return &v }

// node is the object of the host that is measured, and cidr the range of all VIPs.
func node() *core.Node {
	return &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: nodeName, UID: uid(0), ResourceVersion: fmt.Sprint(firstVersion)},
		Status: core.NodeStatus{Addresses: []core.NodeAddress{
			{Type: core.NodeInternalIP, Address: lab.FrontAddr.V4.String()}, {Type: core.NodeHostName, Address: nodeName},
		}},
	}
}

func cidr() *networking.ServiceCIDR {
	return &networking.ServiceCIDR{
		ObjectMeta: meta.ObjectMeta{Name: "kubernetes", UID: uid(0), ResourceVersion: fmt.Sprint(firstVersion)},
		Spec:       networking.ServiceCIDRSpec{CIDRs: []string{vips.String()}},
		Status:     networking.ServiceCIDRStatus{Conditions: []meta.Condition{{Type: networking.ServiceCIDRConditionReady, Status: meta.ConditionTrue}}},
	}
}

// fileOf returns the name and the text of the file that has the i-th of all services.
func fileOf(all []service, i int) (name, text string, err error) {
	from := i / perFile * perFile
	var services []lab.Service
	for _, s := range all[from:min(from+perFile, len(all))] {
		services = append(services, s.inFile())
	}
	text, err = lab.File(services...)
	return fmt.Sprintf("services-%04d.json", i/perFile), text, err
}

func (s *service) inFile() lab.Service {
	out := lab.Service{
		Name: s.name(), VIPs: []netip.Addr{s.address().Addr()},
		Ports: []lab.Port{{Name: "http", Port: vipPort, TargetPort: targetPort}},
	}
	for _, addr := range s.endpoints {
		out.Endpoints = append(out.Endpoints, lab.Endpoint{Address: addr})
	}
	return out
}
