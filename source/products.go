package source

import (
	"fmt"
	"math/bits"
	"net/netip"

	"svcproxy.dev/svcproxy/internal/maglev"
)

// Products count what the lists of services are multiplied to in the kernel. A short text can make them
// large, so they are counted before anything is made of it. They hold for every mode: one that needs less of
// something is counted as the one that needs most.
type Products struct {
	Frontends    uint64 // addresses times ports, and node ports; no less than there are ports
	Endpoints    uint64 // for each frontend the slots of its endpoints, see slots; no less than there are endpoints
	SourceRanges uint64 // for each frontend the ranges that may use it
}

// mostCounted is where counting ends: above all limits, and a million sums of it still fit.
const mostCounted = 1 << 40

// Plus returns the sum.
func (p Products) Plus(o Products) Products {
	return Products{p.Frontends + o.Frontends, p.Endpoints + o.Endpoints, p.SourceRanges + o.SourceRanges}
}

// Minus returns what is left of a sum without one of its parts.
func (p Products) Minus(part Products) Products {
	return Products{p.Frontends - part.Frontends, p.Endpoints - part.Endpoints, p.SourceRanges - part.SourceRanges}
}

// counted returns p, with mostCounted in place of what is more.
func (p Products) counted() Products {
	return Products{min(p.Frontends, mostCounted), min(p.Endpoints, mostCounted), min(p.SourceRanges, mostCounted)}
}

// OfFile is what messages call all services of a file together.
const OfFile = "the services of this file"

// Exceeded returns what is wrong with a sum that exceeds one of the limits, the first; nil: nothing. who has too many.
func (limits Products) Exceeded(sum Products, who string) *Problem {
	for _, e := range []struct {
		limit, part string // the key of the limit, and that of a service that makes it large
		what, fewer string // in words
		count, most uint64
	}{
		{"frontends", "ports", "frontends (addresses times ports)", "addresses or ports", sum.Frontends, limits.Frontends},
		{"frontend_endpoints", "endpoints", "endpoints of frontends (addresses times ports times endpoints)", "addresses, ports, endpoints or different weights", sum.Endpoints, limits.Endpoints},
		{"frontend_source_ranges", "source_ranges", "source ranges of frontends (addresses times ports times ranges)", "addresses, ports or ranges", sum.SourceRanges, limits.SourceRanges},
	} {
		if e.count > e.most {
			return &Problem{
				Path: At(e.part), Msg: fmt.Sprintf("%s have %d %s, more than %d", who, e.count, e.what, e.most),
				Hint: fmt.Sprintf("use fewer %s, or raise %s in [limits] of svcproxy.toml", e.fewer, e.limit),
			}
		}
	}
	return nil
}

// An EndpointCount says how many endpoints of each family there are, and how many slots their weights make.
type EndpointCount struct{ four, six endpointSum }

// An endpointSum counts endpoints of one family.
type endpointSum struct{ count, weights, divisor uint64 }

// CountEndpoints counts endpoints.
func CountEndpoints(list []Endpoint) (n EndpointCount) {
	for i := range list {
		n.Add(&list[i])
	}
	return n
}

// Add counts one more endpoint.
func (n *EndpointCount) Add(e *Endpoint) {
	sum := &n.six
	if e.Addr.Is4() {
		sum = &n.four
	}
	sum.count++
	sum.weights += uint64(e.Weight)
	sum.divisor = gcd(sum.divisor, uint64(e.Weight))
}

// The most slots that nftables mode makes of endpoints whose weights differ: so many for each of them, or
// fewSlots for all.
const (
	slotsEach = 16
	fewSlots  = 128
)

// slots returns how many elements a frontend of s has at most for endpoints of its family: a table of maglev,
// or one for each unit of weight after division by what all weights have in common. A slow start makes any weights.
func (e endpointSum) slots(s *Service) uint64 {
	most := max(fewSlots, slotsEach*e.count)
	switch {
	case e.count == 0:
		return 0
	case s.Scheduler == Maglev:
		return uint64(maglev.Size(int(e.count)))
	case s.SlowStart > 0:
		return most
	}
	return max(e.count, min(e.weights/max(e.divisor, 1), most))
}

// Products counts those of a service.
func (s *Service) Products() Products { return s.ProductsWith(CountEndpoints(s.Endpoints)) }

// ProductsWith counts those of a service as if it had so many endpoints.
func (s *Service) ProductsWith(endpoints EndpointCount) Products {
	nodePorts := 0
	for i := range s.Ports {
		if s.Ports[i].NodePort != 0 {
			nodePorts++
		}
	}
	return s.ProductsOf(len(s.Ports), nodePorts, endpoints)
}

// TotalProducts counts those of services.
func TotalProducts(list []*Service) (sum Products) {
	for _, s := range list {
		sum = sum.Plus(s.Products()).counted()
	}
	return sum
}

// ProductsOf counts those of a service as if it had so many ports, node ports among them, and endpoints.
func (s *Service) ProductsOf(ports, nodePorts int, endpoints EndpointCount) Products {
	all, node := uint64(ports), uint64(nodePorts)
	p := s.productsOf(true, all, node, endpoints.four).Plus(s.productsOf(false, all, node, endpoints.six))
	p.Frontends = max(p.Frontends, all)
	p.Endpoints = max(p.Endpoints, endpoints.four.count+endpoints.six.count)
	return p.counted()
}

// productsOf counts those of one family.
func (s *Service) productsOf(four bool, ports, nodePorts uint64, endpoints endpointSum) Products {
	vips, external := uint64(ofFamily(s.VIPs, four)), uint64(ofFamily(s.ExternalIPs, four))
	balancers := uint64(ofFamily(s.LoadBalancerIPs, four))
	if vips+external+balancers == 0 && len(s.VIPs)+len(s.ExternalIPs)+len(s.LoadBalancerIPs) > 0 {
		nodePorts = 0 // they are of the families of the addresses
	}
	balancers *= ports
	outside := external*ports + balancers + nodePorts
	frontends := vips*ports + outside
	routes := frontends
	switch {
	case s.Forward.Answers():
		routes *= 2 // rules balance what this host sends
	case s.ExternalTrafficPolicy == Local:
		routes += outside // endpoints of this node, and all
	}
	ranges := uint64(ofFamily(s.SourceRanges, four))
	p := Products{Frontends: frontends, Endpoints: times(routes, endpoints.slots(s)), SourceRanges: times(frontends, ranges)}
	p.SourceRanges += times(balancers, uint64(ofFamily(s.LoadBalancerSourceRanges, four)))
	return p.counted()
}

// ofFamily counts the addresses or ranges of one family.
func ofFamily[T netip.Addr | netip.Prefix](list []T, four bool) (n int) {
	for _, x := range list {
		var is4 bool
		switch x := any(x).(type) {
		case netip.Addr:
			is4 = x.Is4()
		case netip.Prefix:
			is4 = x.Addr().Is4()
		}
		if is4 == four {
			n++
		}
	}
	return n
}

// times multiplies up to mostCounted.
func times(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high > 0 {
		return mostCounted
	}
	return min(low, mostCounted)
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
