package report

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

func named(name string, edit ...func(*source.Service)) *source.Service {
	s := policytest.Service(edit...)
	s.Key.Name = name
	return s
}

func vips(list ...string) func(*source.Service) {
	return func(s *source.Service) { s.VIPs = policytest.Addrs(list...) }
}

func nodePort(n uint16) func(*source.Service) {
	return func(s *source.Service) { s.Ports[0].NodePort = n }
}

func targetPort(n uint16) func(*source.Service) {
	return func(s *source.Service) { s.Ports[0].TargetPort = n }
}

// heard makes listeners of "tcp 0.0.0.0:22", with "both" or "own" behind it.
func heard(list ...string) []Listener {
	var out []Listener
	for _, text := range list {
		words := strings.Fields(text)
		l := Listener{Protocol: source.TCP, AddrPort: netip.MustParseAddrPort(words[1])}
		if words[0] == "udp" {
			l.Protocol = source.UDP
		}
		l.Both, l.Own = strings.Contains(text, "both"), strings.Contains(text, "own")
		out = append(out, l)
	}
	return out
}

// here is this host, with listeners.
func here(listeners []Listener, families ...policy.Family) Snapshot {
	s := Snapshot{Surroundings: Surroundings{Listening: func() []Listener { return listeners }}}
	s.Node, s.Families = policytest.Node(), families
	return s
}

// doubts returns those about services on a host.
func doubts(list []*source.Service, on Snapshot) []Doubt {
	for _, s := range list {
		on.Services = append(on.Services, claims.UnitService{Subject: policy.Subject{Service: s}})
	}
	return Doubts(&on, nil)
}

func TestDoubtsOfServices(t *testing.T) {
	other := func(edit ...func(*source.Service)) *source.Service {
		return named("other", append([]func(*source.Service){vips("10.96.0.2"), policytest.Endpoints("10.0.0.1")}, edit...)...)
	}
	onHost := func(edit ...func(*source.Service)) *source.Service {
		return named("a", append([]func(*source.Service){vips("192.0.2.1")}, edit...)...)
	}
	both := func(s *source.Service) { s.ExternalIPs, s.VIPs = s.VIPs, nil }
	tests := []struct {
		name      string
		services  []*source.Service
		listeners []Listener
		want      string
	}{
		{"endpoints of its own", []*source.Service{other(), named("a", policytest.Endpoints("10.0.0.1"))}, nil, ""},
		{"another service as endpoint", []*source.Service{named("a", policytest.Endpoints("10.0.0.1", "10.96.0.2"), targetPort(80)), other()}, nil,
			`default/a: endpoint 10.96.0.2:80/tcp is service "default/other": no connection is balanced twice, so that none gets to the endpoints of that service; write the endpoints of that service, or other addresses`},
		{"the vip on another port", []*source.Service{named("a", policytest.Endpoints("10.96.0.2")), other()}, nil,
			`default/a: endpoint 10.96.0.2:8080/tcp is on a vip of service "default/other", where that port is refused; write the endpoints of that service, or other addresses`},
		{"several such endpoints", []*source.Service{named("a", policytest.Endpoints("10.96.0.2", "10.96.0.3")), other(vips("10.96.0.2", "10.96.0.3"))}, nil,
			`default/a: endpoint 10.96.0.2:8080/tcp is on a vip of service "default/other", where that port is refused; so is it with 1 more endpoints; write the endpoints of that service, or other addresses`},
		{"an address of this host", []*source.Service{named("a", policytest.Endpoints("192.0.2.1"), targetPort(80)), onHost(func(s *source.Service) { s.Name = "other" })}, nil, ""},
		{"an external address on another port", []*source.Service{named("a", policytest.Endpoints("10.96.0.2")), other(both)}, nil, ""},
		{"an external address and port", []*source.Service{named("a", policytest.Endpoints("10.96.0.2"), targetPort(80)), other(both)}, nil,
			`default/a: endpoint 10.96.0.2:80/tcp is service "default/other": no connection is balanced twice, so that none gets to the endpoints of that service; write the endpoints of that service, or other addresses`},
		{"an ingress of a cluster", []*source.Service{named("a", policytest.Endpoints("10.96.0.2"), targetPort(80)), other(both, policytest.InCluster)}, nil, ""},

		{"nobody listens", []*source.Service{onHost()}, heard("tcp 0.0.0.0:81", "udp 0.0.0.0:80", "tcp 192.0.2.2:80", "tcp [::]:80"), ""},
		{"on the address", []*source.Service{onHost()}, heard("tcp 192.0.2.1:80"),
			"default/a: a process of this host listens on 192.0.2.1:80/tcp, and becomes unreachable at 192.0.2.1:80/tcp"},
		{"on all addresses", []*source.Service{onHost()}, heard("tcp 0.0.0.0:80"),
			"default/a: a process of this host listens on 0.0.0.0:80/tcp, and becomes unreachable at 192.0.2.1:80/tcp"},
		{"on those of both families", []*source.Service{onHost()}, heard("tcp [::]:80 both"),
			"default/a: a process of this host listens on [::]:80/tcp, and becomes unreachable at 192.0.2.1:80/tcp"},
		{"sshd", []*source.Service{onHost(func(s *source.Service) { s.Ports[0].Port = 22 })}, heard("tcp 0.0.0.0:22"),
			"default/a: a process of this host listens on 0.0.0.0:22/tcp, and becomes unreachable at 192.0.2.1:22/tcp; your sshd becomes unreachable here"},
		{"svcproxy", []*source.Service{onHost()}, heard("tcp 0.0.0.0:80 own"),
			"default/a: svcproxy itself listens on 0.0.0.0:80/tcp, and becomes unreachable at 192.0.2.1:80/tcp"},
		{"an address that is not of this host", []*source.Service{named("a")}, heard("tcp 0.0.0.0:80"), ""},
		{"bound to it all the same", []*source.Service{named("a")}, heard("tcp 10.96.0.10:80"),
			"default/a: a process of this host listens on 10.96.0.10:80/tcp, and becomes unreachable at 10.96.0.10:80/tcp"},
		{"of what another has", []*source.Service{onHost(func(s *source.Service) {
			s.Without = []source.PortAddr{{Protocol: source.TCP, AddrPort: netip.MustParseAddrPort("192.0.2.1:80")}}
		})}, heard("tcp 0.0.0.0:80"), ""},
		{"of a family that is not served", []*source.Service{named("a", vips("2001:db8::1"))}, heard("tcp [::]:80"), ""},

		{"on a node port", []*source.Service{named("a", nodePort(30080))}, heard("tcp 0.0.0.0:30080"),
			"default/a: a process of this host listens on 0.0.0.0:30080/tcp, and becomes unreachable at the node port addresses"},
		{"on a node port of loopback", []*source.Service{named("a", nodePort(30080))}, heard("tcp 127.0.0.1:30080"), ""},
		{"on a node port of the other family", []*source.Service{named("a", nodePort(30080))}, heard("tcp [::]:30080"), ""},
		{"svcproxy on a node port", []*source.Service{named("a", nodePort(30080))}, heard("tcp 0.0.0.0:30080 own"), ""},
		{"on a health check port", []*source.Service{named("a", func(s *source.Service) { s.HealthCheckNodePort = 30080 })}, heard("tcp 0.0.0.0:30080"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, d := range doubts(tt.services, here(tt.listeners, policy.IPv4)) {
				got = append(got, fmt.Sprintf("%s: %s", d.Key, d))
			}
			if text := strings.Join(got, "\n"); text != tt.want {
				t.Errorf("\n got: %s\nwant: %s", text, tt.want)
			}
		})
	}
}

