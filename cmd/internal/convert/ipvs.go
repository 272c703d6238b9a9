package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A virtualServer is one of IPVS, as ipvsadm and keepalived both know it, on any number of addresses.
type virtualServer struct {
	at          position
	protocol    source.Protocol
	addrs       []netip.Addr
	port        uint16
	scheduler   string
	flags       []string      // of the scheduler
	persistence time.Duration // 0: none
	granularity string        // a mask, where not every client counts for itself
	onePacket   bool
	weight      int // of destinations that have none of their own
	dests       []destination
}

// A destination is a real server.
type destination struct {
	at           position
	addr         netip.AddrPort // port 0: that of the virtual server
	weight       int
	way          source.Forwarding
	checksum     string // of a tunnel, where it is not the kernel's own choice
	upper, lower uint32 // thresholds of connections
	tier         uint8
}

// protocols are those that a service can have, by their names.
var protocols = map[string]source.Protocol{"tcp": source.TCP, "udp": source.UDP, "sctp": source.SCTP}

// frontendName names a service after where clients reach it.
func frontendName(a netip.Addr, port uint16, p source.Protocol) string {
	kind := "ip"
	if a.Is6() {
		kind = "ip6"
	}
	return fmt.Sprintf("%s-%s-%s-%d", kind, a, p, port)
}

// add adds a virtual server as a service.
func (r *Result) addServer(v *virtualServer, name string) *Service {
	s := r.service(v.at, "default", name)
	s.VIPs = v.addrs
	s.Ports = []source.Port{{Protocol: v.protocol, Port: v.port, TargetPort: v.port}}
	s.Scheduler = v.scheduler
	s.setAffinity(v.at, v.persistence)
	if v.granularity != "" {
		s.note(v.at, "the persistence granularity "+v.granularity+" is left out: each client counts for itself", "clients behind several addresses may change their endpoint")
	}
	if hashOn := v.likeMaglev(); hashOn != source.NotHashed {
		s.Scheduler, s.HashOn = source.Maglev, hashOn
	} else {
		s.setFlags(v)
	}
	if s.OnePacket = v.onePacket && v.protocol == source.UDP; v.onePacket && !s.OnePacket {
		s.note(v.at, "one-packet scheduling is left out: it is for UDP", "")
	}
	s.setDestinations(v)
	return s
}

// setFlags sets the flags that the scheduler has.
func (s *Service) setFlags(v *virtualServer) {
	var left []string
	has := source.FlagsOfScheduler(v.scheduler)
	for _, word := range v.flags {
		i := slices.IndexFunc(source.EachSchedulerFlag, func(f source.SchedulerFlags) bool { return f.String() == word })
		if i < 0 || source.EachSchedulerFlag[i]&has == 0 {
			left = append(left, word)
			continue
		}
		s.SchedulerFlags |= source.EachSchedulerFlag[i]
	}
	if len(left) > 0 {
		s.note(v.at, "the flags "+strings.Join(left, ",")+" are left out: scheduler "+v.scheduler+" has none of them", "")
	}
}

// likeMaglev returns what the scheduler mh hashes where its flags are those of scheduler maglev.
func (v *virtualServer) likeMaglev() source.HashOn {
	switch {
	case v.scheduler != "mh" || v.persistence != 0 || !slices.Contains(v.flags, "mh-fallback"):
	case len(v.flags) == 1:
		return source.ClientIP
	case len(v.flags) == 2 && slices.Contains(v.flags, "mh-port"):
		return source.ClientIPPort
	}
	return source.NotHashed
}

// setAffinity keeps clients on their endpoint, as long as a service can.
func (s *Service) setAffinity(at position, d time.Duration) {
	if s.Affinity = d; d > source.MaxAffinity {
		s.note(at, fmt.Sprintf("clients keep their endpoint for 24h, not for %s", d), "nothing to do, as a rule")
		s.Affinity = source.MaxAffinity
	}
}

