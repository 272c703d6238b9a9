//go:build !nokubernetes

package kubernetes

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// A drawn service, written both ways: as TOML and as objects.
type drawn struct {
	toml    strings.Builder
	service *core.Service
	slices  []*discovery.EndpointSlice
}

func (d *drawn) key(name string, value any) { fmt.Fprintf(&d.toml, "%s = %v\n", name, value) }

// quoted writes a list of strings as TOML.
func quoted(list []string) string {
	var words []string
	for _, s := range list {
		words = append(words, fmt.Sprintf("%q", s))
	}
	return "[" + strings.Join(words, ", ") + "]"
}

var families = []struct {
	kind             discovery.AddressType
	vip, ext, lb, ep string // formats
	ranges           []string
}{
	{discovery.AddressTypeIPv4, "10.96.0.%d", "192.0.2.%d", "198.51.100.%d", "10.0.%d.%d", []string{"10.1.0.0/16", "203.0.113.0/24"}},
	{discovery.AddressTypeIPv6, "fd00:96::%d", "2001:db8:1::%d", "2001:db8:2::%d", "fd00:%d::%d", []string{"fd00:1::/32", "2001:db8:9::/48"}},
}

// drawService draws service number n, in one family or both. A port name, so
// that it has several.
func drawService(t *rapid.T, n int) *drawn {
	d := &drawn{service: svc(fmt.Sprintf("s%d", n), "")}
	var fams []int
	for f := range families {
		if rapid.Bool().Draw(t, "family") || f == 1 && len(fams) == 0 {
			fams = append(fams, f)
		}
	}
	fmt.Fprintf(&d.toml, "[[services]]\nname = \"s%d\"\n", n)
	d.addresses(t, n, fams)
	d.options(t, n)
	ports := d.ports(t, n)
	for _, f := range fams {
		d.endpoints(t, n, f, ports)
	}
	return d
}

