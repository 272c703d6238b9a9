package backendtest

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A World is a State and what it takes to change it.
type World struct {
	*policy.State
}

// NewWorld returns a State without services, on a host with node ports.
func NewWorld(fam policy.Family) *World {
	st := policy.NewState(fam, new(policy.Node), nil)
	st.Host = policy.Host{MarkBit: 14, LocalInterfaces: []string{"pod*", "cni0"}}
	if fam == policy.IPv4 {
		st.Host.NodePortAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		st.Host.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
		st.Host.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
		st.Host.ServiceCIDRExempt = []netip.Addr{netip.MustParseAddr("10.96.0.250")}
		st.Host.LocalhostNodePorts = true
	} else {
		st.Host.NodePortAddrs = []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")}
		st.Host.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("fd00:244::/48")}
		st.Host.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("fd00:96::/108")}
	}
	return &World{st}
}

// Put sets a service, nil removes it, and returns what changed.
func (w *World) Put(key source.Key, res *policy.Resolved) *policy.Delta {
	return w.PutAll(map[source.Key]*policy.Resolved{key: res})
}

// PutAll does the same for several services at once.
func (w *World) PutAll(services map[source.Key]*policy.Resolved) *policy.Delta {
	d := &policy.Delta{}
	for key, res := range services {
		old := w.Services[key]
		if old == nil && res == nil {
			continue
		}
		d.Services = append(d.Services, policy.ServiceChange{Old: old, New: res})
		delete(w.Services, key)
		if res != nil {
			w.Services[key] = res
		}
	}
	d.RefusedAddrs = recount(w.RefusedAddrs, d.Services, func(r *policy.Resolved) []netip.Addr { return r.RefusedAddrs })
	d.Hairpins = recount(w.Hairpins, d.Services, hairpins)
	d.BoundAddrs = recount(w.BoundAddrs, d.Services, func(r *policy.Resolved) []netip.Addr { return r.BoundAddrs })
	return d
}

// hairpins returns the targets of the HairpinPools, those of several pools several times.
func hairpins(r *policy.Resolved) (list []policy.Hairpin) {
	for _, p := range r.HairpinPools {
		for _, t := range p.Targets {
			list = append(list, policy.NewHairpin(t.AddrPort(), p.Protocol))
		}
	}
	return list
}

// recount counts by itself, so that the suite of backends can find what policy.Changes counts wrong.
func recount[T comparable](counts map[T]int, changes []policy.ServiceChange, of func(*policy.Resolved) []T) (d policy.SetDelta[T]) {
	net := map[T]int{}
	for _, c := range changes {
		if c.Old != nil {
			for _, v := range of(c.Old) {
				net[v]--
			}
		}
		if c.New != nil {
			for _, v := range of(c.New) {
				net[v]++
			}
		}
	}
	for v, n := range net {
		was := counts[v]
		switch counts[v] += n; {
		case was > 0 && was+n == 0:
			d.Lost = append(d.Lost, v)
			delete(counts, v)
		case was == 0 && was+n > 0:
			d.Gained = append(d.Gained, v)
		case was+n == 0:
			delete(counts, v)
		}
	}
	return d
}

// Addr returns the nth address of a range of the family: of VIPs, endpoints or others.
func Addr(fam policy.Family, base string, n int) netip.Addr {
	low := []byte{byte(n >> 16), byte(n >> 8), byte(n)}
	first := map[string][2]string{
		"vip":      {"10.96.0.0", "fd00:96::"},
		"endpoint": {"10.244.0.0", "fd00:244::"},
		"external": {"203.0.113.0", "2001:db8:113::"},
	}[base]
	a := netip.MustParseAddr(first[0])
	if fam == policy.IPv6 {
		a = netip.MustParseAddr(first[1])
	}
	b := a.AsSlice()
	for i, v := range low {
		b[len(b)-3+i] += v
	}
	a, _ = netip.AddrFromSlice(b)
	return a
}

// A Service is what to make a Resolved of. The zero value, except for its name, is a
// service that refuses.
type Service struct {
	Name     string
	Port     string // name of the port
	Protocol source.Protocol
	Affinity time.Duration
	Targets  []policy.Target // of the pool with scope cluster
	Local    []policy.Target // of the pool with scope local
	Hairpins bool            // targets may reach themselves
}

// Pools returns the two pools of s.
func (s *Service) Pools() (cluster, local *policy.Pool) {
	name := policy.ServicePortName{Key: source.Key{Namespace: "default", Name: s.Name}, Port: s.Port}
	pool := func(scope policy.Scope, targets []policy.Target) *policy.Pool {
		return &policy.Pool{ServicePort: name, Scope: scope, Protocol: s.Protocol, Affinity: s.Affinity, Targets: targets}
	}
	return pool(policy.ClusterScope, s.Targets), pool(policy.NodeScope, s.Local)
}

// Route returns a route to a pool: where that has no targets, one that does instead.
func Route(p *policy.Pool, m policy.Masquerade, instead policy.Action) policy.Route {
	if len(p.Targets) > 0 {
		return policy.Route{Action: policy.Balance, Masquerade: m, Pool: p}
	}
	return policy.Route{Action: instead, Pool: p}
}

// Resolve returns a service with the given frontends, whose names it sets.
func (s *Service) Resolve(frontends ...*policy.Frontend) *policy.Resolved {
	res := &policy.Resolved{Key: source.Key{Namespace: "default", Name: s.Name}, Frontends: frontends}
	for _, f := range frontends {
		f.ServicePort = f.Outside.Pool.ServicePort
		f.Key.Protocol = s.Protocol
		if f.Key.Kind == policy.VIP && !slices.Contains(res.RefusedAddrs, f.Key.Addr) {
			res.RefusedAddrs = append(res.RefusedAddrs, f.Key.Addr)
		}
		if f.Key.Kind != policy.NodePort && !slices.Contains(res.BoundAddrs, f.Key.Addr) {
			res.BoundAddrs = append(res.BoundAddrs, f.Key.Addr)
		}
		for _, p := range []*policy.Pool{f.Outside.Pool, f.FromLocal.Pool} {
			if !slices.Contains(res.Pools, p) {
				res.Pools = append(res.Pools, p)
			}
		}
	}
	if s.Hairpins {
		cluster, _ := s.Pools() // frontends may have one of their own
		res.HairpinPools = []*policy.Pool{cluster}
	}
	return res
}

// Targets returns n targets from the given number on.
func Targets(fam policy.Family, first, n int) []policy.Target {
	targets := make([]policy.Target, n)
	for i := range targets {
		a := Addr(fam, "endpoint", first+i)
		targets[i] = policy.NewTarget(netip.AddrPortFrom(a, 8080), 1)
	}
	return targets
}

// Web returns the nth of many plain services: one VIP, port 80, endpoints targets.
func Web(fam policy.Family, n, endpoints int) *policy.Resolved {
	s := Service{Name: fmt.Sprintf("web-%d", n), Port: "http", Protocol: source.TCP, Targets: Targets(fam, n*endpoints, endpoints)}
	pool, _ := s.Pools()
	route := Route(pool, policy.Everyone, policy.Reject)
	key := policy.FrontendKey{Addr: Addr(fam, "vip", n+1), Port: 80}
	return s.Resolve(&policy.Frontend{Key: key, Outside: route, FromLocal: route})
}
