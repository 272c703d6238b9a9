package convert

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// literal returns a value as TOML writes it.
func literal(v any) string {
	switch v := v.(type) {
	case string:
		return quoted(v)
	case []string:
		words := make([]string, len(v))
		for i := range v {
			words[i] = quoted(v[i])
		}
		return "[" + strings.Join(words, ", ") + "]"
	}
	return fmt.Sprint(v)
}

// quoted returns a basic string of TOML, on one line.
func quoted(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < ' ' || c == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// A table collects keys and values, in the order of the reference.
type table []string

// put adds a key, unless its value is the one that it has where it is not written.
func put[T comparable](t *table, key string, v, standard T) {
	if v != standard {
		*t = append(*t, key+" = "+literal(v))
	}
}

func (t *table) duration(key string, d, standard time.Duration) {
	if d != standard {
		*t = append(*t, key+" = "+literal(decode.ShortDuration(d)))
	}
}

func list[T fmt.Stringer](t *table, key string, all []T) {
	if len(all) == 0 {
		return
	}
	words := make([]string, len(all))
	for i, v := range all {
		words[i] = v.String()
	}
	*t = append(*t, key+" = "+literal(words))
}

func (t table) inline() string { return "{ " + strings.Join(t, ", ") + " }" }

// serviceText returns a service as a service file has it.
func serviceText(s *source.Service, named []reader.Named) string {
	var t table
	put(&t, "name", s.Name, "")
	put(&t, "namespace", s.Namespace, "default")
	put(&t, "enabled", !s.Disabled, true)
	list(&t, "vips", s.VIPs)
	list(&t, "external_ips", s.ExternalIPs)
	list(&t, "load_balancer_ips", s.LoadBalancerIPs)
	list(&t, "source_ranges", s.SourceRanges)
	list(&t, "load_balancer_source_ranges", s.LoadBalancerSourceRanges)
	t = append(t, "ports = "+portsText(s.Ports), "endpoints = "+endpointsText(s, named))
	put(&t, "internal_traffic_policy", s.InternalTrafficPolicy.String(), "cluster")
	put(&t, "external_traffic_policy", s.ExternalTrafficPolicy.String(), "cluster")
	put(&t, "masquerade", s.Masquerade.String(), "")
	if s.Affinity != 0 {
		put(&t, "session_affinity", "client_ip", "")
		t.duration("session_affinity_timeout", s.Affinity, 3*time.Hour)
	}
	put(&t, "traffic_distribution", s.TrafficDistribution.String(), "")
	put(&t, "health_check_node_port", s.HealthCheckNodePort, 0)
	put(&t, "publish_not_ready", s.PublishNotReady, false)
	put(&t, "scheduler", s.Scheduler, "")
	put(&t, "hash_on", s.HashOn.String(), "")
	if s.SchedulerFlags != 0 {
		t = append(t, "scheduler_flags = "+literal(strings.Split(s.SchedulerFlags.String(), ",")))
	}
	put(&t, "one_packet", s.OnePacket, false)
	put(&t, "forward", s.Forward.Method.String(), "masquerade")
	put(&t, "tunnel_type", s.Forward.Tunnel.String(), "")
	put(&t, "tunnel_port", s.Forward.Port, 0)
	put(&t, "min_up", max(1, s.MinUp), 1)
	t.duration("slow_start", s.SlowStart, 0)
	put(&t, "close_connections", s.CloseConnections.String(), "never")
	if s.HealthCheck != nil {
		t = append(t, "health_check = "+checkText(s.HealthCheck))
	}
	return "[[services]]\n" + strings.Join(t, "\n") + "\n"
}

func portsText(ports []source.Port) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		var t table
		put(&t, "name", p.Name, "")
		put(&t, "protocol", p.Protocol.String(), "tcp")
		put(&t, "port", p.Port, 0)
		put(&t, "target_port", p.TargetPort, p.Port)
		put(&t, "node_port", p.NodePort, 0)
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
	var t table
	put(&t, "address", address, "")
	short := address
	if len(s.Ports) == 1 {
		if n := e.Port(s.Ports[0]); n != s.Ports[0].TargetPort {
			put(&t, "port", n, 0)
			short = net.JoinHostPort(address, strconv.Itoa(int(n)))
		}
	} else if numbers := ownPorts(s, e); len(numbers) > 0 {
		t = append(t, "ports = "+numbers.inline())
	}
	plain := len(t)
	put(&t, "node", e.Node, "")
	put(&t, "zone", e.Zone, "")
	put(&t, "weight", e.Weight, 1)
	put(&t, "tier", e.Tier, 0)
	put(&t, "max_connections", e.MaxConnections, 0)
	put(&t, "min_connections", e.MinConnections, 0)
	put(&t, "enabled", !e.Disabled, true)
	put(&t, "ready", e.Ready, true)
	put(&t, "serving", e.Serving, true)
	put(&t, "terminating", e.Terminating, false)
	if len(t) == plain && (plain == 1 || len(s.Ports) == 1) {
		return literal(short)
	}
	return t.inline()
}

// ownPorts returns where an endpoint serves under other numbers than the service says.
func ownPorts(s *source.Service, e *source.Endpoint) (t table) {
	for _, p := range s.Ports {
		if n := e.Port(p); n != p.TargetPort {
			put(&t, literalKey(p.Name), n, 0)
		}
	}
	return t
}

// literalKey returns a key, in quotes where TOML needs them.
func literalKey(key string) string {
	if source.IsLabel(key) {
		return key
	}
	return literal(key)
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
	put(&t, "type", c.Type.String(), "")
	put(&t, "port", c.Port, 0)
	if c.Type == source.CheckHTTP || c.Type == source.CheckHTTPS {
		put(&t, "path", c.Path, "/")
		put(&t, "method", c.Method, "GET")
		put(&t, "host", c.Host, "")
		if !slices.Equal(c.ExpectStatus, []source.StatusRange{{First: 200, Last: 399}}) {
			list(&t, "expect_status", c.ExpectStatus)
		}
		put(&t, "expect_body", c.ExpectBody, "")
	}
	put(&t, "tls", c.TLS, false)
	put(&t, "server_name", c.ServerName, "")
	put(&t, "verify", !c.Insecure, true)
	put(&t, "min_tls", c.MinTLS.String(), "")
	put(&t, "service", c.GRPCService, "")
	put(&t, "send", escape(c.Send), "")
	put(&t, "expect", c.Expect, "")
	if len(c.Command) > 0 {
		t = append(t, "command = "+literal(c.Command))
	}
	t.duration("interval", c.Interval, 5*time.Second)
	t.duration("interval_down", c.IntervalDown, c.Interval)
	t.duration("timeout", c.Timeout, min(2*time.Second, c.Interval))
	put(&t, "rise", c.Rise, 2)
	put(&t, "fall", c.Fall, 3)
	if c.Source.IsValid() {
		put(&t, "source", c.Source.String(), "")
	}
	if c.Refuse {
		put(&t, "all_failed", "refuse", "")
	}
	return t.inline()
}

// escape writes bytes as the key send has them.
func escape(text string) string {
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case c == '\\':
			b.WriteString(`\\`)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// comment returns a text as lines of comment.
func comment(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		fmt.Fprintf(&b, "# %s\n", source.Printable(strings.TrimSuffix(line, "\n")))
	}
	return b.String()
}
