package read

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// defaultAffinity is session_affinity_timeout when it is not written, as in Kubernetes.
const defaultAffinity = 3 * time.Hour

// A service is a source.Service as a file writes it.
type service struct {
	source.Service
	clientIP  bool          // session_affinity = "client_ip"
	timeout   time.Duration // session_affinity_timeout; 0: not written
	listed    bool          // endpoints is written
	endpoints []endpoint
	written   writtenPorts  // Ports, as they are written
	check     *writtenCheck // health_check; nil: not written
	inherited []string      // keys whose values are those of [defaults]
}

// An endpoint is a source.Endpoint as a file writes it.
type endpoint struct {
	source.Endpoint
	Port uint16 // for the one port of the service; 0: not written
}

// A writtenEndpoint is what a table says of an endpoint, whose extras are not yet those of source.Endpoint.
type writtenEndpoint struct {
	endpoint
	more source.Extras
}

func (w *writtenEndpoint) finish() endpoint {
	w.Endpoint = w.With(w.more)
	return w.endpoint
}

var (
	policy       = decode.Values("traffic policy", source.Cluster, source.Local)
	masquerading = decode.Values("masquerade mode", source.MasqueradeAuto, source.MasqueradeAll, source.MasqueradeNever).Instead(masqueradeHint)
	distribution = decode.Values("traffic distribution", source.Evenly, source.PreferSameZone, source.PreferSameNode)
	hashOn       = decode.Values("part of a client", source.NotHashed, source.ClientIPPort, source.ClientIP) // the first: as the scheduler wants
	forwarding   = decode.Values("way to forward", source.ForwardMasquerade, source.ForwardDirect, source.ForwardTunnel)
	tunnel       = decode.Values("tunnel type", source.IPIP, source.GUE, source.GRE)

	schedulerFlags = flagsOf(decode.Values("flag of a scheduler", source.EachSchedulerFlag...))
	announce       = flagsOf(decode.Values("way to announce addresses", source.EachMeans...))

	affinity = decode.NoOrYes("session affinity", "none", "client_ip").Instead(affinityHint)

	connections = decode.Number[uint32](0, source.MaxConnectionLimit)
	addresses   = decode.List(decode.Addr)
	prefixes    = decode.List(decode.Prefix)

	nodeAddresses = decode.To(decode.Unique(decode.NodeAddress), source.SelectAddresses)

	// Validate says what is wrong with these; their patterns are for editors.
	label = decode.Text.As(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	name  = decode.Text.As(`^([a-zA-Z0-9]([a-zA-Z0-9._-]{0,251}[a-zA-Z0-9])?)?$`)
)

// flagsOf reads a list of flags, none of which is there twice.
func flagsOf[F ~uint8](one decode.Kind[F]) decode.Kind[F] {
	return decode.To(decode.Unique(one), func(list []F) (all F) {
		for _, f := range list {
			all |= f
		}
		return all
	})
}

// A service and an endpoint of which nothing is written. Keys that depend on others are set by complete.
var (
	standardService  = decode.Standard(serviceFields)
	standardEndpoint = decode.Standard(endpointFields)
)

// labels reads those of a service. A list of words is what people try.
var labels = decode.MapOf(decode.Text.As(`^([a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?)?$`)).Instead(func(v any) string {
	if _, ok := v.([]any); ok {
		return `want a table, such as { team = "web" }`
	}
	return ""
})

// listName reads the name of a file of endpoints.
var listName = decode.Matching("the name of a file in this directory that ends in .endpoints.json or .endpoints.toml", isListName).As(`^[^./][^/]*\.endpoints\.(json|toml)$`)

// isListName reports whether a name can be that of a file of endpoints.
func isListName(name string) bool {
	return IsEndpointsFile(name) && len(name) <= MaxName && !strings.ContainsAny(name, "/\x00")
}

// endpointsSchema is of endpoints in all three ways of writing them.
var endpointsSchema = decode.List(decode.Kind[endpoint]{Schema: decode.Schema{AnyOf: []decode.Schema{
	{Type: "string", Pattern: `^([0-9a-fA-F:.]+|[0-9.]+:[0-9]+|\[[0-9a-fA-F:.]+\]:[0-9]+)$`},
	decode.TableOf(endpointFields, standardEndpoint).Schema,
}}}).Schema

// Schema returns what a service file may hold, as JSON Schema says it. It is made
// of the tables that files are read by.
func Schema() decode.Schema {
	standard := standardService
	standard.timeout, standard.Forward.Tunnel, standard.Forward.Port = defaultAffinity, source.IPIP, source.GUEPort
	services := decode.List(decode.TableOf(serviceFields, standard)).Schema
	return decode.Schema{
		Heading: decode.Headed("svcproxy service file"), Type: "object", Others: false, Required: []string{"services"},
		Properties: decode.Properties{
			{Key: schemaKey, Schema: decode.Text.Schema},
			{Key: "services", Schema: services},
			{Key: defaultsKey, Schema: decode.TableOf(defaultFields, service{}).Schema},
		},
	}
}

// serviceFields are the keys of a service. Those that are asDefault may stand in [defaults] too.
var serviceFields = []decode.Field[service]{
	decode.Need(decode.Key("name", label, func(s *service) *string { return &s.Name })),
	asDefault(decode.Key("namespace", label.Or("default"), func(s *service) *string { return &s.Namespace })),
	decode.Key("description", decode.Text, func(s *service) *string { return &s.Description }),
	asDefault(decode.Key("labels", labels, func(s *service) *map[string]string { return &s.Labels })),
	decode.Key("vips", addresses, func(s *service) *[]netip.Addr { return &s.VIPs }),
	decode.Key("external_ips", addresses, func(s *service) *[]netip.Addr { return &s.ExternalIPs }),
	decode.Key("load_balancer_ips", addresses, func(s *service) *[]netip.Addr { return &s.LoadBalancerIPs }),
	asDefault(decode.Key("source_ranges", prefixes, func(s *service) *[]netip.Prefix { return &s.SourceRanges })),
	asDefault(decode.Key("load_balancer_source_ranges", prefixes, func(s *service) *[]netip.Prefix { return &s.LoadBalancerSourceRanges }), hasLoadBalancerIPs),
	{Key: "ports", Required: true, Schema: portList.Schema, Read: func(r *decode.Reader, v any, s *service) { s.written = readPorts(r, v) }},
	{Key: "endpoints", Read: readEndpoints, Schema: endpointsSchema},
	decode.Key("endpoints_from", listName, func(s *service) *string { return &s.EndpointsFrom }),
	asDefault(decode.Key("internal_traffic_policy", policy, func(s *service) *source.TrafficPolicy { return &s.InternalTrafficPolicy })),
	asDefault(decode.Key("external_traffic_policy", policy, func(s *service) *source.TrafficPolicy { return &s.ExternalTrafficPolicy })),
	asDefault(decode.Key("masquerade", masquerading, func(s *service) *source.Masquerading { return &s.Masquerade })),
	asDefault(decode.Key("session_affinity", affinity, func(s *service) *bool { return &s.clientIP })),
	asDefault(decode.Key("session_affinity_timeout", decode.Duration(source.MinAffinity, source.MaxAffinity), func(s *service) *time.Duration { return &s.timeout })),
	asDefault(decode.Key("traffic_distribution", distribution, func(s *service) *source.TrafficDistribution { return &s.TrafficDistribution })),
	asDefault(decode.Key("node_port_addresses", nodeAddresses, func(s *service) **source.NodeAddresses { return &s.NodePortAddresses }), hasNodePorts),
	decode.Key("health_check_node_port", orNoNumber, func(s *service) *uint16 { return &s.HealthCheckNodePort }),
	asDefault(decode.Key("publish_not_ready", decode.Bool, func(s *service) *bool { return &s.PublishNotReady })),
	asDefault(decode.Key("scheduler", decode.Text.As(`^([a-z0-9]{1,15})?$`), func(s *service) *string { return &s.Scheduler })),
	asDefault(decode.Key("hash_on", hashOn, func(s *service) *source.HashOn { return &s.HashOn }), isMaglev),
	asDefault(decode.Key("scheduler_flags", schedulerFlags, func(s *service) *source.SchedulerFlags { return &s.SchedulerFlags }), takesFlags),
	asDefault(decode.Key("one_packet", decode.Bool, func(s *service) *bool { return &s.OnePacket }), hasUDP),
	asDefault(decode.Key("forward", forwarding, func(s *service) *source.ForwardMethod { return &s.Forward.Method })),
	asDefault(decode.Key("tunnel_type", tunnel, func(s *service) *source.TunnelType { return &s.Forward.Tunnel }), isTunnel),
	asDefault(decode.Key("tunnel_port", portNumber, func(s *service) *uint16 { return &s.Forward.Port }), isGUE),
	asDefault(decode.Field[service]{Key: checkKey, Schema: healthCheck.Schema, Read: readHealthCheck, Copy: copyHealthCheck}),
	asDefault(decode.Key("min_up", decode.Number[uint16](1, 65535).Or(1), func(s *service) *uint16 { return &s.MinUp })),
	asDefault(decode.Key("slow_start", decode.Duration(0, source.MaxSlowStart), func(s *service) *time.Duration { return &s.SlowStart }), hasShares),
	asDefault(decode.Key("close_connections", closing, func(s *service) *source.CloseConnections { return &s.CloseConnections })),
	asDefault(decode.Key("announce", announce, func(s *service) *source.Means { return &s.Announce }), hasAddresses),
	decode.Key("enabled", yes, func(s *service) *bool { return &s.Disabled }),
}

// endpointFields are the keys of an endpoint.
var endpointFields = []decode.Field[writtenEndpoint]{
	decode.Need(decode.Key("address", endpointAddress, func(e *writtenEndpoint) *netip.Addr { return &e.Addr })),
	decode.Key("port", portNumber, func(e *writtenEndpoint) *uint16 { return &e.Port }),
	decode.Key("ports", decode.MapOf(portNumber), func(e *writtenEndpoint) *map[string]uint16 { return &e.Ports }),
	decode.Key("node", decode.To(name, strings.ToLower), func(e *writtenEndpoint) *string { return &e.more.Node }),
	decode.Key("zone", name, func(e *writtenEndpoint) *string { return &e.more.Zone }),
	decode.Key("weight", orNoNumber.Or(1), func(e *writtenEndpoint) *uint16 { return &e.Weight }),
	decode.Key("tier", decode.Number[uint8](0, source.MaxTier), func(e *writtenEndpoint) *uint8 { return &e.Tier }),
	decode.Key("max_connections", connections, func(e *writtenEndpoint) *uint32 { return &e.more.MaxConnections }),
	decode.Key("min_connections", connections, func(e *writtenEndpoint) *uint32 { return &e.more.MinConnections }),
	decode.Key("enabled", yes, func(e *writtenEndpoint) *bool { return &e.Disabled }),
	decode.Key("ready", decode.Bool.Or(true), func(e *writtenEndpoint) *bool { return &e.Ready }),
	decode.Key("serving", decode.Bool.Or(true), func(e *writtenEndpoint) *bool { return &e.Serving }),
	decode.Key("terminating", decode.Bool, func(e *writtenEndpoint) *bool { return &e.Terminating }),
}

// endpointAddress reads the address of an endpoint, which has its port in a key of its own.
var endpointAddress = decode.Addr.Instead(func(v any) string {
	s, _ := v.(string)
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return fmt.Sprintf("write address = %q, port = %d", ap.Addr(), ap.Port())
	}
	return ""
})

