package backendtest

import (
	"fmt"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Pick returns a number from 0 to n-1.
type Pick func(n int) int

// Random returns a service of any kind whose frontends no other service of w has.
func (w *World) Random(pick Pick, number int) *policy.Resolved {
	s := Service{
		Name:     fmt.Sprintf("svc-%d", number),
		Port:     []string{"", "http"}[pick(2)],
		Protocol: []source.Protocol{source.TCP, source.UDP, source.SCTP}[pick(3)],
		Affinity: []time.Duration{0, 0, 1500 * time.Millisecond, 3 * time.Hour}[pick(4)],
		Hairpins: pick(2) == 0,
	}
	s.Targets = Targets(w.Family, 1000*number, []int{0, 1, 2, 5, 16, 17, 40}[pick(7)])
	for i := range s.Targets {
		s.Targets[i].Weight = []uint16{1, 1, 2, 65535}[pick(4)]
	}
	s.Local = s.Targets[:min(len(s.Targets), pick(3))]
	cluster, local := s.Pools()
	taken := w.taken(s.Name)
	var frontends []*policy.Frontend
	for range pick(9) {
		f := w.randomFrontend(pick, cluster, local)
		f.Key.Protocol = s.Protocol
		if place := f.Key.WithoutKind(); !taken[place] {
			taken[place] = true
			frontends = append(frontends, f)
		}
	}
	return s.Resolve(frontends...)
}

// taken returns the places of frontends of other services than name.
func (w *World) taken(name string) map[policy.FrontendKey]bool {
	taken := map[policy.FrontendKey]bool{}
	for key, res := range w.Services {
		for _, f := range res.Frontends {
			taken[f.Key.WithoutKind()] = key.Name != name
		}
	}
	return taken
}

func (w *World) randomFrontend(pick Pick, cluster, local *policy.Pool) *policy.Frontend {
	f := &policy.Frontend{}
	f.Key.Kind = policy.Kind(pick(4))
	f.Key.Port = []uint16{1, 79, 80, 443, 30000, 65535}[pick(6)]
	switch f.Key.Kind {
	case policy.NodePort:
		f.Key.Addr = w.Family.Unspecified()
		f.Key.Port = uint16(30000 + pick(40))
		if f.Placed = pick(3) == 0; f.Placed {
			f.NodePortAddrs = w.somePlaces()[:pick(4)]
		}
	case policy.VIP:
		f.Key.Addr = Addr(w.Family, "vip", []int{0, 0, 256, 4096, 65536}[pick(5)]+pick(20))
	default:
		f.Key.Addr = Addr(w.Family, "external", pick(6))
	}
	m := policy.Masquerade(pick(4))
	f.Outside = Route(cluster, m, policy.Reject)
	f.FromLocal = f.Outside
	if pick(3) == 0 {
		f.FromLocal = Route(cluster, m, policy.Reject)
		f.Outside = Route(local, policy.NoOne, policy.Drop)
	}
	if pick(3) == 0 {
		f.Restricted = true
		f.SourceRanges = w.ranges()[pick(3)]
	}
	return f
}

// somePlaces returns addresses that may serve node ports of one service: the first one serves
// all others too, and the second is of other services as well.
func (w *World) somePlaces() []netip.Addr {
	return []netip.Addr{w.Host.NodePortAddrs[0], Addr(w.Family, "external", 1), Addr(w.Family, "external", 9)}
}

// ranges returns everyone, two ranges, and no one.
func (w *World) ranges() [3][]netip.Prefix {
	all, some := "0.0.0.0/0", []string{"198.51.100.0/24", "203.0.113.0/25"}
	if w.Family == policy.IPv6 {
		all, some = "::/0", []string{"2001:db8:51::/48", "2001:db8:52::/49"}
	}
	return [3][]netip.Prefix{
		{netip.MustParsePrefix(all)}, {netip.MustParsePrefix(some[0]), netip.MustParsePrefix(some[1])}, nil,
	}
}
