package configs

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/read"
)

const (
	// maxTimeout bounds the timeouts of conntrack and IPVS. The kernel counts
	// them in jiffies in an int: INT_MAX at 1000 Hz is 24.8 days.
	maxTimeout = 24 * 24 * time.Hour

	maxInterval = 24 * time.Hour
	maxDrain    = 7 * 24 * time.Hour

	maxLimit = 10_000_000 // far more than a kernel can hold
)

// A section is a [table] of svcproxy.toml. Its keys are flat: they read into Settings.
type section struct {
	name   string
	fields []field
}

type field = decode.Field[Settings]

// topFields are the keys above the first table; each is a flag too.
var topFields = []field{
	decode.Key("mode", decode.Word("mode", modeSettings()...).Or(Auto), func(s *Settings) *string { return &s.Mode }),
	decode.Key("sources", some(decode.Unique(decode.Word("source", sourceNames()...))).Or([]string{file.Name}), func(s *Settings) *[]string { return &s.Sources }),
	decode.Key("node_name", nodeName, func(s *Settings) *string { return &s.NodeName }),
	decode.Key("zone", decode.Matching("letters, digits, -, _ and .", orEmpty(source.IsName)).As(orNone(namePattern)), func(s *Settings) *string { return &s.Zone }),
	decode.Key("families", some(decode.Unique(decode.Word("family", "ipv4", "ipv6"))).Or([]string{"ipv4", "ipv6"}), func(s *Settings) *[]string { return &s.Families }),
	decode.Key("local_cidrs", decode.Unique(decode.Prefix), func(s *Settings) *[]netip.Prefix { return &s.LocalCIDRs }),
	decode.Key("local_interfaces", decode.Unique(localInterface), func(s *Settings) *[]string { return &s.LocalInterfaces }),
	decode.Key("masquerade", decode.Word("masquerade mode", "auto", "all", "never").Or("auto"), func(s *Settings) *string { return &s.Masquerade }),
	decode.Key("masquerade_bit", decode.Number(0, 31).Or(14), func(s *Settings) *int { return &s.MasqueradeBit }), // as kube-proxy's --iptables-masquerade-bit
	decode.Key("service_cidrs", decode.Unique(serviceCIDR), func(s *Settings) *[]netip.Prefix { return &s.ServiceCIDRs }),
	decode.Key("node_port_addresses", decode.Unique(decode.NodeAddress).Or([]string{source.PrimaryAddresses}), func(s *Settings) *[]string { return &s.NodePortAddresses }),
	decode.Key("localhost_node_ports", decode.Bool, func(s *Settings) *bool { return &s.LocalhostNodePorts }),
	decode.Key("http_address", decode.Matching(`an IP address and a port, such as "127.0.0.1:10349", or ""`, orEmpty(isHostPort)).As(orNone(`.*:[0-9]+`)).Or("127.0.0.1:10349"), func(s *Settings) *string { return &s.HTTPAddress }),
	decode.Key("metrics_address", decode.Matching(`an IP address and a port, such as "127.0.0.1:10249", or ""`, orEmpty(isHostPort)).As(orNone(`.*:[0-9]+`)), func(s *Settings) *string { return &s.MetricsAddress }),
	decode.Key("status_address", decode.Matching(`an IP address and a port, such as "127.0.0.1:10349", "auto" or ""`, func(s string) bool { return s == "" || s == Auto || isHostPort(s) }).As(orNone(Auto+`|.*:[0-9]+`)).Or(Auto), func(s *Settings) *string { return &s.StatusAddress }),
	decode.Key("http_names", decode.Unique(nodeName), func(s *Settings) *[]string { return &s.HTTPNames }),
}

