//go:build netns

package lab

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// newRandom returns a source of random numbers, and tells the test's log how to have the same again.
func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(EnvSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("random numbers of %s=%d", EnvSeed, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// oneIn is true once in n times.
func oneIn(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

// pick returns one of some values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// random returns a random service, i of the case. One with the same number has the same name and addresses.
func (e *env) random(r *rand.Rand, i byte) Service {
	family := pick(r, isEither, isEither, netip.Addr.Is4, netip.Addr.Is6)
	s := Service{
		Name: fmt.Sprintf("%s-random-%d", e.name(), i),
		VIPs: only(family, e.vip(i)),
		Ports: []Port{
			{Name: "stream", Protocol: "tcp", Port: 80, TargetPort: pick(r, EndpointPorts...)},
			{Name: "packets", Protocol: "udp", Port: 80, TargetPort: pick(r, EndpointPorts...)},
		},
		InternalTrafficPolicy: pick(r, "", "", "local"),
		ExternalTrafficPolicy: pick(r, "", "local"),
		TrafficDistribution:   pick(r, "", "", "", "prefer_same_zone", "prefer_same_node"),
		SessionAffinity:       pick(r, "", "", "client_ip"),
		PublishNotReady:       oneIn(r, 8),
		Endpoints:             e.randomEndpoints(r, family),
	}
	if oneIn(r, 2) {
		s.ExternalIPs = only(family, e.external(i))
	}
	if oneIn(r, 2) {
		s.LoadBalancerIPs = only(family, e.loadBalancer(i))
		s.LoadBalancerSourceRanges = e.randomRanges(r)
	}
	if oneIn(r, 2) {
		for k := range s.Ports {
			s.Ports[k].NodePort = randomNodePort(i)
		}
		s.NodePortAddresses = pick(r, nil, nil, []string{"all"}, []string{"10.2.0.0/24", "fd00:2::/64"})
	}
	if oneIn(r, 3) {
		s.SourceRanges = e.randomRanges(r)
	}
	s.Masquerade = pick(r, "", "", "auto", "all", "never")
	s.MinUp = pick(r, 0, 0, 2)
	return s
}

// A world has room for more than what a backend does in one step: pools of up to mostMany endpoints, and up to
// mostFillers services beside the ones that are asked most.
const (
	mostMany    = 40
	mostFillers = 400
)

// wide returns a service, i of the case, with many endpoints that are alike.
func (e *env) wide(r *rand.Rand, i byte) Service {
	hosts := slices.Clone(e.Many)
	r.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	s := Service{
		Name: fmt.Sprintf("%s-wide", e.name()), VIPs: e.vip(i).Each(),
		Ports:           []Port{{Name: "stream", Protocol: "tcp", Port: 80, TargetPort: EndpointPorts[0]}, {Name: "packets", Protocol: "udp", Port: 80, TargetPort: EndpointPorts[0]}},
		SessionAffinity: pick(r, "", "", "client_ip"),
		Endpoints:       at(hosts[:1+r.IntN(len(hosts))]...),
	}
	return s
}

// fillers returns services of one endpoint each, whose addresses lie close together.
func (e *env) fillers(r *rand.Rand) (list []Service) {
	for i := range r.IntN(Fewer(mostFillers)) {
		list = append(list, Service{
			Name: fmt.Sprintf("%s-filler-%d", e.name(), i), VIPs: e.filler(i).Each(), Ports: []Port{{Protocol: "tcp", Port: 80, TargetPort: pick(r, EndpointPorts...)}},
			Endpoints: at(pick(r, e.Local...)),
		})
	}
	return list
}

func (e *env) filler(i int) Dual {
	return e.address([4]byte{10, 97 + byte(i>>8)}, 0xa7+byte(i>>8), byte(i))
}

// randomNodePort is the node port of the i-th random service.
func randomNodePort(i byte) uint16 { return 31000 + uint16(i) }

func isEither(netip.Addr) bool { return true }

// only returns the addresses of a family.
func only(family func(netip.Addr) bool, d Dual) []netip.Addr {
	return slices.DeleteFunc(d.Each(), func(a netip.Addr) bool { return !family(a) })
}

// randomRanges returns no ranges, or such as let the client in by its first address at most.
func (e *env) randomRanges(r *rand.Rand) []netip.Prefix {
	return pick(r,
		nil, nil,
		prefixes(e.Client.Addrs[0]),
		prefixes(e.Client.Addrs[0])[:1],
		prefixes(FrontAddr),
		[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:4::/32")},
	)
}

// mostEndpoints of a random service, and the most that one weighs, so that each
// is seen by asking some hundred times.
const (
	mostEndpoints = 4
	mostWeight    = 3
)

func (e *env) randomEndpoints(r *rand.Rand, family func(netip.Addr) bool) []Endpoint {
	hosts := slices.Concat(e.Local, e.Remote)
	r.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	state := pick(r, ready, ready, ready, notReady, terminating) // of most of them
	var endpoints []Endpoint
	for _, ep := range at(hosts[:r.IntN(mostEndpoints+1)]...) {
		if !family(ep.Address) {
			continue
		}
		pick(r, state, state, ready, notReady, terminating)(&ep)
		if oneIn(r, 2) {
			weight(uint16(r.IntN(mostWeight + 1)))(&ep)
		}
		ep.Zone = pick(r, "", "here", "there")
		if oneIn(r, 4) {
			ep.Tier = r.IntN(3)
		}
		if oneIn(r, 12) {
			disabled(&ep)
		}
		if oneIn(r, 6) {
			ep.Ports = map[string]uint16{"packets": pick(r, EndpointPorts...)}
		}
		endpoints = append(endpoints, ep)
	}
	return endpoints
}

func ready(*Endpoint) {}
