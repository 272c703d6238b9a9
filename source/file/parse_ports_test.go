package file_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
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
			got, faults := file.Parse("a.toml", []byte(head+tt.text))
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
	got, faults := file.Parse("a.toml", []byte(`[[services]]
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
