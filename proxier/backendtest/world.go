package backendtest

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/source"
)

// A World is a State and what it takes to change it.
type World struct {
	*proxier.State
}

// NewWorld returns a State without services, on a host with node ports.
func NewWorld(fam proxier.Family) *World {
	st := proxier.NewState(fam, new(proxier.Node), nil)
	st.Host = proxier.Host{MarkBit: 14, LocalInterfaces: []string{"pod*", "cni0"}}
	if fam == proxier.IPv4 {
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
func (w *World) Put(key source.Key, res *proxier.Resolved) *proxier.Delta {
	return w.PutAll(map[source.Key]*proxier.Resolved{key: res})
}

// PutAll does the same for several services at once.
func (w *World) PutAll(services map[source.Key]*proxier.Resolved) *proxier.Delta {
	d := &proxier.Delta{}
	for key, res := range services {
		old := w.Services[key]
		if old == nil && res == nil {
			continue
		}
		d.Services = append(d.Services, proxier.ServiceChange{Old: old, New: res})
		delete(w.Services, key)
		if res != nil {
			w.Services[key] = res
		}
	}
	d.RefusedVIPs = recount(w.RefusedVIPs, d.Services, func(r *proxier.Resolved) []netip.Addr { return r.RefusedVIPs })
	d.Hairpins = recount(w.Hairpins, d.Services, func(r *proxier.Resolved) []proxier.Hairpin { return slices.Collect(r.Hairpins()) })
	d.BoundAddrs = recount(w.BoundAddrs, d.Services, func(r *proxier.Resolved) []netip.Addr { return r.BoundAddrs })
	return d
}

func recount[T comparable](counts map[T]int, changes []proxier.ServiceChange, of func(*proxier.Resolved) []T) (d proxier.SetDelta[T]) {
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
func Addr(fam proxier.Family, base string, n int) netip.Addr {
	low := []byte{byte(n >> 16), byte(n >> 8), byte(n)}
	first := map[string][2]string{
		"vip":      {"10.96.0.0", "fd00:96::"},
		"endpoint": {"10.244.0.0", "fd00:244::"},
		"external": {"203.0.113.0", "2001:db8:113::"},
	}[base]
	a := netip.MustParseAddr(first[0])
	if fam == proxier.IPv6 {
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
	Targets  []proxier.Target // of the pool with scope cluster
	Local    []proxier.Target // of the pool with scope local
	Hairpins bool             // targets may reach themselves
}

// Pools returns the two pools of s.
func (s *Service) Pools() (cluster, local *proxier.Pool) {
	name := proxier.ServicePortName{Key: source.Key{Namespace: "default", Name: s.Name}, Port: s.Port}
	pool := func(scope proxier.Scope, targets []proxier.Target) *proxier.Pool {
		return &proxier.Pool{ServicePort: name, Scope: scope, Protocol: s.Protocol, Affinity: s.Affinity, Targets: targets}
	}
	return pool(proxier.ClusterScope, s.Targets), pool(proxier.LocalScope, s.Local)
}

// Route returns a route to a pool: where that has no targets, one that does instead.
func Route(p *proxier.Pool, m proxier.Masquerade, instead proxier.Action) proxier.Route {
	if len(p.Targets) > 0 {
		return proxier.Route{Action: proxier.Balance, Masquerade: m, Pool: p}
	}
	return proxier.Route{Action: instead, Pool: p}
}

// Resolve returns a service with the given frontends, whose names it sets.
func (s *Service) Resolve(frontends ...*proxier.Frontend) *proxier.Resolved {
	res := &proxier.Resolved{Key: source.Key{Namespace: "default", Name: s.Name}, Frontends: frontends}
	for _, f := range frontends {
		f.ServicePort = f.Outside.Pool.ServicePort
		f.Key.Protocol = s.Protocol
		if f.Key.Kind == proxier.VIP && !slices.Contains(res.RefusedVIPs, f.Key.Addr) {
			res.RefusedVIPs = append(res.RefusedVIPs, f.Key.Addr)
		}
		if f.Key.Kind != proxier.NodePort && !slices.Contains(res.BoundAddrs, f.Key.Addr) {
			res.BoundAddrs = append(res.BoundAddrs, f.Key.Addr)
		}
		for _, p := range []*proxier.Pool{f.Outside.Pool, f.Local.Pool} {
			if !slices.Contains(res.Pools, p) {
				res.Pools = append(res.Pools, p)
			}
		}
	}
	if s.Hairpins {
		cluster, _ := s.Pools() // frontends may have one of their own
		res.HairpinPools = []*proxier.Pool{cluster}
	}
	return res
}

// Targets returns n targets from the given number on.
func Targets(fam proxier.Family, first, n int) []proxier.Target {
	targets := make([]proxier.Target, n)
	for i := range targets {
		a := Addr(fam, "endpoint", first+i)
		targets[i] = proxier.Target{AddrPort: netip.AddrPortFrom(a, 8080), Weight: 1}
	}
	return targets
}

// Web returns the nth of many plain services: one VIP, port 80, endpoints targets.
func Web(fam proxier.Family, n, endpoints int) *proxier.Resolved {
	s := Service{Name: fmt.Sprintf("web-%d", n), Port: "http", Protocol: source.TCP, Targets: Targets(fam, n*endpoints, endpoints)}
	pool, _ := s.Pools()
	route := Route(pool, proxier.Everyone, proxier.Reject)
	key := proxier.FrontendKey{Addr: Addr(fam, "vip", n+1), Port: 80}
	return s.Resolve(&proxier.Frontend{Key: key, Outside: route, Local: route})
}