// Who binds 127.0.0.1 loses a node port only where that is served too.
func TestDoubtsOfLocalhostNodePorts(t *testing.T) {
	node := policytest.Node(func(n *policy.Node) { n.LocalhostNodePorts = true })
	on := here(heard("tcp 127.0.0.1:30080"), policy.IPv4)
	on.Node = node
	list := doubts([]*source.Service{named("a", nodePort(30080))}, on)
	if len(list) != 1 {
		t.Errorf("doubts %v, want one", list)
	}
}

// Of another host nothing is known but its files.
func TestDoubtsOfAnotherHostComeFromItsFiles(t *testing.T) {
	list := doubts([]*source.Service{named("a", policytest.Endpoints("192.0.2.1"), targetPort(80)), named("b", vips("192.0.2.1"), nodePort(30080))}, Snapshot{})
	if len(list) != 1 || list[0].Key.Name != "a" {
		t.Errorf("doubts %v, want one, of a", list)
	}
}

// All of 10,000 services with ten endpoints each, on a host with 200 listeners.
func BenchmarkDoubts(b *testing.B) {
	var list []*source.Service
	for i := range 10_000 {
		s := named(fmt.Sprint("s", i), nodePort(uint16(i+20000)))
		s.VIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}
		for j := range 10 {
			s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(j), byte(i >> 8), byte(i)}), Weight: 1})
		}
		list = append(list, s)
	}
	var listeners []Listener
	for i := range 200 {
		listeners = append(listeners, heard(fmt.Sprintf("tcp 127.0.0.1:%d", 20000+i))...)
	}
	for b.Loop() {
		if got := doubts(list, here(listeners, policy.IPv4, policy.IPv6)); len(got) > 0 {
			b.Fatal(got[0])
		}
	}
}

// Of several services with the address of an endpoint, the same one is named each time.
func TestDoubtsNameTheFirstOwner(t *testing.T) {
	vip := netip.MustParseAddr("10.96.0.1")
	owner := func(name string) *source.Service {
		return &source.Service{Key: source.Key{Namespace: "default", Name: name}, VIPs: []netip.Addr{vip},
			Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 80}}}
	}
	user := owner("user")
	user.VIPs, user.Endpoints = nil, []source.Endpoint{{Addr: vip, Weight: 1, Ready: true, Serving: true}}
	for _, list := range [][]*source.Service{{user, owner("a"), owner("b")}, {owner("b"), owner("a"), user}} {
		got := doubts(list, Snapshot{})
		if len(got) != 1 || !strings.Contains(got[0].Msg, `service "default/a"`) {
			t.Errorf("got %v", got)
		}
	}
}
