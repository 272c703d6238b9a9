package read_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// compareAddr lets cmp look at addresses and ranges, which have no exported fields.
var compareAddr = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

const everyKeyTOML = `[[services]]
name = "web"
namespace = "shop"
vips = ["10.96.0.10", "FD00:96:0::10"]
external_ips = ["10.1.1.1"]
load_balancer_ips = ["10.2.2.2"]
load_balancer_source_ranges = ["10.0.0.0/8", "fd00::/16"]
internal_traffic_policy = "local"
external_traffic_policy = "local"
session_affinity = "client_ip"
session_affinity_timeout = "1h30m"
traffic_distribution = "prefer_same_zone"
health_check_node_port = 32000
publish_not_ready = true
scheduler = "wlc"
ports = [
  { name = "http", protocol = "tcp", port = 80, target_port = 8080, node_port = 30080 },
  { name = "quic", protocol = "udp", port = 443 },
]
endpoints = [
  "192.168.10.11",
  { address = "fd00::11", ports = { http = 8081, quic = 8443 }, node = "Node-A", zone = "East", weight = 0, ready = false, serving = false, terminating = true },
]

[[services]]
name = "least"
vips = ["10.96.0.11"]
endpoints = ["192.168.10.11", "192.168.10.12:8080", { address = "192.168.10.13", port = 8080 }]
  [[services.ports]]
  protocol = "sctp"
  port = 7
`

const everyKeyJSON = `{"services": [
{"name": "web", "namespace": "shop", "vips": ["10.96.0.10", "fd00:96::10"], "external_ips": ["10.1.1.1"],
 "load_balancer_ips": ["10.2.2.2"], "load_balancer_source_ranges": ["10.0.0.0/8", "fd00::/16"],
 "internal_traffic_policy": "local", "external_traffic_policy": "local", "session_affinity": "client_ip",
 "session_affinity_timeout": "90m", "traffic_distribution": "prefer_same_zone", "health_check_node_port": 32000,
 "publish_not_ready": true, "scheduler": "wlc",
 "ports": [{"name": "http", "protocol": "tcp", "port": 80, "target_port": 8080, "node_port": 30080},
  {"name": "quic", "protocol": "udp", "port": 443}],
 "endpoints": ["192.168.10.11", {"address": "fd00::11", "ports": {"http": 8081, "quic": 8443}, "node": "node-a",
  "zone": "East", "weight": 0, "ready": false, "serving": false, "terminating": true}]},
{"name": "least", "vips": ["10.96.0.11"],
 "ports": [{"protocol": "sctp", "port": 7}],
 "endpoints": ["192.168.10.11", "192.168.10.12:8080", {"address": "192.168.10.13", "port": 8080}]}
]}`

func everyKey() []*source.Service {
	return []*source.Service{
		{
			Key:                      source.Key{Namespace: "shop", Name: "web"},
			VIPs:                     []netip.Addr{addr("10.96.0.10"), addr("fd00:96::10")},
			ExternalIPs:              []netip.Addr{addr("10.1.1.1")},
			LoadBalancerIPs:          []netip.Addr{addr("10.2.2.2")},
			LoadBalancerSourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/16")},
			Ports: []source.Port{
				{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 8080, NodePort: 30080},
				{Name: "quic", Protocol: source.UDP, Port: 443, TargetPort: 443},
			},
			Endpoints: []source.Endpoint{
				{Addr: addr("192.168.10.11"), Weight: 1, Ready: true, Serving: true},
				source.Endpoint{Addr: addr("fd00::11"), Ports: map[string]uint16{"http": 8081, "quic": 8443}, Terminating: true}.With(source.Extras{Node: "node-a", Zone: "East"}),
			},
			InternalTrafficPolicy: source.Local, ExternalTrafficPolicy: source.Local,
			Affinity: 90 * time.Minute, TrafficDistribution: source.PreferSameZone,
			HealthCheckNodePort: 32000, PublishNotReady: true, Scheduler: "wlc",
		},
		{
			Key:   source.Key{Namespace: "default", Name: "least"},
			VIPs:  []netip.Addr{addr("10.96.0.11")},
			Ports: []source.Port{{Protocol: source.SCTP, Port: 7, TargetPort: 7}},
			Endpoints: []source.Endpoint{
				{Addr: addr("192.168.10.11"), Weight: 1, Ready: true, Serving: true},
				{Addr: addr("192.168.10.12"), Ports: map[string]uint16{"": 8080}, Weight: 1, Ready: true, Serving: true},
				{Addr: addr("192.168.10.13"), Ports: map[string]uint16{"": 8080}, Weight: 1, Ready: true, Serving: true},
			},
		},
	}
}

