package source_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

func addrs(texts ...string) []netip.Addr {
	out := make([]netip.Addr, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParseAddr(t)
	}
	return out
}

// good returns a service without problems: two ports, two families.
func good() *source.Service {
	return &source.Service{
		Key:  source.Key{Namespace: "default", Name: "web"},
		VIPs: addrs("10.96.0.10", "fd00:96::10"),
		Ports: []source.Port{
			{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 8080},
			{Name: "https", Protocol: source.TCP, Port: 443, TargetPort: 8443},
		},
		Endpoints: []source.Endpoint{
			{Addr: netip.MustParseAddr("192.168.10.11"), Weight: 1, Ready: true, Serving: true},
			{Addr: netip.MustParseAddr("fd00::11"), Weight: 1, Ready: true, Serving: true},
		},
	}
}

func TestValidate(t *testing.T) {
	long := strings.Repeat("a", 64)
	label := "want 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit"
	name := "want 1 to 253 of a-z, A-Z, 0-9, -, _ and ., beginning and ending with a letter or digit"
	word := "a-z, A-Z, 0-9, -, _ and ., beginning and ending with a letter or digit"
	notKey := " is not the key of a label; want 1 to 63 of " + word + ", such as team or example.com/team"
	route := "want an address that can be routed to this host"
	family := "nothing would be sent to it"
	tests := []struct {
		name   string
		change func(s *source.Service)
		want   string // path: message; hint
	}{
		{"good", func(s *source.Service) {}, ""},
		{"name of 63", func(s *source.Service) { s.Name = long[1:] }, ""},
		{"name of 64", func(s *source.Service) { s.Name = long }, "name: the name \"" + long + "\" is not a DNS label; " + label},
		{"no name", func(s *source.Service) { s.Name = "" }, `name: the name "" is not a DNS label; ` + label},
		{"name for a shell", func(s *source.Service) { s.Name = "a;reboot\n" }, `name: the name "a;reboot\n" is not a DNS label; ` + label},
		{"namespace", func(s *source.Service) { s.Namespace = "-x" }, `namespace: the namespace "-x" is not a DNS label; ` + label},
		{"scheduler", func(s *source.Service) { s.Scheduler = "wrr" }, ""},
		{"scheduler of 16", func(s *source.Service) { s.Scheduler = long[:16] }, "scheduler: \"" + long[:16] + "\" is not the name of a scheduler; want 1 to 15 of a-z and 0-9, such as wrr"},
		{"scheduler with a dash", func(s *source.Service) { s.Scheduler = "-w" }, "scheduler: \"-w\" is not the name of a scheduler; want 1 to 15 of a-z and 0-9, such as wrr"},
		{"maglev", func(s *source.Service) { s.Scheduler, s.HashOn = "maglev", source.ClientIP }, ""},
		{"maglev of nothing", func(s *source.Service) { s.Scheduler = "maglev" }, "hash_on: scheduler maglev hashes nothing"},
		{"hash without maglev", func(s *source.Service) { s.Scheduler, s.HashOn = "mh", source.ClientIPPort },
			`hash_on: hash_on is for scheduler maglev; write scheduler = "maglev", or leave it out`},
		{"maglev with affinity", func(s *source.Service) { s.Scheduler, s.HashOn, s.Affinity = "maglev", source.ClientIPPort, time.Hour },
			`session_affinity: session_affinity is a record of this host, and scheduler maglev chooses as every other host does; ` +
				`leave it out; with hash_on = "client_ip" a client keeps its endpoint`},

		{"no ports", func(s *source.Service) { s.Ports = nil }, "ports: the service has no ports"},
		{"one port without name", func(s *source.Service) { s.Ports = s.Ports[:1]; s.Ports[0].Name = "" }, ""},
		{"two ports without name", func(s *source.Service) { s.Ports[1].Name = "" }, "ports[1].name: ports[1] has no name; every port needs one where a service has several"},
		{"port name", func(s *source.Service) { s.Ports[1].Name = "HTTPS" }, `ports[1].name: the port name "HTTPS" is not a DNS label; ` + label},
		{"port name twice", func(s *source.Service) { s.Ports[1].Name = "http" }, `ports[1].name: the port name "http" is already that of ports[0]`},
		{"port twice", func(s *source.Service) { s.Ports[1].Port = 80 }, "ports[1]: port 80/tcp is already ports[0]"},
		{"port in two protocols", func(s *source.Service) { s.Ports[1].Port, s.Ports[1].Protocol = 80, source.UDP }, ""},
		{"node port twice", func(s *source.Service) { s.Ports[0].NodePort, s.Ports[1].NodePort = 30080, 30080 }, "ports[1].node_port: node port 30080/tcp is already that of ports[0]"},
		{"node port in two protocols", func(s *source.Service) {
			s.Ports[0].NodePort, s.Ports[1].NodePort, s.Ports[1].Protocol = 30080, 30080, source.UDP
		}, ""},
		{"ports that could not be read", func(s *source.Service) { s.Ports[0].Port, s.Ports[1].Port = 0, 0 }, ""},

		{"health check", func(s *source.Service) { s.ExternalTrafficPolicy, s.HealthCheckNodePort = source.Local, 32000 }, ""},
		{"health check with policy cluster", func(s *source.Service) { s.HealthCheckNodePort = 32000 },
			`health_check_node_port: health_check_node_port 32000 has nothing to tell; it needs external_traffic_policy = "local"`},
		{"health check on a node port", func(s *source.Service) {
			s.ExternalTrafficPolicy, s.HealthCheckNodePort, s.Ports[1].NodePort = source.Local, 32000, 32000
		}, "health_check_node_port: health_check_node_port 32000 is already the node port of ports[1]"},
		{"health check on a node port of UDP", func(s *source.Service) {
			s.ExternalTrafficPolicy, s.HealthCheckNodePort, s.Ports[1].NodePort, s.Ports[1].Protocol = source.Local, 32000, 32000, source.UDP
		}, ""},

		{"address twice in a list", func(s *source.Service) { s.VIPs = append(s.VIPs, s.VIPs[0]) }, "vips[2]: 10.96.0.10 is already vips[0]"},
		{"address in two lists", func(s *source.Service) { s.LoadBalancerIPs = addrs("10.9.9.9", "fd00:96::10") }, "load_balancer_ips[1]: fd00:96::10 is already vips[1]"},
		{"unspecified", func(s *source.Service) { s.VIPs[0] = netip.IPv4Unspecified() }, "vips[0]: 0.0.0.0 is the unspecified address; " + route},
		{"this network", func(s *source.Service) { s.VIPs[0] = addrs("0.0.0.1")[0] }, "vips[0]: 0.0.0.1 is an address of 0.0.0.0/8, which the kernel does not route; " + route},
		{"loopback", func(s *source.Service) { s.ExternalIPs = addrs("::1") }, "external_ips[0]: ::1 is a loopback address; " + route},
		{"multicast", func(s *source.Service) { s.ExternalIPs = addrs("224.0.0.1") }, "external_ips[0]: 224.0.0.1 is a multicast address; " + route},
		{"link-local", func(s *source.Service) { s.LoadBalancerIPs = addrs("fe80::1") }, "load_balancer_ips[0]: fe80::1 is a link-local address; " + route},
		{"broadcast", func(s *source.Service) { s.VIPs[0] = addrs("255.255.255.255")[0] }, "vips[0]: 255.255.255.255 is the broadcast address; " + route},
		{"zone", func(s *source.Service) { s.VIPs[1] = addrs("fd00::1%eth0")[0] }, "vips[1]: fd00::1%eth0 is an address with a zone; " + route},
		{"IPv4 in IPv6", func(s *source.Service) { s.VIPs = append(s.VIPs, addrs("::ffff:10.1.1.1")...) }, "vips[2]: ::ffff:10.1.1.1 is an IPv4 address written as IPv6; " + route},
		{"no address", func(s *source.Service) { s.VIPs = nil }, `warning: : service "web" has no address and no node port; nothing can reach it`},
		{"node port only", func(s *source.Service) { s.VIPs, s.Ports[1].NodePort = nil, 30000 }, ""},

		{"ranges", func(s *source.Service) {
			s.LoadBalancerIPs = addrs("10.9.9.9")
			s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, ""},
		{"ranges without address", func(s *source.Service) {
			s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, "warning: load_balancer_source_ranges: load_balancer_source_ranges without load_balancer_ips does nothing"},
		{"range twice", func(s *source.Service) {
			s.LoadBalancerIPs = addrs("10.9.9.9")
			p := netip.MustParsePrefix("10.0.0.0/8")
			s.LoadBalancerSourceRanges = []netip.Prefix{p, p}
		}, "warning: load_balancer_source_ranges[1]: 10.0.0.0/8 is already load_balancer_source_ranges[0]"},
		{"range with host bits", func(s *source.Service) {
			s.LoadBalancerIPs = addrs("10.9.9.9")
			s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}
		}, "load_balancer_source_ranges[0]: 10.0.0.1/8 is not a range in its shortest form"},
		{"range of IPv4 in IPv6", func(s *source.Service) {
			s.LoadBalancerIPs = addrs("10.9.9.9")
			s.LoadBalancerSourceRanges = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("::ffff:10.0.0.0"), 104)}
		}, "load_balancer_source_ranges[0]: ::ffff:10.0.0.0/104 is not a range in its shortest form"},

		{"affinity", func(s *source.Service) { s.Affinity = time.Second }, ""},
		{"affinity of a day", func(s *source.Service) { s.Affinity = 24 * time.Hour }, ""},
		{"affinity too short", func(s *source.Service) { s.Affinity = time.Second - 1 }, "session_affinity_timeout: session_affinity_timeout is 999.999999ms; want 1s to 24h"},
		{"affinity too long", func(s *source.Service) { s.Affinity = 24*time.Hour + 1 }, "session_affinity_timeout: session_affinity_timeout is 24h0m0.000000001s; want 1s to 24h"},

		{"endpoint of another family", func(s *source.Service) { s.VIPs = s.VIPs[:1] },
			"endpoints[1].address: endpoint fd00::11 is IPv6, and the service has no address of that family; " + family},
		{"endpoint of another family with a node port", func(s *source.Service) { s.VIPs, s.Ports[0].NodePort = s.VIPs[1:], 30000 },
			"endpoints[0].address: endpoint 192.168.10.11 is IPv4, and the service has no address of that family; " + family},
		{"address that could not be read", func(s *source.Service) { s.VIPs = []netip.Addr{{}} }, ""},
		{"endpoint that could not be read", func(s *source.Service) { s.Endpoints[0].Addr, s.Endpoints[1].Addr = netip.Addr{}, netip.Addr{} }, ""},
		{"endpoint on loopback", func(s *source.Service) { s.Endpoints[0].Addr = addrs("127.0.0.1")[0] },
			"endpoints[0].address: endpoint 127.0.0.1 is a loopback address; the kernel drops what is redirected there from outside: write an address of an interface"},
		{"endpoint link-local", func(s *source.Service) { s.Endpoints[0].Addr = addrs("169.254.0.1")[0] }, "endpoints[0].address: endpoint 169.254.0.1 is a link-local address"},
		{"endpoint is VIP", func(s *source.Service) { s.Endpoints[0].Addr, s.Ports[0].TargetPort = s.VIPs[0], 443 },
			"endpoints[0].address: endpoint 10.96.0.10:443 is an address and port of its own service, vips[0]"},
		{"endpoint is external", func(s *source.Service) {
			s.ExternalIPs, s.Ports[0].TargetPort = addrs("10.1.1.1", "192.168.10.11"), 80
		}, "endpoints[0].address: endpoint 192.168.10.11:80 is an address and port of its own service, external_ips[1]"},
		{"endpoint on an external address, under another port", func(s *source.Service) { s.ExternalIPs = addrs("192.168.10.11") }, ""},
		{"endpoint on an external address, under a port of the other protocol", func(s *source.Service) {
			s.ExternalIPs, s.Ports[0].TargetPort, s.Ports[0].Protocol, s.Ports[1].Protocol = addrs("192.168.10.11"), 443, source.UDP, source.TCP
		}, ""},
		{"endpoint twice", func(s *source.Service) { s.Endpoints = append(s.Endpoints, s.Endpoints[1]) },
			`endpoints[2]: endpoint [fd00::11]:8080 of port "http" is already endpoints[1]`},
		{"endpoint twice, ports that could not be read", func(s *source.Service) {
			s.Ports[0].TargetPort, s.Ports[1].TargetPort = 0, 0
			s.Endpoints = append(s.Endpoints, s.Endpoints[1])
		}, ""},
		{"endpoint twice, one port alike", func(s *source.Service) {
			e := s.Endpoints[0]
			e.Ports = map[string]uint16{"http": 8081}
			s.Endpoints = append(s.Endpoints, e)
		}, `endpoints[2]: endpoint 192.168.10.11:8443 of port "https" is already endpoints[0]`},
		{"endpoint twice, no port alike", func(s *source.Service) {
			e := s.Endpoints[0]
			e.Ports = map[string]uint16{"http": 8081, "https": 8444}
			s.Endpoints = append(s.Endpoints, e)
		}, ""},
		{"endpoint port of no name", func(s *source.Service) { s.Endpoints[0].Ports = map[string]uint16{"htpps": 1, "zzz": 2} },
			"endpoints[0].ports.htpps: the service has no port named \"htpps\"; did you mean \"https\"?\nendpoints[0].ports.zzz: the service has no port named \"zzz\"; want http or https"},
		{"endpoint node", func(s *source.Service) { s.Endpoints[0] = s.Endpoints[0].With(source.Extras{Node: "a b"}) }, `endpoints[0].node: "a b" is not the name of a node; ` + name},
		{"endpoint zone", func(s *source.Service) { s.Endpoints[1] = s.Endpoints[1].With(source.Extras{Zone: "\x1b[0m"}) }, `endpoints[1].zone: "\x1b[0m" is not the name of a zone; ` + name},
		{"ready and terminating", func(s *source.Service) { s.Endpoints[0].Terminating = true },
			"warning: endpoints[0].terminating: the endpoint is both ready and terminating, so it gets new connections; write ready = false"},
		{"terminating, not ready", func(s *source.Service) { s.Endpoints[0].Ready, s.Endpoints[0].Terminating = false, true }, ""},
		{"described", func(s *source.Service) {
			s.Description, s.Labels = strings.Repeat("ä", 128), map[string]string{"team": "", "example.com/a_b.C": long[1:], long[1:]: "x", strings.Repeat("a.", 126) + "a/x": "x"}
		}, ""},
		{"a long description", func(s *source.Service) { s.Description = strings.Repeat("ä", 129) }, "description: the description has 258 bytes; want 256 at most"},
		{"a description of two lines", func(s *source.Service) { s.Description = "a\nb" }, `description: the description is no line of plain text: "a\nb"`},
		{"a description that turns round", func(s *source.Service) { s.Description = "a\u202eb" }, `description: the description is no line of plain text: "a\u202eb"`},
		{"a label with another value", func(s *source.Service) { s.Labels = map[string]string{"team": "a b"} }, `labels.team: the label "team" is "a b"; want 0 to 63 of ` + word},
		{"a value of 64", func(s *source.Service) { s.Labels = map[string]string{"team": long} }, `labels.team: the label "team" is "` + long + `"; want 0 to 63 of ` + word},
		{"keys of labels", func(s *source.Service) {
			s.Labels = map[string]string{"": "", "/a": "", "a/": "", "a/b/c": "", "A.b/c": "", "-a": "", "a=b": "", long: "", strings.Repeat("a.", 127) + "a/x": ""}
		}, strings.Join([]string{`labels."": ""`, `labels."-a": "-a"`, `labels."/a": "/a"`, `labels."A.b/c": "A.b/c"`, `labels."a.` + strings.Repeat("a.", 31) + `"...: "` + strings.Repeat("a.", 32) + `"...`,
			`labels."a/": "a/"`, `labels."a/b/c": "a/b/c"`, `labels."a=b": "a=b"`, `labels.` + long + `: "` + long + `"`}, notKey+"\n") + notKey},
		{"not ready published", func(s *source.Service) { s.PublishNotReady, s.Endpoints[0].Terminating = true, true }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := good()
			tt.change(s)
			if got := problems(source.Validate(s)); got != tt.want {
				t.Errorf("problems\n got: %s\nwant: %s", got, tt.want)
			}
		})
	}
}

// Nobody reads more than so many problems of a service, and each takes time to word.
func TestValidateHasAnEnd(t *testing.T) {
	for name, add := range map[string]func(*source.Service, netip.Addr){
		"addresses": func(s *source.Service, a netip.Addr) { s.VIPs = append(s.VIPs, a) },
		"endpoints": func(s *source.Service, a netip.Addr) { s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: a}) },
	} {
		s := good()
		for i := range 3000 {
			add(s, netip.AddrFrom4([4]byte{127, 0, byte(i >> 8), byte(i)}))
		}
		if n := len(source.Validate(s)); n != 1000 {
			t.Errorf("%d problems of %s, want 1000", n, name)
		}
	}
}

func problems(ps []source.Problem) string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		line := fmt.Sprintf("%s: %s", p.Path, p.Msg)
		if p.Hint != "" {
			line += "; " + p.Hint
		}
		if p.Warning {
			line = "warning: " + line
		}
		lines[i] = line
	}
	return strings.Join(lines, "\n")
}