func (d *drawn) addresses(t *rapid.T, n int, fams []int) {
	spec := &d.service.Spec
	spec.Type = core.ServiceTypeLoadBalancer
	spec.ClusterIPs = nil
	var lbs, ranges []string
	for _, f := range fams {
		fam := families[f]
		spec.ClusterIPs = append(spec.ClusterIPs, fmt.Sprintf(fam.vip, n+1))
		shared := fmt.Sprintf(fam.ext, 99) // several services may have it, in either list
		if rapid.Bool().Draw(t, "external") {
			next := fmt.Sprintf(fam.vip, n+2) // perhaps the VIP of another one
			spec.ExternalIPs = append(spec.ExternalIPs, rapid.SampledFrom([]string{fmt.Sprintf(fam.ext, n+1), shared, next}).Draw(t, "external IP"))
		}
		if rapid.Bool().Draw(t, "balancer") && !slices.Contains(spec.ExternalIPs, shared) {
			lbs = append(lbs, rapid.SampledFrom([]string{fmt.Sprintf(fam.lb, n+1), shared}).Draw(t, "balancer IP"))
		}
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	for _, ip := range lbs {
		d.service.Status.LoadBalancer.Ingress = append(d.service.Status.LoadBalancer.Ingress, core.LoadBalancerIngress{IP: ip})
	}
	if len(lbs) > 0 && rapid.Bool().Draw(t, "ranges") {
		for _, f := range fams { // in every family: the two sources mean different things by a family without
			ranges = append(ranges, families[f].ranges[:rapid.IntRange(1, 2).Draw(t, "how many")]...)
		}
	}
	spec.LoadBalancerSourceRanges = ranges
	d.key("vips", quoted(spec.ClusterIPs))
	d.key("external_ips", quoted(spec.ExternalIPs))
	d.key("load_balancer_ips", quoted(lbs))
	d.key("load_balancer_source_ranges", quoted(ranges))
}

func (d *drawn) options(t *rapid.T, n int) {
	spec := &d.service.Spec
	if rapid.Bool().Draw(t, "internal local") {
		spec.InternalTrafficPolicy = new(core.ServiceInternalTrafficPolicyLocal)
		d.key("internal_traffic_policy", `"local"`)
	}
	if rapid.Bool().Draw(t, "external local") {
		spec.ExternalTrafficPolicy, spec.HealthCheckNodePort = core.ServiceExternalTrafficPolicyLocal, int32(32000+n)
		d.key("external_traffic_policy", `"local"`)
		d.key("health_check_node_port", 32000+n)
	}
	if rapid.Bool().Draw(t, "affinity") {
		secs := rapid.Int32Range(1, 86400).Draw(t, "seconds")
		spec.SessionAffinity = core.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &core.SessionAffinityConfig{ClientIP: &core.ClientIPConfig{TimeoutSeconds: &secs}}
		d.key("session_affinity", `"client_ip"`)
		d.key("session_affinity_timeout", fmt.Sprintf(`"%ds"`, secs))
	}
}

func (d *drawn) ports(t *rapid.T, n int) []core.ServicePort {
	spec := &d.service.Spec
	spec.Ports = nil
	var list []string
	for i := range rapid.IntRange(1, 3).Draw(t, "ports") {
		p := core.ServicePort{
			Name: fmt.Sprintf("p%d", i), Port: int32(80 + i), TargetPort: intstr.FromInt32(int32(8080 + i)),
			Protocol: rapid.SampledFrom([]core.Protocol{core.ProtocolTCP, core.ProtocolUDP, core.ProtocolSCTP}).Draw(t, "protocol"),
		}
		if rapid.Bool().Draw(t, "node port") {
			p.NodePort = rapid.SampledFrom([]int32{int32(30000 + 10*n + i), int32(30099 - i)}).Draw(t, "number")
		}
		spec.Ports = append(spec.Ports, p)
		list = append(list, fmt.Sprintf(`{ name = %q, protocol = %q, port = %d, target_port = %d, node_port = %d }`,
			p.Name, strings.ToLower(string(p.Protocol)), p.Port, p.TargetPort.IntVal, p.NodePort))
	}
	d.key("ports", "["+strings.Join(list, ", ")+"]")
	return spec.Ports
}

// external returns an external address of the service, in a family; empty: it has none.
func (d *drawn) external(f int) string {
	for _, a := range d.service.Spec.ExternalIPs {
		if strings.Contains(a, ":") == (f == 1) {
			return a
		}
	}
	return ""
}

// endpoints draws those of one family, in up to three slices. Each slice has its
// own numbers for the ports.
func (d *drawn) endpoints(t *rapid.T, n, f int, ports []core.ServicePort) {
	fam := families[f]
	for i := range rapid.IntRange(0, 3).Draw(t, "slices") {
		s := eps(fmt.Sprintf("s%d-%d-%d", n, f, i), d.service.Name)
		s.AddressType, s.Ports = fam.kind, nil
		numbers := []string{}
		shift := int32(100 * rapid.IntRange(0, 1).Draw(t, "shift"))
		for _, p := range ports {
			number := p.TargetPort.IntVal + shift
			s.Ports = append(s.Ports, discovery.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &number})
			numbers = append(numbers, fmt.Sprintf("%s = %d", p.Name, number))
		}
		for j := range rapid.IntRange(0, 4).Draw(t, "endpoints") {
			addr := fmt.Sprintf(fam.ep, n*10+i, j+1)
			if own := d.external(f); i == 0 && j == 0 && own != "" && rapid.Bool().Draw(t, "own address") {
				addr = own // under another port: a proxy with hostNetwork
			}
			node := rapid.SampledFrom([]string{"here", "there"}).Draw(t, "node")
			ready, serving, terminating := rapid.Bool().Draw(t, "ready"), rapid.Bool().Draw(t, "serving"), rapid.Bool().Draw(t, "terminating")
			s.Endpoints = append(s.Endpoints, discovery.Endpoint{
				Addresses: []string{addr}, NodeName: &node,
				Conditions: discovery.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
			})
			fmt.Fprintf(&d.toml, "[[services.endpoints]]\naddress = %q\nnode = %q\nports = { %s }\nready = %v\nserving = %v\nterminating = %v\n",
				addr, node, strings.Join(numbers, ", "), ready, serving, terminating)
		}
		d.slices = append(d.slices, s)
	}
}

