//go:build netns

package kubeproxy

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/proxy"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// How many sets of objects are drawn, and how many one cluster has.
const (
	usualSets = 1000
	soakSets  = 10_000
	perBatch  = 50
)

// The seed of the usual run is the same each time; that of a soak is told, and can be given.
const (
	envSoak = "SVCPROXY_SOAK"
	envSeed = "SVCPROXY_SEED"
)

// What objects mean to svcproxy is what they mean to kube-proxy, except for differences.
func TestKubernetesSameAsKubeProxy(t *testing.T) {
	netnstest.Enter(t)                                // kube-proxy looks after connection tracking
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // it tells of each odd address
	sets, seed := usualSets, uint64(1)
	if os.Getenv(envSoak) != "" {
		sets, seed = soakSets, uint64(time.Now().UnixNano())
	}
	if text := os.Getenv(envSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d sets of %s=%d", sets, envSeed, seed)
	c := comparison{t: t, seen: map[string]int{}}
	for n := range sets / perBatch {
		c.batch(drawCluster(rand.New(rand.NewPCG(seed, uint64(n))), perBatch))
		if t.Failed() {
			t.Fatalf("in batch %d", n)
		}
	}
	t.Logf("%d services, %d addresses, %d packets, %d health checks; differences %v", c.services, c.addresses, c.packets, c.checks, c.seen)
	readme, err := os.ReadFile("../../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		if c.seen[d.name] == 0 {
			t.Errorf("the difference %q did not occur", d.name)
		}
		if !strings.Contains(string(readme), d.name) {
			t.Errorf("docs/kubernetes.md does not name the difference %q", d.name)
		}
	}
}

// A comparison counts what was compared, and the differences by their names.
type comparison struct {
	t                                    *testing.T
	services, addresses, packets, checks int
	seen                                 map[string]int
}

// A question is what both are asked.
type question struct {
	*cluster
	family
	service      *core.Service
	slices       []*discovery.EndpointSlice
	to           address
	packet       packet
	theirs, ours outcome
	oldest       string // of those that have this address: who has it
}

func (c *comparison) batch(all *cluster) {
	ours := make(chan *held)
	go func() { // in the namespace of the process
		h, err := svcproxy(all)
		if err != nil {
			c.t.Error(err)
		}
		ours <- h
	}()
	them := map[policy.Family]rules{}
	for _, f := range families {
		them[f.Family] = kubeProxy(c.t, all, f)
	}
	h := <-ours
	if h == nil {
		return
	}
	c.services += len(all.services)
	for _, f := range families {
		c.family(all, f, them[f.Family], h)
	}
	c.health(all, h)
}

// family compares all addresses of one family, of all services.
func (c *comparison) family(all *cluster, f family, theirs rules, h *held) {
	wanted := theirs.addresses(f)
	for a, front := range h.families[f.Family].frontends {
		name := front.ServicePort.Key.String()
		if wanted[a] == nil {
			wanted[a] = map[string]bool{}
		}
		wanted[a][name] = true
	}
	services := map[string]*core.Service{}
	for _, s := range all.services {
		services[s.Namespace+"/"+s.Name] = s
	}
	for a, owners := range wanted {
		c.addresses++
		oldest := slices.MinFunc(slices.Collect(maps.Keys(owners)), func(x, y string) int { return older(services[x], services[y]) })
		for owner := range owners {
			q := question{cluster: all, family: f, service: services[owner], slices: all.slicesOf(services[owner]), to: a, oldest: oldest}
			c.ask(q, theirs, h)
		}
	}
}

// older orders services by who comes first where both want the same.
func older(a, b *core.Service) int {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	}
	return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
}

func (all *cluster) slicesOf(s *core.Service) []*discovery.EndpointSlice {
	var out []*discovery.EndpointSlice
	for _, sl := range all.slices {
		if sl.Namespace == s.Namespace && sl.Labels[discovery.LabelServiceName] == s.Name && selects(forSlices, sl.Labels) {
			out = append(out, sl)
		}
	}
	return out
}

// ask sends packets from every kind of source.
func (c *comparison) ask(q question, theirs rules, h *held) {
	owner := q.service.Namespace + "/" + q.service.Name
	for _, p := range q.packets() {
		if c.t.Failed() {
			return // one is enough to read
		}
		c.packets++
		q.packet = p
		q.theirs, q.ours = theirs.meets(owner, p), h.meets(owner, q.family, q.to, p)
		if q.theirs.action == q.ours.action && maps.Equal(q.theirs.targets, q.ours.targets) && q.theirs.affinity == q.ours.affinity {
			continue
		}
		i := slices.IndexFunc(differences, func(d difference) bool { return d.explains(&q) })
		if i < 0 {
			c.t.Errorf("%s, from %s (host %v, by %q) to %s, zone %q, local %v:\nkube-proxy %s\nsvcproxy   %s\n%s", owner, p.src, p.fromHost, p.in, q.to,
				q.zone, h.LocalCIDRs, q.theirs, q.ours, q.describe())
			return
		}
		c.seen[differences[i].name]++
	}
}