var sections = slices.Concat([]section{
	{"sync", []field{
		decode.Key("min_interval", decode.Duration(0, maxInterval), func(s *Settings) *time.Duration { return &s.Sync.MinInterval }),
		decode.Key("resync_interval", decode.Duration(time.Second, maxInterval).Or(30*time.Second), func(s *Settings) *time.Duration { return &s.Sync.ResyncInterval }),
	}},
	{"nftables", []field{
		decode.Key("flowtable", flowtableInterfaces, func(s *Settings) *[]string { return &s.NFTables.Flowtable }),
		decode.Key("flowtable_offload", decode.Bool, func(s *Settings) *bool { return &s.NFTables.FlowtableOffload }),
	}},
	{"ipvs", []field{
		decode.Key("scheduler", decode.Word("scheduler", schedulerNames...).Or("wrr"), func(s *Settings) *string { return &s.IPVS.Scheduler }),
		decode.Key("strict_arp", decode.Bool, func(s *Settings) *bool { return &s.IPVS.StrictARP }),
		decode.Key("sloppy_tcp", decode.Bool, func(s *Settings) *bool { return &s.IPVS.SloppyTCP }),
		decode.Key("tcp_timeout", seconds, func(s *Settings) *time.Duration { return &s.IPVS.TCPTimeout }),
		decode.Key("tcp_fin_timeout", seconds, func(s *Settings) *time.Duration { return &s.IPVS.TCPFinTimeout }),
		decode.Key("udp_timeout", seconds, func(s *Settings) *time.Duration { return &s.IPVS.UDPTimeout }),
		decode.Key("drain_timeout", decode.Duration(0, maxDrain).Or(15*time.Minute), func(s *Settings) *time.Duration { return &s.IPVS.DrainTimeout }),
	}},
	{"conntrack", []field{
		decode.Key("max", decode.Number(0, 1<<31-1), func(s *Settings) *int { return &s.Conntrack.Max }),
		decode.Key("tcp_established_timeout", seconds, func(s *Settings) *time.Duration { return &s.Conntrack.TCPEstablishedTimeout }),
		decode.Key("tcp_close_wait_timeout", seconds, func(s *Settings) *time.Duration { return &s.Conntrack.TCPCloseWaitTimeout }),
		decode.Key("udp_timeout", seconds, func(s *Settings) *time.Duration { return &s.Conntrack.UDPTimeout }),
		decode.Key("udp_stream_timeout", seconds, func(s *Settings) *time.Duration { return &s.Conntrack.UDPStreamTimeout }),
		decode.Key("tcp_be_liberal", decode.Bool.Or(true), func(s *Settings) *bool { return &s.Conntrack.TCPBeLiberal }),
		decode.Key("tcp_loose", decode.Bool, func(s *Settings) *bool { return &s.Conntrack.TCPLoose }),
		decode.Key("accounting", decode.Bool, func(s *Settings) *bool { return &s.Conntrack.Accounting }),
	}},
	{"init", []field{
		decode.Key("forwarding", decode.Bool.Or(true), func(s *Settings) *bool { return &s.Init.Forwarding }),
	}},
}, sourceTables(), []section{
	{bgpName, bgpFields},
	{"health", []field{
		decode.Key("exec_user", execUser, func(s *Settings) *string { return &s.Health.ExecUser }),
	}},
	{"limits", []field{
		decode.Key("file_size", decode.Number(1, 1<<30).Or(read.DefaultLimits.FileSize), func(s *Settings) *int { return &s.Limits.FileSize }),
		decode.Key("services", decode.Number(1, maxLimit).Or(read.DefaultLimits.Services), func(s *Settings) *int { return &s.Limits.Services }),
		decode.Key("endpoints", decode.Number(1, maxLimit).Or(read.DefaultLimits.Endpoints), func(s *Settings) *int { return &s.Limits.Endpoints }),
		decode.Key("ports", decode.Number(1, 65535).Or(read.DefaultLimits.Ports), func(s *Settings) *int { return &s.Limits.Ports }),
		decode.Key("frontends", decode.Number(1, maxLimit).Or(read.DefaultLimits.Frontends), func(s *Settings) *int { return &s.Limits.Frontends }),
		decode.Key("frontend_endpoints", decode.Number(1, 100*maxLimit).Or(read.DefaultLimits.FrontendEndpoints), func(s *Settings) *int { return &s.Limits.FrontendEndpoints }),
		decode.Key("frontend_source_ranges", decode.Number(1, maxLimit).Or(read.DefaultLimits.FrontendSourceRanges), func(s *Settings) *int { return &s.Limits.FrontendSourceRanges }),
	}},
	{"history", []field{
		decode.Key("keep", decode.Number(1, 1000).Or(20), func(s *Settings) *int { return &s.History.Keep }),
	}},
	{"guard", []field{
		decode.Key("removals", decode.Number(0, 99), func(s *Settings) *int { return &s.Guard.Removals }),
		decode.Key("apply", decode.Word("way to apply changes", "auto", "manual").Or("auto"), func(s *Settings) *string { return &s.Guard.Apply }),
		decode.Key("allow_empty", decode.Unique(answer), func(s *Settings) *[]string { return &s.Guard.AllowEmpty }),
	}},
	{"metrics", []field{
		decode.Key("traffic", decode.Bool, func(s *Settings) *bool { return &s.Metrics.Traffic }),
		decode.Key("max_services", decode.Number(0, maxLimit).Or(1000), func(s *Settings) *int { return &s.Metrics.MaxServices }),
		decode.Key("service_labels", serviceLabels, func(s *Settings) *[]string { return &s.Metrics.ServiceLabels }),
	}},
	{"notify", []field{
		decode.Key("command", notifyCommand, func(s *Settings) *[]string { return &s.Notify.Command }),
		decode.Key("url", decode.Matching(`a URL without a user, such as "https://alerts.example.net/svcproxy", or ""`, orEmpty(isNotifyURL)).As(orNone("https?://.+")), func(s *Settings) *string { return &s.Notify.URL }),
		decode.Key("timeout", decode.Duration(100*time.Millisecond, time.Minute).Or(10*time.Second), func(s *Settings) *time.Duration { return &s.Notify.Timeout }),
	}},
	{"log", []field{
		decode.Key("level", decode.Word("log level", "debug", "info", "warn", "error").Or("info"), func(s *Settings) *string { return &s.Log.Level }),
		decode.Key("format", decode.Word("log format", "text", "json").Or("text"), func(s *Settings) *string { return &s.Log.Format }),
	}},
})