func readHealthCheck(r *decode.Reader, v any, s *service) {
	c, _ := healthCheck.Read(r, v)
	s.check = &c
}

func copyHealthCheck(from, to *service) { to.check, to.HealthCheck = from.check, from.HealthCheck }

// defaultsKey is their table at the root.
const defaultsKey = "defaults"

// checkKey is the key of a health check, of a service and of defaults.
const checkKey = "health_check"

// defaultFields are the keys of [defaults].
var defaultFields = decode.Defaults(serviceFields)

// asDefault has [defaults] of a file take a key of services too. Each service that lacks the key then has
// that value, if all of needs accept it, with the keys before this one as they are for that service: a
// default that means nothing to a service, or would be a fault of it, is not for that one.
func asDefault(f decode.Field[service], needs ...func(*service) bool) decode.Field[service] {
	f.Default = true
	f.Needs = func(s *service) bool {
		return !slices.ContainsFunc(needs, func(need func(*service) bool) bool { return !need(s) })
	}
	return f
}

// What defaults need of a service.
func hasLoadBalancerIPs(s *service) bool { return len(s.LoadBalancerIPs) > 0 }
func hasAddresses(s *service) bool       { return len(s.AnnouncedAddrs()) > 0 }
func hasShares(s *service) bool          { return source.NoSlowStart(s.Scheduler) == "" }
func isMaglev(s *service) bool           { return s.Scheduler == source.Maglev }
func takesFlags(s *service) bool         { return s.Scheduler != "" && s.Scheduler != source.Maglev }
func isTunnel(s *service) bool           { return s.Forward.Method == source.ForwardTunnel }
func isGUE(s *service) bool              { return s.Forward.Tunnel == source.GUE }
func hasNodePorts(s *service) bool {
	return s.HealthCheckNodePort != 0 || s.written.any(func(p *writtenPort) bool { return p.NodePort != 0 })
}
func hasUDP(s *service) bool {
	return s.written.any(func(p *writtenPort) bool { return slices.Contains(p.protocols, source.UDP) })
}

