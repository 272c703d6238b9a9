package report_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source/read"
)

// service is a service of one port with two endpoints on its only address, and more keys.
func service(name, protocol, vip, more string, endpoints ...string) string {
	return fmt.Sprintf("[[services]]\nname = %q\nvips = [%q]\nports = [{ port = 80, protocol = %q }]\nendpoints = [%s]\n%s\n",
		name, vip, protocol, strings.Join(endpoints, ", "), more)
}

func TestConsequences(t *testing.T) {
	const one, two, three = `"10.1.0.1"`, `"10.1.0.2"`, `"10.1.0.3"`
	const weightless = `{ address = "10.1.0.2", weight = 0 }`
	const sticky = `session_affinity = "client_ip"`
	const vip, other = "10.96.0.1", "10.96.0.2"
	for _, tt := range []struct {
		name     string
		old, now string
		fresh    bool
		want     string // one a line
	}{
		{name: "nothing changes", old: service("a", "tcp", vip, sticky, one), now: service("a", "tcp", vip, sticky, one)},
		{name: "an endpoint comes", old: service("a", "tcp", vip, sticky, one), now: service("a", "tcp", vip, sticky, one, two)},
		{
			name: "an endpoint leaves", old: service("a", "tcp", vip, "", one, two), now: service("a", "tcp", vip, "", one),
			want: "default/a go-on tcp [10.96.0.1:80] [10.1.0.2:80]",
		},
		{
			name: "an endpoint of UDP leaves", old: service("a", "udp", vip, "", one, two), now: service("a", "udp", vip, "", one),
			want: "default/a removed udp [10.96.0.1:80] [10.1.0.2:80]",
		},
		{
			name: "the last endpoint of UDP leaves", old: service("a", "udp", vip, "", one), now: service("a", "udp", vip, ""),
			want: "default/a removed udp [10.96.0.1:80] [10.1.0.1:80]",
		},
		{
			name: "weight 0", old: service("a", "udp", vip, sticky, one, two), now: service("a", "udp", vip, sticky, one, weightless),
			want: "default/a kept udp [10.96.0.1:80] [10.1.0.2:80]\ndefault/a forgotten udp [10.1.0.2:80] 1 others",
		},
		{
			name: "one with weight 0 leaves", old: service("a", "tcp", vip, sticky, one, weightless), now: service("a", "tcp", vip, sticky, one),
			want: "default/a go-on tcp [10.96.0.1:80] [10.1.0.2:80]",
		},
		{
			name: "another port of the endpoint", old: service("a", "udp", vip, sticky, `"10.1.0.1:81"`), now: service("a", "udp", vip, sticky, `"10.1.0.1:82"`),
			want: "default/a removed udp [10.96.0.1:80] [10.1.0.1:81]\ndefault/a forgotten udp [10.1.0.1:81]",
		},
		{
			name: "the service goes", old: service("a", "tcp", vip, sticky, one, two), now: "services = []",
			want: "default/a go-on tcp [10.96.0.1:80] all\ndefault/a forgotten tcp all",
		},
		{
			name: "a UDP service goes", old: service("a", "udp", vip, "", one), now: "services = []",
			want: "default/a removed udp [10.96.0.1:80] all",
		},
		{
			name: "a UDP service went while nobody worked", old: service("a", "udp", vip, "", one), now: "services = []", fresh: true,
			want: "default/a removed udp [10.96.0.1:80] all",
		},
		{name: "a service without endpoints goes", old: service("a", "udp", vip, sticky), now: "services = []"},
		{
			name: "a UDP service comes", old: "services = []", now: service("a", "udp", vip, "", one),
			want: "default/a predating udp [10.96.0.1:80] all",
		},
		{name: "a UDP service that refuses comes", old: "services = []", now: service("a", "udp", vip, "")},
		{
			name: "a UDP service no longer refuses", old: service("a", "udp", vip, ""), now: service("a", "udp", vip, "", one),
			want: "default/a predating udp [10.96.0.1:80] all",
		},
		{
			name: "another address", old: service("a", "udp", vip, sticky, one), now: service("a", "udp", other, sticky, one),
			want: "default/a removed udp [10.96.0.1:80] all\ndefault/a predating udp [10.96.0.2:80] all",
		},
		{
			name: "another name, and the same endpoints", old: service("a", "udp", vip, sticky, one), now: service("b", "udp", vip, sticky, one),
			want: "default/a forgotten udp all",
		},
		{
			name: "the address goes to another service", old: service("a", "udp", vip, "", one), now: service("b", "udp", vip, "", three),
			want: "default/a removed udp [10.96.0.1:80] [10.1.0.1:80]",
		},
		{
			name: "no affinity any more", old: service("a", "tcp", vip, sticky, one), now: service("a", "tcp", vip, "", one),
			want: "default/a forgotten tcp all",
		},
		{
			name: "another time of affinity", old: service("a", "tcp", vip, sticky, one),
			now: service("a", "tcp", vip, sticky+"\nsession_affinity_timeout = \"1m\"", one),
		},
		{
			name: "policy local", old: service("a", "udp", vip, sticky, one, `{ address = "10.1.0.2", node = "this-node" }`),
			now:  service("a", "udp", vip, sticky+"\ninternal_traffic_policy = \"local\"", one, `{ address = "10.1.0.2", node = "this-node" }`),
			want: "default/a removed udp [10.96.0.1:80] [10.1.0.1:80]\ndefault/a forgotten udp all",
		},
		{
			name: "not near any more", old: service("a", "tcp", vip, "", one, `{ address = "10.1.0.2", node = "this-node" }`),
			now:  service("a", "tcp", vip, "traffic_distribution = \"prefer_same_node\"", one, `{ address = "10.1.0.2", node = "this-node" }`),
			want: "default/a kept tcp [10.96.0.1:80] [10.1.0.1:80]",
		},
		{
			name: "restricted", old: service("a", "tcp", vip, "", one), now: service("a", "tcp", vip, `source_ranges = ["10.2.0.0/16"]`, one),
			want: "default/a barred tcp [10.96.0.1:80] all from [10.2.0.0/16]",
		},
		{
			name: "a range less", old: service("a", "tcp", vip, `source_ranges = ["10.2.0.0/16", "10.3.0.0/16"]`, one),
			now:  service("a", "tcp", vip, `source_ranges = ["10.0.0.0/15", "10.2.0.0/16"]`, one),
			want: "default/a barred tcp [10.96.0.1:80] all from [10.0.0.0/15 10.2.0.0/16]",
		},
		{
			name: "wider ranges", old: service("a", "tcp", vip, `source_ranges = ["10.2.0.0/16", "10.3.0.0/24"]`, one),
			now: service("a", "tcp", vip, `source_ranges = ["10.2.0.0/15"]`, one),
		},
		{
			name: "a narrower range", old: service("a", "tcp", vip, `source_ranges = ["10.2.0.0/15"]`, one),
			now:  service("a", "tcp", vip, `source_ranges = ["10.2.0.0/16"]`, one),
			want: "default/a barred tcp [10.96.0.1:80] all from [10.2.0.0/16]",
		},
		{name: "no longer restricted", old: service("a", "tcp", vip, `source_ranges = ["10.2.0.0/16"]`, one), now: service("a", "tcp", vip, "", one)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := &policy.Node{Name: "this-node", MarkBit: 14}
			p := report.ComparePlan(stateOf(t, node, tt.old), stateOf(t, node, tt.now), node, tt.fresh)
			var lines []string
			for _, c := range p.Consequences() {
				lines = append(lines, consequenceText(c))
			}
			if diff := cmp.Diff(tt.want, strings.Join(lines, "\n")); diff != "" {
				t.Errorf("consequences (-want +got):\n%s", diff)
			}
		})
	}
}