// packets are one from every kind of source.
func (q *question) packets() []packet {
	to := packet{dst: q.to.Addr, protocol: q.to.Protocol.String(), port: q.to.port}
	if to.nodePort = !q.to.Addr.IsValid() || q.to.Addr.IsUnspecified(); to.nodePort {
		to.dst = addr(q.primary)
	}
	from := func(src string, fromHost bool, in string) packet {
		p := to
		p.src, p.fromHost, p.in = addr(src), fromHost, in
		return p
	}
	out := []packet{
		from(q.outside, false, "eth0"), from(q.inRange, false, "eth0"), from(q.otherPod, false, bridge),
		from(q.primary, true, ""), from(q.second, true, ""),
	}
	if !to.nodePort {
		out = append(out, from(to.dst.String(), true, "")) // a host that carries the address
	}
	for _, s := range q.slices {
		for _, e := range s.Endpoints {
			if a, err := netip.ParseAddr(e.Addresses[0]); err == nil && policy.FamilyOf(a) == q.Family && a != addr(q.primary) && a != addr(q.second) {
				return append(out, from(a.String(), false, bridge))
			}
		}
	}
	return out
}

// addresses returns what rules say something of, with the services that say it.
func (rs rules) addresses(f family) map[address]map[string]bool {
	out := map[address]map[string]bool{}
	protocols := map[string]source.Protocol{"tcp": source.TCP, "udp": source.UDP, "sctp": source.SCTP}
	for table, chains := range rs {
		for chain := range shared {
			for _, r := range chains[chain] {
				if r.port == 0 || table == "filter" && chain == "KUBE-NODEPORTS" { // health check node ports are let in
					continue
				}
				a := address{f.Unspecified(), protocols[r.protocol], r.port}
				if r.dst != nil {
					a.Addr = r.dst.Addr()
				}
				if out[a] == nil {
					out[a] = map[string]bool{}
				}
				out[a][r.owner] = true
			}
		}
	}
	return out
}

// health compares what health check node ports answer.
func (c *comparison) health(all *cluster, h *held) {
	asked := map[source.Key]bool{}
	for _, f := range families {
		services, endpoints := proxy.NewServiceChangeTracker(f.api, nil, nil), proxy.NewEndpointsChangeTracker(f.api, nodeName, nil, nil)
		for _, s := range all.services {
			if selects(forServices, s.Labels) {
				services.Update(nil, s)
			}
		}
		for _, s := range all.slices {
			if selects(forSlices, s.Labels) {
				endpoints.EndpointSliceUpdate(s, false)
			}
		}
		ports, addrs := proxy.ServicePortMap{}, proxy.EndpointsMap{}
		ports.Update(services)
		addrs.Update(endpoints)
		theirs, local := ports.HealthCheckNodePorts(), addrs.LocalReadyEndpoints()
		for _, s := range all.services {
			name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
			if theirs[name] != 0 {
				asked[source.Key{Namespace: s.Namespace, Name: s.Name}] = true
				c.check(&question{cluster: all, family: f, service: s, slices: all.slicesOf(s)}, theirs[name], local[name], h)
			}
		}
	}
	for key, check := range h.checks {
		if !asked[key] {
			c.t.Errorf("%s: svcproxy answers health checks on port %d, kube-proxy none", key, check.Port)
		}
	}
}

func (c *comparison) check(q *question, port uint16, local int, h *held) {
	c.checks++
	check := h.checks[source.Key{Namespace: q.service.Namespace, Name: q.service.Name}]
	if check.Port == port && check.LocalEndpoints.Of(q.Family) == local {
		return
	}
	q.theirs.action, q.ours.action = fmt.Sprintf("%d says %d", port, local), fmt.Sprintf("%d says %d", check.Port, check.LocalEndpoints.Of(q.Family))
	if i := slices.IndexFunc(differences, func(d difference) bool { return d.health && d.explains(q) }); i >= 0 {
		c.seen[differences[i].name]++
		return
	}
	c.t.Errorf("%s, health check in %s: kube-proxy %s, svcproxy %s\n%s", q.service.Name, q.Family, q.theirs.action, q.ours.action, q.describe())
}

// describe writes the objects.
func (q *question) describe() string {
	var b strings.Builder
	s := q.service
	fmt.Fprintf(&b, "%s created %d: %s %v, labels %v\n  external %q, balancers %+v, ranges %q, internal %s, external %s\n  ports %+v\n", s.Name, s.CreationTimestamp.Unix(),
		s.Spec.Type, s.Spec.ClusterIPs, s.Labels, s.Spec.ExternalIPs, s.Status.LoadBalancer.Ingress, s.Spec.LoadBalancerSourceRanges,
		value(s.Spec.InternalTrafficPolicy), s.Spec.ExternalTrafficPolicy, s.Spec.Ports)
	for _, sl := range q.slices {
		fmt.Fprintf(&b, "  %s %s", sl.Name, sl.AddressType)
		for _, p := range sl.Ports {
			fmt.Fprintf(&b, " %s=%d/%s", *p.Name, *p.Port, *p.Protocol)
		}
		b.WriteByte('\n')
		for _, e := range sl.Endpoints {
			fmt.Fprintf(&b, "    %s on %s, ready %s serving %s terminating %s, hints %+v\n", e.Addresses, value(e.NodeName),
				text(e.Conditions.Ready), text(e.Conditions.Serving), text(e.Conditions.Terminating), e.Hints)
		}
	}
	return b.String()
}

func value[T ~string](p *T) string {
	if p == nil {
		return "none"
	}
	return string(*p)
}

func text(p *bool) string {
	if p == nil {
		return "-"
	}
	return strconv.FormatBool(*p)
}
