package convert

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A table collects keys and values, in the order of the reference.
type table []string

func (t *table) put(key string, v any) { *t = append(*t, key+" = "+decode.Literal(v)) }

// putUnless adds a key, unless its value is the one that it has where it is not written.
func putUnless[T comparable](t *table, key string, standard, v T) {
	if v != standard {
		t.put(key, v)
	}
}

func (t table) inline() string { return "{ " + strings.Join(t, ", ") + " }" }

// Unlike the ports and endpoints of any service, which has to write them.
var noPorts, noEndpoints = []source.Port{{}}, []source.Endpoint{{}}

// serviceText returns a service as a service file has it: what differs from one of which nothing is written.
func serviceText(s *source.Service, named []reader.Named) string {
	t := append(make(table, 0, 16), "name = "+decode.Literal(s.Name))
	putUnless(&t, "namespace", "default", s.Namespace)
	putUnless(&t, "enabled", true, !s.Disabled)
	standard := source.Service{Ports: noPorts, Endpoints: noEndpoints, MinUp: min(s.MinUp, 1), HealthCheck: s.HealthCheck, Disabled: s.Disabled}
	for _, d := range standard.Differences(s) {
		switch d.Key {
		case "ports":
			t = append(t, "ports = "+portsText(s.Ports))
		case "endpoints":
			t = append(t, "endpoints = "+endpointsText(s, named))
		case "session_affinity":
			t.put(d.Key, "client_ip")
			putUnless(&t, "session_affinity_timeout", 3*time.Hour, s.Affinity)
		case "scheduler_flags":
			t.put(d.Key, strings.Split(s.SchedulerFlags.String(), ","))
		case "forward":
			t.put(d.Key, s.Forward.Method)
			putUnless(&t, "tunnel_type", source.NoTunnel, s.Forward.Tunnel)
			putUnless(&t, "tunnel_port", 0, s.Forward.Port)
		default:
			t.put(d.Key, d.New)
		}
	}
	if s.HealthCheck != nil {
		t = append(t, "health_check = "+checkText(s.HealthCheck))
	}
	return "[[services]]\n" + strings.Join(t, "\n") + "\n"
}

func portsText(ports []source.Port) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		var t table
		putUnless(&t, "name", "", p.Name)
		putUnless(&t, "protocol", source.TCP, p.Protocol)
		putUnless(&t, "port", 0, p.Port)
		putUnless(&t, "target_port", p.Port, p.TargetPort)
		putUnless(&t, "node_port", 0, p.NodePort)
		texts[i] = t.inline()
	}
	return inLines(texts)
}

// endpointsText lists endpoints, and as comments those that have a host name instead of an address.
func endpointsText(s *source.Service, named []reader.Named) string {
	texts := make([]string, len(s.Endpoints))
	for i := range s.Endpoints {
		texts[i] = endpointText(s, &s.Endpoints[i], s.Endpoints[i].Addr.String())
	}
	if len(named) == 0 {
		return inLines(texts)
	}
	var b strings.Builder
	for i := range named {
		b.WriteString("\n    # " + source.Printable(endpointText(s, &named[i].Endpoint, named[i].Name)) + ",")
	}
	for _, text := range texts {
		b.WriteString("\n    " + text + ",")
	}
	return "[" + b.String() + "\n]"
}

// endpointText returns an endpoint as a string where it has no more than an address and a port.
func endpointText(s *source.Service, e *source.Endpoint, address string) string {
	t := table{"address = " + decode.Literal(address)}
	short := address
	var numbers table // where it serves under others than the service says
	for _, p := range s.Ports {
		switch n := e.Port(p); {
		case n == p.TargetPort:
		case len(s.Ports) == 1:
			putUnless(&t, "port", 0, n)
			short = net.JoinHostPort(address, strconv.Itoa(int(n)))
		case source.IsLabel(p.Name):
			putUnless(&numbers, p.Name, 0, n)
		default:
			putUnless(&numbers, decode.Literal(p.Name), 0, n)
		}
	}
	if len(numbers) > 0 {
		t = append(t, "ports = "+numbers.inline())
	}
	plain := len(t)
	standard := source.Endpoint{Addr: e.Addr, Ports: e.Ports, Weight: 1, Ready: true, Serving: true}
	for _, d := range standard.Differences(e) {
		t.put(d.Key, d.New)
	}
	if len(t) == plain && (plain == 1 || len(s.Ports) == 1) {
		return decode.Literal(short)
	}
	return t.inline()
}

// inLines lists values, each on a line of its own where one line would be long.
func inLines(values []string) string {
	one := "[" + strings.Join(values, ", ") + "]"
	if len(one) <= 100 {
		return one
	}
	return "[\n    " + strings.Join(values, ",\n    ") + ",\n]"
}

// checkText returns a health check as an inline table.
func checkText(c *source.HealthCheck) string {
	var t table
	standard := source.HealthCheck{Interval: 5 * time.Second, IntervalDown: c.Interval, Timeout: min(2*time.Second, c.Interval), Rise: 2, Fall: 3}
	if c.Type == source.CheckHTTP || c.Type == source.CheckHTTPS {
		standard.Path, standard.Method, standard.ExpectStatus = "/", "GET", []source.StatusRange{{First: 200, Last: 399}}
	}
	for _, d := range standard.Differences(c) {
		switch d.Key {
		case "send":
			t.put(d.Key, escape(c.Send))
		case "all_failed":
			t.put(d.Key, "refuse")
		default:
			t.put(d.Key, d.New)
		}
	}
	return t.inline()
}

// escape writes bytes as the key send has them.
func escape(text string) string {
	var b []byte
	for _, c := range []byte(text) {
		switch {
		case c == '\\':
			b = append(b, `\\`...)
		case c < ' ' || c > '~':
			b = fmt.Appendf(b, `\x%02x`, c)
		default:
			b = append(b, c)
		}
	}
	return string(b)
}

// comment returns a text as lines of comment.
func comment(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		fmt.Fprintf(&b, "# %s\n", source.Printable(strings.TrimSuffix(line, "\n")))
	}
	return b.String()
}