// setUnwritten gives a service what a file does not write of it.
func setUnwritten(t *testing.T, s *source.Service) {
	plain, faults := read.Parse("plain.toml", []byte("[[services]]\nname = \"plain\"\nvips = [\"10.96.0.1\"]\nports = [{ port = 80 }]\nendpoints = []\n"))
	if faults != nil {
		t.Fatal(faults)
	}
	to, from := reflect.ValueOf(s).Elem(), reflect.ValueOf(plain[0]).Elem()
	for i := range to.NumField() {
		if to.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
}

func TestParse(t *testing.T) {
	tests := []struct {
		path, text string
		lines      []int // of the services
	}{
		{"a.toml", everyKeyTOML, []int{1, 26}},
		{"a.json", everyKeyJSON, []int{2, 11}},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			got, faults := read.Parse(tt.path, []byte(tt.text))
			if faults != nil {
				t.Fatal(faults)
			}
			want := everyKey()
			for i, line := range tt.lines {
				setUnwritten(t, want[i])
				want[i].Pos = source.Position{File: tt.path, Line: line, Col: 1}
			}
			if diff := cmp.Diff(want, got, compareAddr); diff != "" {
				t.Errorf("services (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseNoServices(t *testing.T) {
	for path, text := range map[string]string{"a.toml": "services = []\n", "a.json": `{"services": []}`} {
		if services, faults := read.Parse(path, []byte(text)); len(services) != 0 || faults != nil {
			t.Errorf("%s: services %v, faults %v", path, services, faults)
		}
	}
}

// webWith is a service to which lines are added at line 5.
const webWith = `[[services]]
name = "web"
vips = ["10.96.0.10"]
ports = [{ name = "http", port = 80 }]
`

func TestFaultsHavePositions(t *testing.T) {
	label := "want 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"
	tests := []struct{ name, path, in, want string }{
		{"empty", "a.toml", "", "a.toml: the file is empty; write services = [] for a file without services\n"},
		{"comments", "a.toml", "# nothing\n", "a.toml:1:1: key \"services\" is missing; write services = [] for a file without services\n"},
		{"empty object", "a.json", "{}", "a.json:1:1: key \"services\" is missing; write services = [] for a file without services\n"},
		{"misspelt", "a.toml", "[[service]]\nname = 'x'\n", "a.toml:1:1: unknown key \"service\"; did you mean [[services]]?\n"},
		{"a table", "a.toml", "[services]\n", "a.toml:1:1: services is a table; want a list of tables: write [[services]]\n"},
		{"null", "a.json", `{"services": null}`, "a.json:1:14: services is null; want a list\n"},
		{"no tables", "a.json", `{"services": [1, {}]}`, "a.json:1:15: services[0] is 1, a number; want a table\n" +
			"a.json:1:18: key \"name\" is missing\na.json:1:18: key \"ports\" is missing\n"},
		{"syntax", "a.toml", "services = [\n", "a.toml:1:13: unexpected EOF; expected value\n"},
		{"extra key at the top", "a.toml", "mode = 'ipvs'\nservices = []\n", "a.toml:1:1: unknown key \"mode\"; want defaults or services\n"},
		{"key in another case", "a.toml", webWith + "Endpoints = []\n", "a.toml:5:1: unknown key \"Endpoints\"; did you mean \"endpoints\"?\n"},
		{"key like none", "a.toml", "[[services]]\nname = 'a'\nports = [{ port = 1, colour = 1 }]\n", "a.toml:3:22: unknown key \"colour\"; want name, protocol, port, target_port or node_port\n"},
		{"JSON key twice and more", "a.json", "{\"services\": [{\"name\": \"x\", \"name\": \"X\",\n\"ports\": []}]}",
			"a.json:1:29: key \"name\" is already in this object\n" +
				"a.json:1:15: warning: service \"X\" has no address and no node port; nothing can reach it\n" +
				"a.json:1:37: the name \"X\" is not a DNS label; " + label + "\na.json:2:10: the service has no ports\n"},

		{"types", "a.toml", "[[services]]\nname = 5\nvips = '10.0.0.1'\nports = 80\npublish_not_ready = 'yes'\nsession_affinity_timeout = 30\nhealth_check_node_port = 1.5\nexternal_ips = [1, ['10.0.0.1'], {}]\nscheduler = 2020-01-01\n",
			"a.toml:2:8: name is 5, a number; want a string\n" +
				"a.toml:3:8: vips is \"10.0.0.1\", a string; want a list: [\"10.0.0.1\"]\n" +
				"a.toml:4:9: ports is 80, a number; write ports = [{ port = 80 }]\n" +
				"a.toml:5:21: publish_not_ready is \"yes\", a string; want true or false\n" +
				"a.toml:6:28: session_affinity_timeout is 30, a number; want a time with its unit, such as \"30s\" or \"1h30m\"\n" +
				"a.toml:7:26: health_check_node_port is 1.5, a number with a fraction; want a number from 0 to 65535\n" +
				"a.toml:8:17: external_ips[0] is 1, a number; want an IP address as a string\n" +
				"a.toml:8:20: external_ips[1] is a list; want an IP address as a string\n" +
				"a.toml:8:34: external_ips[2] is a table; want an IP address as a string\n" +
				"a.toml:9:13: scheduler is a date or time; want a string\n"},
		{"words", "a.toml", webWith + "session_affinity = 'ClientIP'\nexternal_traffic_policy = 'Local'\ntraffic_distribution = 'PreferClose'\n",
			"a.toml:5:20: unknown session affinity \"ClientIP\"; want none or client_ip; did you mean \"client_ip\"?\n" +
				"a.toml:6:27: unknown traffic policy \"Local\"; want cluster or local; did you mean \"local\"?\n" +
				"a.toml:7:24: unknown traffic distribution \"PreferClose\"; want \"\", prefer_same_zone or prefer_same_node\n"},
		{"times", "a.toml", webWith + "session_affinity = 'client_ip'\nsession_affinity_timeout = '25h'\n", "a.toml:6:28: session_affinity_timeout is \"25h\"; want 1s to 24h\n"},
		{"the longest time", "a.toml", webWith + "endpoints = []\nsession_affinity = 'client_ip'\nsession_affinity_timeout = '24h'\n", ""},
		{"the shortest time", "a.toml", webWith + "endpoints = []\nsession_affinity = 'client_ip'\nsession_affinity_timeout = '1s'\n", ""},
		{"no time", "a.toml", webWith + "session_affinity = 'client_ip'\nsession_affinity_timeout = '1d'\n",
			"a.toml:6:28: session_affinity_timeout is \"1d\", which is not a duration; want a number and its unit, such as \"30s\" or \"1h30m\"\n"},
		{"time without affinity", "a.toml", webWith + "session_affinity_timeout = '1h'\nendpoints = []\n",
			"a.toml:5:28: warning: session_affinity_timeout does nothing; it needs session_affinity = \"client_ip\"\n"},
		{"numbers", "a.toml", "[[services]]\nname = 'a'\nvips = ['10.0.0.1']\nports = [\n{ name = 'a', port = 0 },\n{ name = 'b', port = 65536, target_port = 0 },\n{ name = 'c', port = -1, node_port = 70000 }]\n",
			"a.toml:5:22: port is 0; want 1 to 65535\na.toml:6:22: port is 65536; want 1 to 65535\na.toml:6:43: target_port is 0; want 1 to 65535\n" +
				"a.toml:7:22: port is -1; want 1 to 65535\na.toml:7:38: node_port is 70000; want 0 to 65535\n"},
		{"huge number", "a.json", `{"services": [{"name": "a", "vips": ["10.0.0.1"], "ports": [{"port": 99999999999999999999}, {"port": 1e999}]}]}`,
			"a.json:1:61: ports[0] has no name; every port needs one where a service has several\n" +
				"a.json:1:70: port is 1e+20, a number with a fraction; want a number from 1 to 65535\na.json:1:93: ports[1] has no name; every port needs one where a service has several\n" +
				"a.json:1:102: port is +Inf, a number with a fraction; want a number from 1 to 65535\n"},
		{"protocol", "a.toml", "[[services]]\nname = 'a'\nvips = ['10.0.0.1']\nports = [{ port = 1, protocol = 'tpc' }]\n", "a.toml:4:33: unknown protocol \"tpc\"; want tcp, udp or sctp; did you mean \"tcp\"?\n"},
		{"addresses", "a.toml", "[[services]]\nname = 'a'\nports = [{ port = 1 }]\nvips = [\n'web.local',\n'10.0.0.1/24',\n'10.0.0.1:80',\n'::ffff:10.0.0.1',\n'fe80::1%eth0',\n'010.0.0.1',\n'']\n",
			"a.toml:5:1: \"web.local\" is not an IP address; names are not looked up: write the address\n" +
				"a.toml:6:1: \"10.0.0.1/24\" is not an IP address; write \"10.0.0.1\", without the length\n" +
				"a.toml:7:1: \"10.0.0.1:80\" is not an IP address; write \"10.0.0.1\", without the port\n" +
				"a.toml:8:1: \"::ffff:10.0.0.1\" is an IPv4 address written in IPv6; write \"10.0.0.1\"\n" +
				"a.toml:9:1: \"fe80::1%eth0\" has a zone; want an address that means the same on every link\n" +
				"a.toml:10:1: \"010.0.0.1\" is not an IP address; \"010\" begins with 0: some programs read that as octal, so write it without\n" +
				"a.toml:11:1: \"\" is not an IP address; it is empty\n"},
		{"ranges", "a.toml", webWith + "load_balancer_ips = ['10.9.9.9']\nload_balancer_source_ranges = [\n'10.0.0.1/8',\n'10.0.0.1',\n'::ffff:10.0.0.0/104',\n'10.0.0.0/33',\n'all']\n",
			"a.toml:7:1: \"10.0.0.1/8\" has bits set behind its length of 8; write \"10.0.0.0/8\"\n" +
				"a.toml:8:1: \"10.0.0.1\" is not a range of addresses; write \"10.0.0.1/32\" for this one address\n" +
				"a.toml:9:1: \"::ffff:10.0.0.0/104\" is a range of IPv4 addresses written in IPv6; write it in IPv4\n" +
				"a.toml:10:1: \"10.0.0.0/33\" is not a range of addresses; its length can be 0 to 32\n" +
				"a.toml:11:1: \"all\" is not a range of addresses; write \"0.0.0.0/0\" and \"::/0\", or leave the list out, for everybody\n"},
		{"endpoints", "a.toml", webWith + "endpoints = [\n'10.1.1.1:0',\n'10.1.1.2:70000',\n'web:80',\n5,\n{ port = 80 },\n{ address = '10.1.1.3', port = 80, ports = { http = 80 } },\n{ address = '10.1.1.4', ports = { htp = 0 } },\n{ address = '10.1.1.5', weight = -1 },\n'[::ffff:10.1.1.1]:80']\n",
			"a.toml:6:1: \"10.1.1.1:0\" has port \"0\"; want 1 to 65535\n" +
				"a.toml:7:1: \"10.1.1.2:70000\" has port \"70000\"; want 1 to 65535\n" +
				"a.toml:8:1: \"web\" is not an IP address; names are not looked up: write the address\n" +
				"a.toml:9:1: endpoints[3] is 5, a number; want an IP address as a string\n" +
				"a.toml:10:1: key \"address\" is missing\n" +
				"a.toml:11:32: the endpoint has both port and ports; leave one out\n" +
				"a.toml:12:41: htp is 0; want 1 to 65535\n" +
				"a.toml:13:34: weight is -1; want 0 to 65535\n" +
				"a.toml:14:1: \"::ffff:10.1.1.1\" is an IPv4 address written in IPv6; write \"10.1.1.1\"\n"},
		{"endpoint port where there are several", "a.toml", "[[services]]\nname = 'a'\nvips = ['10.0.0.1']\nports = [{ name = 'a', port = 1 }, { name = 'b', port = 2 }]\nendpoints = ['10.1.1.1:80', { address = '10.1.1.2', port = 80 }]\n",
			"a.toml:5:14: the endpoint has a port, and the service has several; write ports = { name = number }\n" +
				"a.toml:5:60: the endpoint has a port, and the service has several; write ports = { name = number }\n"},
		{"crossing values", "a.toml", webWith + "endpoints = [\n'10.96.0.10',\n'10.1.1.1',\n'fd00::1',\n'10.1.1.1:80']\n",
			"a.toml:6:1: endpoint 10.96.0.10:80 is an address and port of its own service, vips[0]\n" +
				"a.toml:8:1: endpoint fd00::1 is IPv6, and the service has no address of that family; nothing would be sent to it\n" +
				"a.toml:9:1: endpoint 10.1.1.1:80 of port \"http\" is already endpoints[1]\n"},
		{"no consequences of a fault", "a.toml", "[[services]]\nname = 'a'\nvips = ['fd00::x']\nports = [{ prt = 1 }]\nendpoints = ['10.1.1.1']\n",
			"a.toml:3:9: \"fd00::x\" is not an IP address; \"x\" is not hexadecimal\na.toml:4:12: unknown key \"prt\"; did you mean \"port\"?\n"},
		{"two services", "a.toml", "[[services]]\nname = 'A'\nnode_port = 1\n[[services]]\nname = 'b c'\nports = []\nvips = []\n",
			"a.toml:1:1: key \"ports\" is missing\na.toml:2:8: the name \"A\" is not a DNS label; " + label + "\n" +
				"a.toml:3:1: unknown key \"node_port\"; it belongs to a port: ports = [{ ... }]\n" +
				"a.toml:4:1: warning: service \"b c\" has no address and no node port; nothing can reach it\na.toml:5:8: the name \"b c\" is not a DNS label; " + label + "\na.toml:6:9: the service has no ports\n"},
		{"hostile file name", "a\n\x1b.toml", "x", "\"a\\n\\x1b.toml\":1:1: unexpected EOF; expected key separator '='\n"},
	}
	var names []string
	for _, p := range read.Schema().Properties[1].Schema.Items.Properties {
		names = append(names, p.Key)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			services, faults := read.Parse(tt.path, []byte(tt.in))
			var b strings.Builder
			for _, f := range faults {
				fmt.Fprintln(&b, f)
			}
			if got, want := b.String(), strings.ReplaceAll(tt.want, "NAMES", source.Either(names)); got != want {
				t.Errorf("faults (-want +got):\n%s", cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
			}
			bad := slices.ContainsFunc(faults, func(f source.Fault) bool { return !f.Warning })
			if bad && services != nil || !bad && len(services) != 1 {
				t.Errorf("%d services with these faults", len(services))
			}
		})
	}
}

// All faults of a file are named, up to a number that a reader may cope with.
func TestManyFaults(t *testing.T) {
	text := "services = [\n" + strings.Repeat("1,\n", 1500) + "]"
	_, faults := read.Parse("a.toml", []byte(text))
	if len(faults) != 1001 {
		t.Fatalf("%d faults", len(faults))
	}
	if got, want := faults[999].String(), "a.toml:1001:1: services[999] is 1, a number; want a table"; got != want {
		t.Errorf("fault 1000\n got: %s\nwant: %s", got, want)
	}
	if got, want := faults[1000].String(), "a.toml: the file has more faults; the first 1000 found are shown"; got != want {
		t.Errorf("last fault\n got: %s\nwant: %s", got, want)
	}
}

// The same of what JSON alone can have.
func TestManyKeysTwice(t *testing.T) {
	text := `{"services": [], ` + strings.Repeat("\"services\": [],\n", 1500) + `"services": []}`
	_, faults := read.Parse("a.json", []byte(text))
	if len(faults) != 1000 {
		t.Fatalf("%d faults", len(faults))
	}
	if got, want := faults[999].String(), "a.json:1000:1: more keys are in their object twice"; got != want {
		t.Errorf("last fault\n got: %s\nwant: %s", got, want)
	}
}

// More warnings than are shown do not refuse a file, and none of its services is lost.
func TestManyWarnings(t *testing.T) {
	text := ""
	for i := range 1500 {
		text += fmt.Sprintf("[[services]]\nname = 'a%d'\nports = [{ port = 80 }]\n", i)
	}
	services, faults := read.Parse("a.toml", []byte(text))
	if len(services) != 1500 || len(faults) != 1001 || !faults[1000].Warning {
		t.Errorf("%d services, %d faults, the last is %v", len(services), len(faults), faults[1000])
	}
	text += "[[services]]\nname = 'A'\nports = [{ port = 80 }]\n"
	services, faults = read.Parse("a.toml", []byte(text))
	if services != nil || faults[1000].Warning {
		t.Errorf("%d services in spite of a fault behind many warnings", len(services))
	}
}

// Endpoints that have the same ports share one map: a million of them must fit in memory.
func TestPortsAreShared(t *testing.T) {
	text := []byte(webWith + "endpoints = ['10.1.1.1:81', '10.1.1.2:81', { address = '10.1.1.3', ports = { http = 81 } }]\n")
	services, faults := read.Parse("a.toml", text)
	if faults != nil {
		t.Fatal(faults)
	}
	e := services[0].Endpoints
	e[0].Ports["http"] = 82
	if e[1].Ports["http"] != 82 || e[2].Ports["http"] != 82 {
		t.Errorf("ports %v, %v, %v", e[0].Ports, e[1].Ports, e[2].Ports)
	}
}

func checkSafe(t *testing.T, path string, data []byte) {
	t.Helper()
	services, faults := read.Parse(path, data)
	for _, f := range faults {
		if text := f.String(); strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("fault does not fit on a line: %q", text)
		}
		if !f.Warning && services != nil {
			t.Errorf("services in spite of %s", f)
		}
	}
	safe := func(s, letters string) bool { return len(s) <= 253 && strings.Trim(s, letters) == "" }
	const label, name = "abcdefghijklmnopqrstuvwxyz0123456789-", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	for _, s := range services {
		ok := safe(s.Name, label) && safe(s.Namespace, label) && safe(s.Scheduler, label) && s.Name != "" && s.Namespace != "" && len(s.Ports) > 0
		for _, p := range s.Ports {
			ok = ok && safe(p.Name, label) && p.Port != 0 && p.TargetPort != 0
		}
		for _, e := range s.Endpoints {
			ok = ok && safe(e.Extras().Node, name) && safe(e.Extras().Zone, name) && e.Addr.IsValid() && e.Addr.Zone() == ""
			for n, p := range e.Ports {
				ok = ok && safe(n, label) && p != 0
			}
		}
		if !ok {
			t.Errorf("not safe: %+v", s)
		}
	}
}

func FuzzTOML(f *testing.F) {
	f.Add([]byte(everyKeyTOML))
	f.Add([]byte(webWith + "endpoints = ['10.1.1.1:80', '[fd00::1]:1', {address = \"::ffff:1.1.1.1\", node = \"\\u001b\"}]"))
	f.Add([]byte("[defaults.health_check]\ntype = 'tcp'\nsend = '\\x00\\r'\nexpect = '(a{9}|b)*'\n" + webWith + "min_up = 2\nhealth_check = {type = 'http', path = '/%', host = '[::1', expect_status = [200, '2-']}"))
	f.Add([]byte("services = [{name = '''a\nb''', ports = [[]]}]"))
	f.Fuzz(func(t *testing.T, data []byte) { checkSafe(t, "f.toml", data) })
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(everyKeyJSON))
	f.Add([]byte(`{"defaults": {"health_check": {"type": "none"}}, "services": [{"slow_start": "1s", "health_check": {"type": "exec", "command": ["/a", "\u0000"], "timeout": "1h"}}]}`))
	f.Add([]byte(`{"services": [{"name": "a\n", "name": "b", "ports": [{"port": 1e2, "name": null}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) { checkSafe(t, "f.json", data) })
}