// The same services from files and from Kubernetes are the same to proxier. Of what
// several want, an object has what no older one wants; that much of it is written in files.
func TestSameAsFiles(t *testing.T) {
	node := &policy.Node{
		Name: "here", Zone: "z", MarkBit: 14, Addrs: mustAddrs("192.0.2.200"), NodePortAddrs: mustAddrs("192.0.2.200"),
		LocalCIDRs: prefixes("10.0.0.0/16", "fd00::/16"), // of both families: without, only services of a cluster masquerade nobody
	}
	rapid.Check(t, func(t *rapid.T) {
		var toml strings.Builder
		rec := &record{now: map[string]*source.Service{}}
		c := newCluster(New(Options{}), rec)
		c.heard = [kinds]bool{true, true, true}
		for n := range rapid.IntRange(1, 3).Draw(t, "services") {
			d := drawService(t, n)
			d.service.CreationTimestamp = meta.Unix(rapid.Int64Range(1000, 1002).Draw(t, "created"), 0)
			toml.WriteString(d.toml.String())
			for _, s := range d.slices {
				c.entries.setSlice(source.Key{Namespace: s.Namespace, Name: s.Name}, parseSlice(s, newWords()))
			}
			c.entries.setService(source.Key{Namespace: "default", Name: d.service.Name}, parseService(d.service, newWords()))
			c.flush(d.service.CreationTimestamp.Time)
		}
		fromFile, faults := read.Parse("s.toml", []byte(toml.String()))
		for _, f := range faults {
			if !f.Warning {
				t.Fatalf("%s in\n%s", f, toml.String())
			}
		}
		slices.SortFunc(fromFile, func(a, b *source.Service) int {
			x, y := a.Key.String(), b.Key.String()
			return cmp.Or(cmp.Compare(rec.since[x], rec.since[y]), cmp.Compare(x, y))
		})
		leaveOut(fromFile)
		fromAPI := rec.tracked()
		for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
			want, got := policy.NewState(fam, node, fromFile), policy.NewState(fam, node, fromAPI)
			if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}, policy.Target{})); diff != "" {
				t.Fatalf("%s: (-file +kubernetes)\n%s\nof\n%s", fam, diff, toml.String())
			}
		}
	})
}

// leaveOut says of each service what one before it has.
func leaveOut(services []*source.Service) {
	taken := map[source.PortAddr]bool{}
	for _, s := range services {
		want := map[source.PortAddr]bool{}
		for _, p := range s.Ports {
			for _, a := range slices.Concat(s.VIPs, s.ExternalIPs, s.LoadBalancerIPs) {
				want[source.PortAddr{Protocol: p.Protocol, AddrPort: netip.AddrPortFrom(a, p.Port)}] = true
			}
			if p.NodePort != 0 {
				want[source.PortAddr{Protocol: p.Protocol, AddrPort: netip.AddrPortFrom(netip.Addr{}, p.NodePort)}] = true
			}
		}
		for c := range want {
			if taken[c] {
				s.Without = append(s.Without, c)
			}
			taken[c] = true
		}
	}
}

// tracked returns what is used of the objects, told in any order.
func (r *record) tracked() []*source.Service {
	tracker, used := claims.NewTracker(nil), map[source.Key]*source.Service{}
	for name, s := range r.now {
		u := source.Unit{ID: source.UnitID{Source: Name, Name: name}, Partial: true, Since: r.since[name], Services: []*source.Service{s}}
		for _, tr := range tracker.Apply(source.Changes{Set: []source.Unit{u}}) {
			used[tr.New.Key] = tr.New
		}
	}
	return slices.Collect(maps.Values(used))
}