func stateOf(t *testing.T, node *policy.Node, text string) *policy.State {
	t.Helper()
	services, faults := read.Parse("a.toml", []byte(text))
	for _, f := range faults {
		t.Error(f)
	}
	return policy.NewState(policy.IPv4, node, services)
}

func consequenceText(c report.Consequence) string {
	words := []string{c.Service, string(c.Effect), c.Protocol}
	if c.Effect != report.Forgotten {
		words = append(words, strings.ReplaceAll(fmt.Sprint(c.Frontends), "/"+c.Protocol, ""))
	}
	if len(c.Endpoints) == 0 {
		words = append(words, "all")
	} else {
		words = append(words, fmt.Sprint(c.Endpoints))
	}
	if c.Effect == report.Barred {
		words = append(words, fmt.Sprint("from ", c.Sources))
	}
	if c.Others > 0 {
		words = append(words, fmt.Sprintf("%d others", c.Others))
	}
	return strings.Join(words, " ")
}

// Connections to an address that a node port leaves go on, or are closed as those of a service that goes.
func TestConsequencesOfAddressesLeft(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	node := &policy.Node{Name: "this-node", MarkBit: 14, Addrs: own, UpAddrs: own}
	at := func(addr, more string) *policy.State {
		const text = "[[services]]\nname = \"a\"\nports = [{ port = 80, node_port = 30080 }]\nendpoints = [\"10.1.0.1\"]\n"
		return stateOf(t, node, text+"node_port_addresses = [\""+addr+"\"]\n"+more)
	}
	for more, want := range map[string]string{
		"":                                 "default/a go-on tcp [node port 30080] all",
		"close_connections = \"always\"\n": "default/a closed tcp [node port 30080] [10.1.0.1:80]",
	} {
		list := report.ComparePlan(at("all", more), at("192.0.2.1/32", more), node, false).Consequences()
		if len(list) != 1 || consequenceText(list[0]) != want {
			t.Errorf("%q: got %v, want %s", more, list, want)
		}
	}
}
