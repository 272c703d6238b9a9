//go:build netns

package kubeproxy

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	utilnet "k8s.io/utils/net"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A difference is one that docs/kubernetes.md names.
type difference struct {
	name     string
	health   bool // of health check node ports too
	explains func(*question) bool
}

var differences = []difference{
	{"what two want, the older has", false, func(q *question) bool {
		return q.oldest != q.name() && q.ours.action == "none"
	}},
	{"a ClusterIP that is an external IP too is a ClusterIP", false, func(q *question) bool {
		return slices.ContainsFunc(append(q.service.Spec.ClusterIPs, q.service.Spec.ClusterIP), q.isAddress) && slices.ContainsFunc(q.service.Spec.ExternalIPs, q.isAddress)
	}},
	{"an endpoint without nodeName is local where this host has its address", true, func(q *question) bool {
		return q.anyEndpoint(func(e *discovery.Endpoint, a netip.Addr) bool {
			return e.NodeName == nil && (a == addr(q.primary) || a == addr(q.second)) && q.oursHas(a)
		})
	}},
	{"an address of a load balancer that is an external IP too is held to the source ranges", false, func(q *question) bool {
		return q.ours.action == "drop" && q.isBalancer() && slices.ContainsFunc(q.service.Spec.ExternalIPs, q.isAddress)
	}},
	{"a source range that cannot be read closes", false, func(q *question) bool {
		return q.ours.action == "drop" && q.isBalancer() && slices.ContainsFunc(q.service.Spec.LoadBalancerSourceRanges, func(r string) bool {
			_, _, err := utilnet.ParseCIDRSloppy(strings.TrimSpace(r))
			return err != nil && strings.TrimSpace(r) != ""
		})
	}},
	{"without endpoints too, who is outside of the source ranges is dropped", false, func(q *question) bool {
		return q.ours.action == "drop" && q.theirs.action == "reject" && q.isBalancer() && len(q.service.Spec.LoadBalancerSourceRanges) > 0
	}},
	{"source ranges that admit an address of the node admit all of it", false, func(q *question) bool {
		return q.theirs.action == "drop" && q.ours.action != "drop" && q.isBalancer() && q.packet.fromHost
	}},
	{"an endpoint that is an address and port of its own service is left out", true, func(q *question) bool {
		return q.lacks((*question).isItself)
	}},
	{"an address that packets cannot be forwarded to is left out", true, func(q *question) bool {
		return q.lacks((*question).isUnusable)
	}},
	{"of an endpoint that slices say different things of, what is better counts", true, func(q *question) bool {
		seen := map[netip.Addr]discovery.Endpoint{}
		return q.anyEndpoint(func(e *discovery.Endpoint, a netip.Addr) bool {
			before, twice := seen[a]
			seen[a] = *e
			before.Addresses = e.Addresses
			return twice && !reflect.DeepEqual(before, *e)
		})
	}},
}

// oursHas reports whether packets may be sent to a, or, of a health check, that nothing is known of it.
func (q *question) oursHas(a netip.Addr) bool {
	for t := range q.ours.targets {
		if t.Addr() == a {
			return true
		}
	}
	return q.ours.targets == nil
}

// isItself reports whether a target is an address and port of the service.
func (q *question) isItself(t netip.AddrPort) bool {
	return q.isOwn(t.Addr()) && slices.ContainsFunc(q.service.Spec.Ports, func(p core.ServicePort) bool { return uint16(p.Port) == t.Port() })
}

func (q *question) isUnusable(t netip.AddrPort) bool { return source.Unusable(t.Addr()) != "" }

// lacks reports whether what we have is what kube-proxy has, without targets of a kind
// that we leave out. Where kube-proxy has no others, what is next is another question.
func (q *question) lacks(kind func(*question, netip.AddrPort) bool) bool {
	if len(q.theirs.targets) == 0 { // refused in place of dropped, or a health check
		return q.theirs.action != "balance" && q.ours.action != "drop" && q.anyTarget(kind)
	}
	left := maps.Clone(q.theirs.targets)
	maps.DeleteFunc(left, func(t netip.AddrPort, _ bool) bool { return q.isItself(t) || q.isUnusable(t) })
	return slices.ContainsFunc(slices.Collect(maps.Keys(q.theirs.targets)), func(t netip.AddrPort) bool { return kind(q, t) }) &&
		(len(left) == 0 || maps.Equal(left, q.ours.targets))
}

// anyTarget reports whether an endpoint of this family, under a port of its slice, is of a kind.
func (q *question) anyTarget(kind func(*question, netip.AddrPort) bool) bool {
	for _, s := range q.slices {
		for _, p := range s.Ports {
			for _, e := range s.Endpoints {
				a := sloppy(e.Addresses[0])
				if a.IsValid() && policy.FamilyOf(a) == q.Family && kind(q, netip.AddrPortFrom(a, uint16(*p.Port))) {
					return true
				}
			}
		}
	}
	return false
}

func (q *question) name() string { return q.service.Namespace + "/" + q.service.Name }

// anyEndpoint reports whether ok holds for an endpoint of this family.
func (q *question) anyEndpoint(ok func(*discovery.Endpoint, netip.Addr) bool) bool {
	for _, s := range q.slices {
		for i := range s.Endpoints {
			if a := sloppy(s.Endpoints[i].Addresses[0]); a.IsValid() && policy.FamilyOf(a) == q.Family && ok(&s.Endpoints[i], a) {
				return true
			}
		}
	}
	return false
}

// sloppy reads an address as kube-proxy does.
func sloppy(text string) netip.Addr {
	a, _ := netip.AddrFromSlice(utilnet.ParseIPSloppy(text))
	return a.Unmap()
}

func (q *question) isAddress(text string) bool { return sloppy(text) == q.to.Addr }

func (q *question) isBalancer() bool {
	for _, in := range q.service.Status.LoadBalancer.Ingress {
		if q.isAddress(in.IP) {
			return true
		}
	}
	return false
}

// isOwn reports whether a is an address of the service.
func (q *question) isOwn(a netip.Addr) bool {
	spec := &q.service.Spec
	all := slices.Concat(spec.ClusterIPs, spec.ExternalIPs, []string{spec.ClusterIP})
	for _, in := range q.service.Status.LoadBalancer.Ingress {
		all = append(all, in.IP)
	}
	return slices.ContainsFunc(all, func(text string) bool { return sloppy(text) == a })
}