func readEndpoints(r *decode.Reader, v any, s *service) {
	s.listed = true
	s.endpoints = endpointsOf(r, v)
}

// endpointsOf reads a list of endpoints.
func endpointsOf(r *decode.Reader, v any) []endpoint {
	var e writtenEndpoint // one for all: what it is read into is allocated
	return decode.Collect(r, v, func(v any) endpoint {
		e = standardEndpoint
		if text, ok := v.(string); ok {
			e.Addr, e.Port = endpointAddr(r, text)
		} else if _, ok := v.(map[string]any); ok {
			decode.Table(r, v, endpointFields, &e)
		} else {
			decode.Addr.Read(r, v)
		}
		return e.finish()
	})
}

// endpointAddr reads "address", "address:port" and "[address]:port".
func endpointAddr(r *decode.Reader, text string) (netip.Addr, uint16) {
	host, number := text, ""
	var err error
	if strings.Contains(text, "]:") || strings.Count(text, ":") == 1 {
		host, number, err = net.SplitHostPort(text)
	}
	if err != nil || host == text {
		a, _ := decode.Addr.Read(r, text)
		return a, 0
	}
	a, ok := decode.Addr.Read(r, host)
	port, err := strconv.ParseUint(number, 10, 16)
	if ok && (err != nil || port == 0) {
		r.Fault(source.Excerpt(text)+" has port "+source.Excerpt(number), "want 1 to 65535")
	}
	return a, uint16(port)
}

const noServices = "write services = [] for a file without services"

// schemaKey names the JSON Schema of a file for editors. In TOML they look for
// the comment "#:schema", so it is a key of JSON only.
const schemaKey = "$schema"
