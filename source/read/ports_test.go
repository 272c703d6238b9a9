package read_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// An element of ports is as many ports as it has numbers and protocols; endpoints have their ports by the name of the element.
func TestParsePorts(t *testing.T) {
	const head = "[[services]]\nname = \"web\"\nvips = [\"10.96.0.10\"]\n"
	for _, tt := range []struct {
		name, text string
		want       []source.Port
		endpoint   map[string]uint16
	}{
		{"protocols", `ports = [{ name = "dns", port = 53, protocol = ["tcp", "udp"], target_port = 5353, node_port = 30053 }]
endpoints = [{ address = "10.0.0.1", ports = { dns = 1053 } }]`, []source.Port{
			{Name: "dns-tcp", Protocol: source.TCP, Port: 53, TargetPort: 5353, NodePort: 30053},
			{Name: "dns-udp", Protocol: source.UDP, Port: 53, TargetPort: 5353, NodePort: 30053},
		}, map[string]uint16{"dns-tcp": 1053, "dns-udp": 1053}},
		{"a port for one protocol", `ports = [{ name = "dns", port = 53, protocol = ["tcp", "udp"] }]
endpoints = [{ address = "10.0.0.1", ports = { dns = 1053, dns-udp = 2053 } }]`, []source.Port{
			{Name: "dns-tcp", Protocol: source.TCP, Port: 53, TargetPort: 53}, {Name: "dns-udp", Protocol: source.UDP, Port: 53, TargetPort: 53},
		}, map[string]uint16{"dns-tcp": 1053, "dns-udp": 2053}},
		{"protocols without a name", `ports = [{ port = 53, protocol = ["udp", "tcp"] }]
endpoints = ["10.0.0.1:1053"]`, []source.Port{
			{Name: "udp", Protocol: source.UDP, Port: 53, TargetPort: 53}, {Name: "tcp", Protocol: source.TCP, Port: 53, TargetPort: 53},
		}, map[string]uint16{"udp": 1053, "tcp": 1053}},
		{"range", `ports = [{ name = "rtp", port = "8000-8002", protocol = "udp" }, { name = "sip", port = 5060 }]
endpoints = [{ address = "10.0.0.1", ports = { sip = 5061 } }]`, []source.Port{
			{Name: "rtp-8000", Protocol: source.UDP, Port: 8000, TargetPort: 8000}, {Name: "rtp-8001", Protocol: source.UDP, Port: 8001, TargetPort: 8001},
			{Name: "rtp-8002", Protocol: source.UDP, Port: 8002, TargetPort: 8002}, {Name: "sip", Protocol: source.TCP, Port: 5060, TargetPort: 5060},
		}, map[string]uint16{"sip": 5061}},
		{"range of protocols, to the last port", `ports = [{ port = "65534-65535", protocol = ["tcp", "sctp"] }]
endpoints = ["10.0.0.1"]`, []source.Port{
			{Name: "65534-tcp", Protocol: source.TCP, Port: 65534, TargetPort: 65534}, {Name: "65534-sctp", Protocol: source.SCTP, Port: 65534, TargetPort: 65534},
			{Name: "65535-tcp", Protocol: source.TCP, Port: 65535, TargetPort: 65535}, {Name: "65535-sctp", Protocol: source.SCTP, Port: 65535, TargetPort: 65535},
		}, nil},
		{"range and list of one", `ports = [{ port = "80-80", protocol = ["tcp"], target_port = 8080 }]
endpoints = ["10.0.0.1:81"]`, []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 8080}}, map[string]uint16{"": 81}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, faults := read.Parse("a.toml", []byte(head+tt.text))
			if len(faults) > 0 || len(got) != 1 {
				t.Fatal(got, faults)
			}
			if diff := cmp.Diff(tt.want, got[0].Ports); diff != "" {
				t.Errorf("ports (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.endpoint, got[0].Endpoints[0].Ports); diff != "" {
				t.Errorf("endpoint (-want +got):\n%s", diff)
			}
		})
	}
}

// Where a node port is written is known for each protocol of a list.
func TestPlacesOfPorts(t *testing.T) {
	got, faults := read.Parse("a.toml", []byte(`[[services]]
name = "web"
ports = [
  { name = "rtp", port = "8000-8002" },
  { name = "dns", port = 53, protocol = ["tcp", "udp"], node_port = 30053 },
]
endpoints = ["10.0.0.1"]
`))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	for _, p := range []source.Protocol{source.TCP, source.UDP} {
		if at := got[0].NodePortPos(p, 30053); at.Line != 5 || at.Col != 69 {
			t.Errorf("%s: %v", p, at)
		}
	}
}

// Messages name the elements of ports, however many ports the ones before them are.
func TestFaultsOfPorts(t *testing.T) {
	const many = "[[services]]\nname = \"web\"\nvips = [\"10.96.0.10\"]\nendpoints = [\"10.0.0.1\"]\nports = [\n  { name = \"a\", port = \"8000-8099\", protocol = [\"tcp\", \"udp\"] },\n"
	for _, tt := range []struct{ ports, want string }{
		{`{ name = "b", port = 99 }, { name = "c", port = 99 }`, "a.toml:7:28: port 99/tcp is already ports[1]"},
		{`{ name = "b", port = 90, node_port = 30000 }, { name = "c", port = 99, node_port = 30000 }`,
			"a.toml:7:84: node port 30000/tcp is already that of ports[1]"},
		{`{ name = "b", port = 90 }, { name = "b", port = 99 }`, `a.toml:7:37: the port name "b" is already that of ports[1]`},
		{`{ name = "b", port = 90 }, { name = "a", port = 99 }`, `a.toml:7:37: the port name "a" is already that of ports[0]`},
		{`{ name = "b", port = 8050 }`, "a.toml:7:1: port 8050/tcp is already one of ports[0]"},
	} {
		_, faults := read.Parse("a.toml", []byte(many+tt.ports+"]\n"))
		if len(faults) != 1 || faults[0].String() != tt.want {
			t.Errorf("%s:\n got %v\nwant %s", tt.ports, faults, tt.want)
		}
	}
}

// The most that limits let through stays cheap, and one number more is refused before any port is made.
func TestManyPorts(t *testing.T) {
	const head = "[[services]]\nname = \"web\"\nvips = [\"10.96.0.10\"]\nendpoints = [\"10.0.0.1\"]\n"
	rules := read.Rules{Limits: read.Limits{Ports: 2000}}
	got, faults := rules.Parse("a.toml", []byte(head+`ports = [{ name = "a", port = "1-1000", protocol = ["tcp", "udp"] }]`))
	if len(faults) > 0 || len(got) != 1 || len(got[0].Ports) != 2000 {
		t.Fatal(faults)
	}
	got, faults = rules.Parse("a.toml", []byte(head+`ports = [{ name = "a", port = "1-1000", protocol = ["tcp", "udp"] }, { name = "b", port = 2000 }]`))
	if len(faults) != 1 || len(got) > 0 {
		t.Error(faults)
	}
}
