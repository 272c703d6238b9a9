package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// A VirtualServer is one of IPVS, as ipvsadm and keepalived both know it, on any number of addresses.
type VirtualServer struct {
	At          reader.Position
	Protocol    source.Protocol
	Addrs       []netip.Addr
	Port        uint16
	Scheduler   string
	Flags       []string      // of the scheduler
	Persistence time.Duration // 0: none
	Granularity string        // a mask, where not every client counts for itself
	MaskedAt    reader.Position
	OnePacket   bool
	Weight      int // of destinations that have none of their own
	Dests       []Destination
}

// A Destination is a real server.
type Destination struct {
	At           reader.Position
	Addr         netip.AddrPort // port 0: that of the virtual server
	Weight       int
	Way          source.Forwarding
	checksum     string // of a tunnel, where it is not the kernel's own choice
	Upper, Lower int    // thresholds of connections
	Tier         uint8
}

// Serve makes the service of a virtual server.
func (v *VirtualServer) Serve(s *reader.Service) {
	s.VIPs = v.Addrs
	s.Ports = []source.Port{{Protocol: v.Protocol, Port: v.Port, TargetPort: v.Port}}
	s.Scheduler = v.Scheduler
	s.SetAffinity(v.At, v.Persistence)
	if v.Granularity != "" {
		s.Note(cmp.Or(v.MaskedAt, v.At), "the persistence granularity "+v.Granularity+" is left out: each client counts for itself", "clients behind several addresses may change their endpoint")
	}
	if hashOn := v.likeMaglev(); hashOn != source.NotHashed {
		s.Scheduler, s.HashOn = source.Maglev, hashOn
	} else {
		v.setFlags(s)
	}
	if s.OnePacket = v.OnePacket && v.Protocol == source.UDP; v.OnePacket && !s.OnePacket {
		s.Note(v.At, "one-packet scheduling is left out: it is for UDP", "")
	}
	if len(v.Dests) > 0 {
		v.setDestinations(s)
	}
}

// setFlags sets the flags that the scheduler has.
func (v *VirtualServer) setFlags(s *reader.Service) {
	has := source.FlagsOfScheduler(v.Scheduler)
	left := slices.DeleteFunc(slices.Clone(v.Flags), func(word string) bool {
		i := slices.IndexFunc(source.EachSchedulerFlag, func(f source.SchedulerFlags) bool { return f&has != 0 && f.String() == word })
		if i >= 0 {
			s.SchedulerFlags |= source.EachSchedulerFlag[i]
		}
		return i >= 0
	})
	if len(left) > 0 {
		s.Note(v.At, "the flags "+strings.Join(left, ",")+" are left out: scheduler "+v.Scheduler+" has none of them", "")
	}
}

// likeMaglev returns what the scheduler mh hashes where its flags are those of scheduler maglev.
func (v *VirtualServer) likeMaglev() source.HashOn {
	switch {
	case v.Scheduler != "mh" || v.Persistence != 0 || !slices.Contains(v.Flags, "mh-fallback"):
	case len(v.Flags) == 1:
		return source.ClientIP
	case len(v.Flags) == 2 && slices.Contains(v.Flags, "mh-port"):
		return source.ClientIPPort
	}
	return source.NotHashed
}

// setDestinations makes endpoints of the destinations that packets get to as to the most, of several ways the first.
func (v *VirtualServer) setDestinations(s *reader.Service) {
	counts := map[source.Forwarding]int{}
	for _, d := range v.Dests {
		counts[d.Way]++
	}
	s.Forward = slices.MaxFunc(v.Dests, func(a, b Destination) int { return cmp.Compare(counts[a.Way], counts[b.Way]) }).Way
	own := make(map[netip.AddrPort]bool, len(v.Addrs))
	for _, a := range v.Addrs {
		own[netip.AddrPortFrom(a, v.Port)] = true
	}
	v.Dests = slices.DeleteFunc(v.Dests, func(d Destination) bool {
		why := source.Unusable(d.Addr.Addr())
		if own[netip.AddrPortFrom(d.Addr.Addr(), cmp.Or(d.Addr.Port(), v.Port))] {
			why = "the address and port of the service itself"
		}
		if why != "" {
			s.Note(d.At, fmt.Sprintf("%s is left out: it is %s", d.Addr.Addr(), why), "have the program listen on an address of the host of its own")
		}
		return why != ""
	})
	for _, d := range v.Dests {
		if d.Way != s.Forward {
			s.Note(d.At, fmt.Sprintf("%s is left out: its way to forward is %s, and that of others %s", d.Addr, d.Way, s.Forward), "make it a service of its own, or change it")
			continue
		}
		n := cmp.Or(d.Addr.Port(), v.Port)
		if n != v.Port && s.Forward.Answers() {
			s.Note(d.At, fmt.Sprintf("port %d of %s is left out: with %s packets keep port %d", n, d.Addr.Addr(), s.Forward, v.Port), "")
			n = v.Port
		}
		s.AddEndpoint(d.At, d.Addr.String(), d.endpoint(s, n))
	}
	reader.CommonTargets(s.Service)
}

func (d Destination) endpoint(s *reader.Service, port uint16) source.Endpoint {
	e := reader.Endpoint(d.Addr.Addr())
	e.Tier, e.Ports = d.Tier, map[string]uint16{s.Ports[0].Name: port}
	if e.Weight = uint16(max(0, min(d.Weight, 65535))); int(e.Weight) != d.Weight {
		s.Note(d.At, fmt.Sprintf("the weight %d of %s is written as %d", d.Weight, d.Addr.Addr(), e.Weight), "the greatest is 65535")
	}
	limits := source.Extras{MaxConnections: uint32(min(d.Upper, source.MaxConnectionLimit)), MinConnections: uint32(min(d.Lower, source.MaxConnectionLimit))}
	if d.Lower > d.Upper {
		s.Note(d.At, fmt.Sprintf("the lower threshold of connections of %s, %d, is left out: it is above the upper one, %d", d.Addr.Addr(), d.Lower, d.Upper), "")
		limits.MinConnections = 0
	}
	e = e.With(limits)
	if d.checksum != "" {
		s.Note(d.At, fmt.Sprintf("%s of the tunnel to %s is left out", d.checksum, d.Addr.Addr()), "tunnels have the checksums that IPVS gives them by itself")
	}
	return e
}
