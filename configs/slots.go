package configs

import (
	"fmt"

	"svcproxy.dev/svcproxy/internal/maglev"
	"svcproxy.dev/svcproxy/source"
)

// maxSlots is how many elements of maps a service with scheduler maglev may have in nftables mode.
// Each costs the kernel some 100 bytes and 5 us to load: 0.2 GB, and 10 s.
const maxSlots = 2_000_000

// hashedSlots returns how many elements a service with scheduler maglev has: a table for each of its
// addresses and ports, of the size for as many endpoints as are listed, of either family at most.
func hashedSlots(s *source.Service) int {
	addrs := len(s.VIPs) + len(s.ExternalIPs) + len(s.LoadBalancerIPs)
	frontends := addrs * len(s.Ports)
	for _, p := range s.Ports {
		if p.NodePort != 0 {
			frontends += 2 // one of each family
		}
	}
	if s.InternalTrafficPolicy != s.ExternalTrafficPolicy {
		frontends *= 2
	}
	return frontends * maglev.Size(len(s.Endpoints))
}

// refuseSlots returns what is wrong with a service that needs too many elements in the only mode.
func refuseSlots(s *source.Service, modes []string) []source.Problem {
	if s.Scheduler != source.Maglev || len(modes) != 1 || !modeNamed(modes[0]).slots {
		return nil
	}
	n := hashedSlots(s)
	if n <= maxSlots {
		return nil
	}
	return []source.Problem{{
		Path: source.At("scheduler"),
		Msg:  fmt.Sprintf("scheduler maglev has %d slots for these addresses, ports and endpoints in %s mode, and %d may be", n, modes[0], maxSlots),
		Hint: "use fewer ports or addresses, or ipvs mode",
	}}
}
