package iptables

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// kubeComment is what kube-proxy writes beside the rule of an address or a node port.
var kubeComment = regexp.MustCompile(`^([a-z0-9-]{1,63})/([a-z0-9-]{1,63})(?::([a-z0-9-]{1,63}))?( cluster IP| external IP| loadbalancer IP|)$`)

// kube makes a service of all frontends that kube-proxy names alike.
func (w *walker) kube() {
	services := map[source.Key]*reader.Service{}
	for _, nodePorts := range []bool{false, true} { // these when the ports are known
		for _, f := range w.order {
			m := kubeComment.FindStringSubmatch(f.leaves[0].comment)
			if f.ofKube = m != nil; f.ofKube && nodePorts != f.addr.IsValid() {
				w.kubeFront(services, f, m)
			}
		}
	}
	var out []*reader.Service
	for _, s := range w.Services {
		w.allPorts(s)
		split := reader.SplitPorts(s.Service)
		for i, svc := range split {
			one := *s
			one.Service = svc
			reader.CommonTargets(svc)
			if len(split) > 1 {
				svc.Name = w.Unique(svc.Namespace, svc.Name)
			}
			if i > 0 {
				one.Notes = nil
			}
			out = append(out, &one)
		}
	}
	w.Services = out
}

// maxFronts is more than any service of kube-proxy has.
const maxFronts = 10_000

// kubeFront puts a frontend into its service.
func (w *walker) kubeFront(services map[source.Key]*reader.Service, f *frontend, m []string) {
	key := source.Key{Namespace: m[1], Name: m[2]}
	s := services[key]
	if s == nil {
		s = w.Add(f.leaves[0].at, key.Namespace, key.Name)
		services[key] = s
	}
	if len(s.VIPs)+len(s.ExternalIPs)+len(s.LoadBalancerIPs)+len(s.Ports) > maxFronts || len(s.Endpoints) > maxFronts {
		s.Note(f.leaves[0].at, fmt.Sprintf("what is beyond %d addresses, ports or endpoints of the service is left out", maxFronts), "")
		return
	}
	p := f.pool()
	p.tell(s)
	noteWider(s, f)
	i := slices.IndexFunc(s.Ports, func(q source.Port) bool { return q.Name == m[3] && q.Protocol == f.protocol })
	if i < 0 {
		i, s.Ports = len(s.Ports), append(s.Ports, source.Port{Name: m[3], Protocol: f.protocol, Port: f.port, TargetPort: f.port})
	}
	var addrs *[]netip.Addr
	switch {
	case !f.addr.IsValid():
		s.Ports[i].NodePort = f.port
	case len(p.ranges) > 0 || m[4] == " loadbalancer IP":
		addrs = &s.LoadBalancerIPs
		s.LoadBalancerSourceRanges = p.ranges
	case m[4] == " external IP":
		addrs = &s.ExternalIPs
	default:
		addrs = &s.VIPs
	}
	if addrs != nil && !slices.Contains(*addrs, f.addr) {
		*addrs = append(*addrs, f.addr)
	}
	s.SetAffinity(f.leaves[0].at, cmp.Or(time.Duration(p.affinity)*time.Second, s.Affinity))
	w.addPool(s, s.Ports[i].Name, p)
}

// addPool adds endpoints that serve a port: one of the same address that does not serve it yet, or a new one.
func (w *walker) addPool(s *reader.Service, port string, p *pool) {
	x, known := w.pools[s]
	if !known {
		x = poolIndex{map[netip.Addr][]int{}, map[servedPort]bool{}, map[servedPort]int{}}
		w.pools[s] = x
	}
	for i, to := range p.to {
		served, anyPort := servedPort{to.Addr(), port, to.Port()}, servedPort{to.Addr(), port, 0}
		if x.known[served] {
			continue
		}
		x.known[served] = true
		n := x.next[anyPort]
		if x.next[anyPort]++; n == len(x.of[to.Addr()]) {
			x.of[to.Addr()] = append(x.of[to.Addr()], len(s.Endpoints))
			e := reader.Endpoint(to.Addr())
			e.Weight, e.Ports = p.weights[i], map[string]uint16{}
			s.Endpoints = append(s.Endpoints, e)
		}
		s.Endpoints[x.of[to.Addr()][n]].Ports[port] = to.Port()
	}
}

// allPorts says of each endpoint which ports it does not serve.
func (w *walker) allPorts(s *reader.Service) {
	w.At = s.At
	w.Grow(len(s.Endpoints) * len(s.Ports))
	for _, e := range s.Endpoints {
		for _, q := range s.Ports {
			e.Ports[q.Name] += 0 // which is there then
		}
	}
}

// plain makes a service of each frontend that has rules of its own, one of all ports of a rule.
func (w *walker) plain() {
	by := map[string]*reader.Service{}
	for _, f := range w.order {
		if f.ofKube {
			continue
		}
		p := f.pool()
		if len(p.to) == 0 {
			for _, l := range f.leaves {
				w.Note(l.at, fmt.Sprintf("DNAT of port %d is left out: it is for connections of this host", f.port), "")
			}
			continue
		}
		alike := fmt.Append(nil, f.addr, f.protocol, p.ranges, p.affinity, p.weights, p.hashed)
		for _, l := range f.leaves {
			alike = fmt.Append(alike, " ", l.at.Line)
		}
		s := by[string(alike)]
		if s == nil {
			s = w.plainService(f, p)
			by[string(alike)] = s
		}
		noteWider(s, f)
		port := source.Port{Name: fmt.Sprintf("port-%d", f.port), Protocol: f.protocol, Port: f.port, TargetPort: f.port}
		if !f.addr.IsValid() {
			port.NodePort = f.port
		}
		s.Ports = append(s.Ports, port)
		w.addPool(s, port.Name, p)
	}
	for _, s := range by {
		w.allPorts(s)
		if name := s.Ports[0].Name; len(s.Ports) == 1 { // the only one needs no name
			s.Ports[0].Name = ""
			for i, e := range s.Endpoints {
				s.Endpoints[i].Ports = map[string]uint16{"": e.Ports[name]}
			}
		}
		reader.CommonTargets(s.Service)
	}
}

func (w *walker) plainService(f *frontend, p *pool) *reader.Service {
	name := fmt.Sprintf("node-port-%s-%d", f.protocol, f.port)
	if f.addr.IsValid() {
		name = reader.FrontendName(f.addr, f.port, f.protocol)
	}
	s := w.Add(f.leaves[0].at, "default", name)
	if f.addr.IsValid() {
		s.VIPs = []netip.Addr{f.addr}
	} else if i := slices.IndexFunc(f.leaves, func(l leaf) bool { return !l.local }); i >= 0 {
		s.Note(f.leaves[i].at, "the rule is of every address, and a node port is of this host's", "node_port_addresses says of which; write vips where it is for others")
	} else {
		s.Note(s.At, "the rule is of all addresses of this host, and a node port is on the addresses of node_port_addresses", "set it in svcproxy.toml, or write vips in place of node_port")
	}
	s.SourceRanges = p.ranges
	if p.hashed {
		s.Scheduler, s.HashOn = source.Maglev, source.ClientIP
	}
	p.tell(s)
	s.SetAffinity(s.At, time.Duration(p.affinity)*time.Second)
	return s
}
