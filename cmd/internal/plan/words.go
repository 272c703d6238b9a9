package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// serviceOf says what changes of a service.
func serviceOf(tr claims.Transition) Service {
	switch {
	case tr.Old == nil:
		return Service{Name: tr.New.Key.String(), Op: "add", Edits: contents(tr.New)}
	case tr.New == nil:
		return Service{Name: tr.Old.Key.String(), Op: "remove", Edits: contents(tr.Old)}
	}
	return Service{Name: tr.New.Key.String(), Op: "change", Edits: differences(tr.Old, tr.New)}
}

// contents says what a service is that comes or goes.
func contents(s *source.Service) []Edit {
	var at []string
	for _, a := range slices.Concat(s.VIPs, s.ExternalIPs, s.LoadBalancerIPs) {
		for _, p := range s.Ports {
			at = append(at, netip.AddrPortFrom(a, p.Port).String()+"/"+p.Protocol.String())
		}
	}
	for _, p := range s.Ports {
		if p.NodePort != 0 {
			at = append(at, fmt.Sprintf("node port %d/%s", p.NodePort, p.Protocol))
		}
	}
	edits := []Edit{{Key: "addresses", New: named(at)}, {Key: "endpoints", New: strconv.Itoa(len(s.Endpoints))}}
	if s.Disabled {
		edits = append(edits, Edit{Key: "enabled", New: "false"})
	}
	return edits
}

// differences says what differs between two versions of a service.
func differences(old, now *source.Service) (edits []Edit) {
	for _, d := range old.Differences(now) {
		edits = append(edits, editsOf(d.Key, d)...)
	}
	if len(edits) == 0 {
		return []Edit{{Key: "order of lists", New: "changed"}}
	}
	return edits
}

// editsOf says what differs in a key, which is told as what.
func editsOf(what string, key source.Difference) (edits []Edit) {
	switch old := key.Old.(type) {
	case []netip.Addr:
		return list(what, old, key.New.([]netip.Addr))
	case []netip.Prefix:
		return list(what, old, key.New.([]netip.Prefix))
	case []source.PortAddr:
		return list(what, old, key.New.([]source.PortAddr))
	case []source.Port:
		return list(what, portTexts(old), portTexts(key.New.([]source.Port)))
	case []source.Endpoint:
		return endpoints(old, key.New.([]source.Endpoint))
	case *source.HealthCheck:
		for _, c := range report.CheckEdits(old, key.New.(*source.HealthCheck)) {
			edits = append(edits, value("health_check."+c.What, c.Old, c.New)...)
		}
		return edits
	case *source.Hints:
		return value(what, hintsText(old), hintsText(key.New.(*source.Hints)))
	case time.Duration:
		now := key.New.(time.Duration)
		if key.Key != "session_affinity" {
			return value(what, decode.ShortDuration(old), decode.ShortDuration(now))
		}
		name := map[bool]string{true: "none", false: "client_ip"}
		edits = value("session_affinity", name[old == 0], name[now == 0])
		if old != 0 && now != 0 {
			edits = append(edits, value("session_affinity_timeout", decode.ShortDuration(old), decode.ShortDuration(now))...)
		}
		return edits
	}
	return value(what, fmt.Sprint(key.Old), fmt.Sprint(key.New))
}

// value notes a value. What is empty is written as files write it.
func value(key, old, now string) []Edit {
	if old == now {
		return nil
	}
	return []Edit{{Key: key, Old: cmp.Or(old, `""`), New: cmp.Or(now, `""`)}}
}

// list notes members of a list.
func list[T comparable](key string, old, now []T) []Edit {
	e := Edit{Key: key, Added: without(now, old), Removed: without(old, now)}
	if len(e.Added)+len(e.Removed) == 0 {
		return nil
	}
	return []Edit{e}
}

// without returns the members of a that b does not have.
func without[T comparable](a, b []T) (out []string) {
	in := make(map[T]bool, len(b))
	for _, v := range b {
		in[v] = true
	}
	for _, v := range a {
		if !in[v] {
			out = append(out, fmt.Sprint(v))
		}
	}
	return out
}

func portTexts(list []source.Port) (out []string) {
	for _, p := range list {
		out = append(out, portText(p))
	}
	return out
}

func portText(p source.Port) string {
	s := fmt.Sprintf("%d/%s to %d", p.Port, p.Protocol, p.TargetPort)
	if p.Name != "" {
		s = p.Name + " " + s
	}
	if p.NodePort != 0 {
		s += fmt.Sprintf(", node port %d", p.NodePort)
	}
	return s
}

// endpoints notes those that come and go, and what changes of the others.
func endpoints(old, now []source.Endpoint) []Edit {
	was := make(map[string]source.Endpoint, len(old))
	var names, newNames []string
	for _, e := range old {
		was[endpointText(e)] = e
		names = append(names, endpointText(e))
	}
	for _, e := range now {
		newNames = append(newNames, endpointText(e))
	}
	edits := list("endpoints", names, newNames)
	for i, e := range now {
		if o, both := was[newNames[i]]; both {
			for _, key := range o.Differences(&e) {
				edits = append(edits, editsOf(key.Key+" of "+newNames[i], key)...)
			}
		}
	}
	return edits
}

func hintsText(h *source.Hints) string {
	if h == nil {
		return ""
	}
	return strings.Join(slices.Concat(h.Nodes, h.Zones), " ")
}

// endpointText names an endpoint as files do, one with ports of its own with these.
func endpointText(e source.Endpoint) string {
	if len(e.Ports) == 0 {
		return e.Addr.String()
	}
	if port, single := e.Ports[""]; single && len(e.Ports) == 1 {
		return netip.AddrPortFrom(e.Addr, port).String()
	}
	return fmt.Sprintf("%s%v", e.Addr, e.Ports)
}

// Text returns the edit as status would write it.
func (e Edit) Text() string {
	var parts []string
	if len(e.Added) > 0 {
		parts = append(parts, e.Key+" added: "+named(e.Added))
	}
	if len(e.Removed) > 0 {
		parts = append(parts, e.Key+" removed: "+named(e.Removed))
	}
	switch {
	case e.Old != "":
		parts = append(parts, e.Key+": "+e.Old+" -> "+e.New)
	case e.New != "":
		parts = append(parts, e.Key+": "+e.New)
	}
	return strings.Join(parts, "; ")
}