// fileFields are all keys of svcproxy.toml: those at the top, and its tables.
func fileFields() []field {
	fields, start := slices.Clone(topFields), standard()
	for _, t := range sections {
		in, read := t.fields, func(r *decode.Reader, v any, s *Settings) { decode.Table(r, v, t.fields, s) }
		switch t.name {
		case bgpName:
			in, read = bgpTable, readBGP
		case etcdName:
			read = readEtcd
		}
		fields = append(fields, field{Key: t.name, Schema: decode.TableOf(in, start).Schema, Read: read})
	}
	return append(fields, ownersField)
}

// standard returns the defaults of all hosts, which have no name.
func standard() Settings {
	fields := slices.Clone(topFields)
	for _, t := range sections {
		fields = append(fields, t.fields...)
	}
	return decode.Standard(fields)
}

// Schema returns what svcproxy.toml may hold, as JSON Schema says it. It is made
// of the tables that the file is read by.
func Schema() decode.Schema {
	s := decode.TableOf(fileFields(), standard()).Schema
	s.Heading = decode.Headed("svcproxy.toml")
	return s
}

const namePattern = "[a-zA-Z0-9]([a-zA-Z0-9._-]{0,251}[a-zA-Z0-9])?"

// orNone returns the pattern of the whole of a string, which may be empty too.
func orNone(pattern string) string { return "^(" + pattern + ")?$" }

// orEmpty makes "" good as well.
func orEmpty(ok func(string) bool) func(string) bool {
	return func(s string) bool { return s == "" || ok(s) }
}

// some reads a list that is not empty.
func some[V any](list decode.Kind[[]V]) decode.Kind[[]V] {
	list.Schema.MinItems = 1
	return list.And(func(r *decode.Reader, out []V) bool {
		if len(out) == 0 {
			r.Fault("the list is empty", "want one at least")
		}
		return len(out) > 0
	})
}

// nodeName reads a node's name. It is taken in lower case, as kube-proxy takes
// host names.
var nodeName = decode.To(decode.Matching("1 to 253 letters, digits, -, _ and .", source.IsName).As("^"+namePattern+"$"), strings.ToLower)

// execUser reads the name of a user, as useradd(8) accepts it, or "" for none.
var execUser = decode.Matching("the name of a user", orEmpty(userName.MatchString)).As(orNone(userPattern)).And(func(r *decode.Reader, name string) bool {
	if name == "root" {
		r.Fault("exec_user is root", `make a user that owns nothing else, or write "" to run programs as svcproxy, without capabilities`)
	}
	return name != "root"
})

const userPattern = "[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,31}"

var userName = regexp.MustCompile("^" + userPattern + "$")

// notifyCommand reads a program and its arguments.
var notifyCommand = decode.List(decode.Text).And(func(r *decode.Reader, command []string) bool {
	if len(command) == 0 {
		return true
	}
	problems := source.ValidateCommand(command)
	for _, p := range problems {
		r.Problem(p)
	}
	return len(problems) == 0
})

func isNotifyURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && isURL(s) && u.User == nil && len(s) <= maxNotifyURL
}

// maxNotifyURL is in bytes.
const maxNotifyURL = 2048

// localInterface reads the name of an interface, or the beginning of names and *.
var localInterface = decode.Matching(`a name of at most 15 letters, digits, -, _ and ., or the beginning of names and *, such as "veth*"`, isInterface).
	As(`^[a-zA-Z0-9_.][a-zA-Z0-9_.-]{0,14}[*]?$`)

// oneInterface reads the whole name of an interface.
var oneInterface = decode.Matching(`a name of at most 15 letters, digits, -, _ and ., such as "eth0"`, func(s string) bool {
	return isInterface(s) && !strings.HasSuffix(s, "*")
}).As(`^[a-zA-Z0-9_.][a-zA-Z0-9_.-]{0,14}$`)

// maxFlowtable is nft.MaxFlowtable, how many interfaces the kernel takes for a flowtable.
const maxFlowtable = 255

// flowtableInterfaces reads the interfaces of a flowtable.
var flowtableInterfaces = decode.Unique(oneInterface).And(func(r *decode.Reader, list []string) bool {
	if len(list) > maxFlowtable {
		r.Fault(fmt.Sprintf("flowtable has %d interfaces", len(list)), fmt.Sprintf("at most %d", maxFlowtable))
	}
	return len(list) <= maxFlowtable
})

// maxServiceLabels bounds the labels of services that metrics have: each adds up to 63 bytes to each of their lines, and its name.
const maxServiceLabels = 8

// serviceLabels reads the keys of labels, which must have different names in metrics.
var serviceLabels = decode.Unique(decode.Matching("the key of a label, such as team or example.com/team", source.IsLabelKey)).And(func(r *decode.Reader, list []string) bool {
	if len(list) > maxServiceLabels {
		r.Fault(fmt.Sprintf("service_labels has %d labels", len(list)), fmt.Sprintf("at most %d", maxServiceLabels))
		return false
	}
	first := make(map[string]string)
	for i, key := range list {
		name := source.MetricLabel(key)
		if other, taken := first[name]; taken && other != key {
			r.FaultAt(source.At(i), fmt.Sprintf("%q and %q are both %s in metrics", other, key, name), "leave out one of them")
			return false
		}
		first[name] = key
	}
	return true
})

func isInterface(s string) bool {
	name := strings.TrimSuffix(s, "*")
	if name == "" || len(name) >= unix.IFNAMSIZ || strings.Trim(name, ".") == "" || name[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(name, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	})
}

// serviceCIDR reads a range of VIPs. Whatever no service has in it is refused, so
// the range of all addresses would cut the host off.
var serviceCIDR = decode.Prefix.And(func(r *decode.Reader, p netip.Prefix) bool {
	if p.Bits() == 0 {
		r.Fault(fmt.Sprintf("%q holds every address, and all that no service has are refused", p), "write the range that VIPs come from")
	}
	return p.Bits() != 0
})

// seconds reads a timeout of the kernel, which counts whole seconds.
var seconds = wholeSeconds(0, maxTimeout, "the kernel counts no less")

// wholeSeconds reads a time that something counts in seconds.
func wholeSeconds(least, most time.Duration, hint string) decode.Kind[time.Duration] {
	return decode.Duration(least, most).And(func(r *decode.Reader, d time.Duration) bool {
		if d%time.Second != 0 {
			r.Fault(fmt.Sprintf("%s is not a number of whole seconds", d), hint)
		}
		return d%time.Second == 0
	})
}

// isHostPort reports whether s is a literal address, or none for all addresses,
// and a port.
func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return false
	}
	_, err = netip.ParseAddr(host)
	return host == "" || err == nil && isPrintable(host)
}

func isPath(s string) bool { return filepath.IsAbs(s) && isPrintable(s) }

func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) })
}

// answer reads the name of a source with a server, or of one of its answers.
var answer = decode.Matching(fmt.Sprintf("the name of a source with a server (%s), or a URL that one is asked for", source.Either(remoteNames())), func(s string) bool {
	return slices.Contains(remoteNames(), s) || isURL(s)
}).As("^(" + strings.Join(remoteNames(), "|") + "|https?://.+)$")

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && isPrintable(s)
}
