package explain

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// maxNamed is how many services, ports or endpoints a sentence names.
const maxNamed = 8

// An address is what services have at the one that was asked for.
type address struct {
	question Question
	world    *World
	family   policy.Family
	host     policy.Host
	uses     []use // services that have the address, with the frontends there
}

// A use is a service at the address that was asked for.
type use struct {
	claims.UnitService
	resolved  *policy.Resolved
	frontends []*policy.Frontend // at the address
}

// findUses finds the services that have the address, in order of their names.
func (at *address) findUses() {
	q := at.question
	for _, s := range at.world.Services {
		if !at.mayServe(s.Service) {
			continue
		}
		res := policy.Resolve(s.Service, s.Conditions, at.world.Node, at.family)
		if res == nil {
			continue
		}
		u := use{UnitService: s, resolved: res}
		for _, f := range res.Frontends {
			if f.Key.Addr == q.Dest || f.Key.Kind == policy.NodePort && slices.Contains(at.host.Addrs(f), q.Dest) {
				u.frontends = append(u.frontends, f)
			}
		}
		at.uses = append(at.uses, u)
	}
	slices.SortFunc(at.uses, func(a, b use) int { return a.Key.Compare(b.Key) })
}

// mayServe reports whether a service has an address, or node ports where the address serves them.
func (at *address) mayServe(s *source.Service) bool {
	a := at.question.Dest
	has := slices.Contains(s.VIPs, a) || slices.Contains(s.ExternalIPs, a) || slices.Contains(s.LoadBalancerIPs, a)
	return has || at.servesNodePorts(s, a) && s.HasNodePort()
}

// servesNodePorts reports whether an address serves node ports of a service, if it has any.
func (at *address) servesNodePorts(s *source.Service, a netip.Addr) bool {
	return slices.Contains(at.world.Node.NodePortAddrsOf(s.NodePortAddresses), a) || at.host.LocalhostNodePorts && a == netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

func (at *address) portText() string {
	return fmt.Sprintf("%d/%s", at.question.Port, at.question.Protocol)
}

// refusing says which service refuses other ports of the address; empty: none.
func (at *address) refusing() string {
	for _, u := range at.uses {
		if slices.Contains(u.resolved.RefusedAddrs, at.question.Dest) {
			what := "a VIP"
			if !slices.Contains(u.VIPs, at.question.Dest) {
				what = "an announced address"
			}
			return fmt.Sprintf("%s has no port %s, and other ports of %s are refused", u.Key, at.portText(), what)
		}
	}
	return ""
}

func (at *address) inServiceCIDR(a netip.Addr) bool {
	in := slices.ContainsFunc(at.host.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
	return in && !slices.Contains(at.host.ServiceCIDRExempt, a)
}

func (at *address) bound(a netip.Addr) bool {
	return slices.ContainsFunc(at.uses, func(u use) bool { return slices.Contains(u.resolved.BoundAddrs, a) })
}

// nearest says what comes nearest to what was asked for.
func (at *address) nearest() string {
	if wanted := at.refusedUnit(); wanted != "" {
		return wanted
	}
	if off := at.disabledService(); off != "" {
		return off
	}
	var serves []string
	for _, u := range at.uses {
		for _, f := range u.frontends {
			serves = append(serves, fmt.Sprintf("%d/%s (%s)", f.Key.Port, f.Key.Protocol, f.ServicePort))
		}
	}
	if len(serves) > 0 {
		return fmt.Sprintf("%s serves %s", at.question.Dest, some(serves))
	}
	if port := at.nodePortElsewhere(); port != "" {
		return port
	}
	if len(at.world.Unread) > 0 {
		return "files with faults: " + some(at.world.Unread)
	}
	return ""
}

// nodePortElsewhere: the address is one of this host, but not one for node ports.
func (at *address) nodePortElsewhere() string {
	q := at.question
	if !isHost(at.world.Node, q.Dest) || q.Port == 0 {
		return ""
	}
	for _, s := range at.world.Services {
		if at.servesNodePorts(s.Service, q.Dest) {
			continue
		}
		for _, p := range s.Ports {
			if p.NodePort == q.Port && p.Protocol == q.Protocol {
				return fmt.Sprintf("%d is a node port of %s, which %s does not serve: see node_port_addresses", q.Port, s.Key, q.Dest)
			}
		}
	}
	return ""
}

// refusedUnit names a file that is not used and wants the address.
func (at *address) refusedUnit() string {
	for _, u := range at.world.Refused {
		for _, s := range u.Wanted {
			if at.wants(s) && len(u.Faults) > 0 {
				return fmt.Sprintf("%s, which has it, is not used as it stands: %s", s.Key, u.Faults[0].String())
			}
		}
	}
	return ""
}

// wants reports whether a service has the address and, if one was asked for, the port.
func (at *address) wants(s *source.Service) bool {
	q := at.question
	has := slices.Contains(s.VIPs, q.Dest) || slices.Contains(s.ExternalIPs, q.Dest) || slices.Contains(s.LoadBalancerIPs, q.Dest)
	return slices.ContainsFunc(s.Ports, func(p source.Port) bool {
		served := has && (q.Port == 0 || p.Port == q.Port && p.Protocol == q.Protocol)
		return served || p.NodePort != 0 && p.NodePort == q.Port && p.Protocol == q.Protocol && at.servesNodePorts(s, q.Dest)
	})
}

// some names the first of a list, and how many more there are.
func some(list []string) string {
	if len(list) <= maxNamed {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:maxNamed], ", "), len(list)-maxNamed)
}

// disabledService names a service that has the address and port, but is disabled; empty: there is none.
func (at *address) disabledService() string {
	for _, s := range at.world.Services {
		if s.Disabled && at.wants(s.Service) {
			return fmt.Sprintf("%s (%s), which has it, is disabled", s.Key, place(s))
		}
	}
	return ""
}

// isHost reports whether an address is one of this host.
func isHost(n *policy.Node, a netip.Addr) bool { return a.IsLoopback() || n.Owns(a) }

// place says where a service is from, as "web.toml:12:1".
func place(u claims.UnitService) string {
	if u.Pos.File == "" {
		return u.Unit.Name
	}
	return fmt.Sprintf("%s:%d", filepath.Base(u.Pos.File), max(u.Pos.Line, 1))
}