// setDestinations makes endpoints of the destinations that packets get to as to the most.
func (s *Service) setDestinations(v *virtualServer) {
	if len(v.dests) == 0 {
		return
	}
	s.Forward = mostUsed(v.dests)
	own := make(map[netip.AddrPort]bool, len(v.addrs))
	for _, a := range v.addrs {
		own[netip.AddrPortFrom(a, v.port)] = true
	}
	v.dests = slices.DeleteFunc(v.dests, func(d destination) bool {
		return s.cannotServe(d, own[netip.AddrPortFrom(d.addr.Addr(), cmp.Or(d.addr.Port(), v.port))])
	})
	for _, d := range v.dests {
		if d.way != s.Forward {
			s.note(d.at, fmt.Sprintf("%s is left out: its way to forward is %s, and that of others %s", d.addr, d.way, s.Forward), "make it a service of its own, or change it")
			continue
		}
		n := d.addr.Port()
		if n == 0 || s.Forward.Answers() {
			if n != 0 && n != v.port {
				s.note(d.at, fmt.Sprintf("port %d of %s is left out: with %s packets keep port %d", n, d.addr.Addr(), s.Forward, v.port), "")
			}
			n = v.port
		}
		e := s.endpointOf(d)
		e.Ports = map[string]uint16{s.Ports[0].Name: n}
		s.Endpoints = append(s.Endpoints, e)
	}
	commonTargets(s.Service)
}

// cannotServe notes a destination that no endpoint can be; own: it is the virtual server itself.
func (s *Service) cannotServe(d destination, own bool) bool {
	why := source.Unusable(d.addr.Addr())
	if own {
		why = "the address and port of the service itself"
	}
	if why != "" {
		s.note(d.at, fmt.Sprintf("%s is left out: it is %s", d.addr.Addr(), why), "have the program listen on an address of the host of its own")
	}
	return why != ""
}

func (s *Service) endpointOf(d destination) source.Endpoint {
	e := endpoint(d.addr.Addr())
	e.Tier = d.tier
	if e.Weight = uint16(max(0, min(d.weight, 65535))); int(e.Weight) != d.weight {
		s.note(d.at, fmt.Sprintf("the weight %d of %s is written as %d", d.weight, d.addr.Addr(), e.Weight), "the greatest is 65535")
	}
	e.MaxConnections, e.MinConnections = min(d.upper, source.MaxConnectionLimit), min(d.lower, source.MaxConnectionLimit)
	if d.lower > d.upper {
		s.note(d.at, fmt.Sprintf("the lower threshold of connections of %s, %d, is left out: it is above the upper one, %d", d.addr.Addr(), d.lower, d.upper), "")
		e.MinConnections = 0
	}
	if d.checksum != "" {
		s.note(d.at, fmt.Sprintf("%s of the tunnel to %s is left out", d.checksum, d.addr.Addr()), "tunnels have the checksums that IPVS gives them by itself")
	}
	return e
}

// mostUsed returns the way to forward that most destinations have, of several the first.
func mostUsed(dests []destination) source.Forwarding {
	counts := map[source.Forwarding]int{}
	for _, d := range dests {
		counts[d.way]++
	}
	return slices.MaxFunc(dests, func(a, b destination) int { return cmp.Compare(counts[a.way], counts[b.way]) }).way
}

// keepsClients notes, once, that endpoints saw the addresses of clients, and that svcproxy masquerades them.
func (r *Result) keepsClients(file string) {
	if slices.ContainsFunc(r.Services, (*Service).masquerades) {
		r.note(position{file: file}, "endpoints saw the addresses of clients, and svcproxy masquerades those that are not local",
			`where answers come back through this host, set masquerade = "never" of the service, or local_cidrs or masquerade in svcproxy.toml`)
	}
}

// keepsPods notes, once, that endpoints saw the addresses of pods, which kube-proxy knows by the cluster CIDR.
func (r *Result) keepsPods(file string) {
	if slices.ContainsFunc(r.Services, func(s *Service) bool { return s.masquerades() && len(s.VIPs) > 0 }) {
		r.note(position{file: file}, "endpoints saw the addresses of pods that use cluster IPs, and svcproxy masquerades sources that are not local",
			"set local_cidrs in svcproxy.toml to the addresses of pods, as --cluster-cidr of kube-proxy")
	}
}

// masquerades reports whether clients of a service that are not local are masqueraded as svcproxy.toml says.
func (s *Service) masquerades() bool {
	return !s.Forward.Answers() && s.Masquerade != source.MasqueradeNever && len(s.Endpoints) > 0
}
