package plan

import (
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
func differences(old, now *source.Service) []Edit {
	var d diff
	list(&d, "vips", old.VIPs, now.VIPs)
	list(&d, "external_ips", old.ExternalIPs, now.ExternalIPs)
	list(&d, "load_balancer_ips", old.LoadBalancerIPs, now.LoadBalancerIPs)
	list(&d, "source_ranges", old.SourceRanges, now.SourceRanges)
	list(&d, "load_balancer_source_ranges", old.LoadBalancerSourceRanges, now.LoadBalancerSourceRanges)
	d.ports(old.Ports, now.Ports)
	d.endpoints(old.Endpoints, now.Endpoints)
	d.value("internal_traffic_policy", old.InternalTrafficPolicy, now.InternalTrafficPolicy)
	d.value("external_traffic_policy", old.ExternalTrafficPolicy, now.ExternalTrafficPolicy)
	d.value("masquerade", old.Masquerade, now.Masquerade)
	d.affinity(old.Affinity, now.Affinity)
	d.value("traffic_distribution", old.TrafficDistribution, now.TrafficDistribution)
	d.value("node_port_addresses", old.NodePortAddresses.String(), now.NodePortAddresses.String())
	d.value("health_check_node_port", old.HealthCheckNodePort, now.HealthCheckNodePort)
	d.value("publish_not_ready", old.PublishNotReady, now.PublishNotReady)
	d.value("scheduler", old.Scheduler, now.Scheduler)
	d.value("hash_on", old.HashOn, now.HashOn)
	d.value("scheduler_flags", old.SchedulerFlags, now.SchedulerFlags)
	d.value("one_packet", old.OnePacket, now.OnePacket)
	d.value("forward", old.Forward, now.Forward)
	d.healthCheck(old.HealthCheck, now.HealthCheck)
	d.value("announce", old.Announce, now.Announce)
	d.value("min_up", max(1, old.MinUp), max(1, now.MinUp))
	d.value("slow_start", decode.ShortDuration(old.SlowStart), decode.ShortDuration(now.SlowStart))
	d.value("close_connections", old.CloseConnections, now.CloseConnections)
	d.value("enabled", !old.Disabled, !now.Disabled)
	list(&d, "left to another service", old.Without, now.Without)
	d.value("in a cluster", old.InCluster, now.InCluster)
	if len(d.edits) == 0 {
		d.edits = []Edit{{Key: "order of lists", New: "changed"}}
	}
	return d.edits
}

// A diff gathers what differs.
type diff struct{ edits []Edit }

// value notes a value. What is empty is written as files write it.
func (d *diff) value(key string, old, now any) {
	if old == now {
		return
	}
	text := func(v any) string {
		if s := fmt.Sprint(v); s != "" {
			return s
		}
		return `""`
	}
	d.edits = append(d.edits, Edit{Key: key, Old: text(old), New: text(now)})
}

// list notes members of a list.
func list[T comparable](d *diff, key string, old, now []T) {
	e := Edit{Key: key, Added: without(now, old), Removed: without(old, now)}
	if len(e.Added)+len(e.Removed) > 0 {
		d.edits = append(d.edits, e)
	}
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

func (d *diff) affinity(old, now time.Duration) {
	name := map[bool]string{true: "none", false: "client_ip"}
	d.value("session_affinity", name[old == 0], name[now == 0])
	if old != 0 && now != 0 {
		d.value("session_affinity_timeout", decode.ShortDuration(old), decode.ShortDuration(now))
	}
}

// healthCheck notes the keys of two health checks that differ; of one that comes or goes the type.
func (d *diff) healthCheck(old, now *source.HealthCheck) {
	was, is := report.CheckWords(old), report.CheckWords(now)
	for i := range was {
		d.value("health_check."+was[i].Key, was[i].Value, is[i].Value)
		if (old == nil) != (now == nil) {
			return
		}
	}
}

func (d *diff) ports(old, now []source.Port) {
	text := func(list []source.Port) (out []string) {
		for _, p := range list {
			out = append(out, portText(p))
		}
		return out
	}
	list(d, "ports", text(old), text(now))
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
func (d *diff) endpoints(old, now []source.Endpoint) {
	was := make(map[string]source.Endpoint, len(old))
	var names, newNames []string
	for _, e := range old {
		was[endpointText(e)] = e
		names = append(names, endpointText(e))
	}
	for _, e := range now {
		newNames = append(newNames, endpointText(e))
	}
	list(d, "endpoints", names, newNames)
	for i, e := range now {
		if o, both := was[newNames[i]]; both {
			d.endpoint(newNames[i], o, e)
		}
	}
}

func (d *diff) endpoint(name string, old, now source.Endpoint) {
	key := func(k string) string { return k + " of " + name }
	d.value(key("weight"), old.Weight, now.Weight)
	d.value(key("tier"), old.Tier, now.Tier)
	d.value(key("max_connections"), old.MaxConnections, now.MaxConnections)
	d.value(key("min_connections"), old.MinConnections, now.MinConnections)
	d.value(key("enabled"), !old.Disabled, !now.Disabled)
	d.value(key("node"), old.Node, now.Node)
	d.value(key("zone"), old.Zone, now.Zone)
	d.value(key("hints"), hintsText(old.Hints), hintsText(now.Hints))
	d.value(key("ready"), old.Ready, now.Ready)
	d.value(key("serving"), old.Serving, now.Serving)
	d.value(key("terminating"), old.Terminating, now.Terminating)
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
func (e *Edit) Text() string {
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
