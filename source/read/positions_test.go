package read

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

// What only one service can have is found where it stands, however the file is read.
func TestPlacesOfFaults(t *testing.T) {
	toml := "#\n[[services]]\nname = \"a\"\nvips = [\"10.96.0.1\", \"10.96.0.2\"]\nexternal_ips = [\n  '192.0.2.1',\n]\n" +
		"external_traffic_policy = \"local\"\nhealth_check_node_port = 30000\nendpoints = []\nports = [{ name = \"x\", port = 80, node_port = 30080 }, { name = \"y\", port = 81 }, { name = \"z\", port = 82, protocol = \"udp\", node_port = 30080 }]\n"
	json := `{"name": "a", "vips": ["10.96.0.1", "10.96.0.2"], "external_ips": ["192.0.2.1"], "external_traffic_policy": "local", "endpoints": [],
 "health_check_node_port": 30000, "ports": [{"name": "x", "port": 80, "node_port": 30080}, {"name": "y", "port": 81}, {"name": "z", "port": 82, "protocol": "udp", "node_port": 30080}]}`
	second := strings.NewReplacer("30080", "30081", "30000", "30001", "10.96.0", "10.96.1", `"a"`, `"b"`, "192.0.2.1", "192.0.2.2")
	for name, text := range map[string]string{
		"one.toml": toml, "two.toml": toml + second.Replace(toml), "tables.toml": strings.Replace(toml, "ports = [{", "ports = [ {", 1),
		"one.json": `{"services": [` + json + "]}", "two.json": `{"services": [` + json + ",\n" + second.Replace(json) + "]}", "line.json": `{"services": [` + second.Replace(json) + "," + json + "]}",
	} {
		t.Run(name, func(t *testing.T) {
			services, faults := Parse(name, []byte(text))
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			for _, s := range services {
				checkPlaces(t, text, s)
			}
		})
	}
}

func checkPlaces(t *testing.T, text string, s *source.Service) {
	t.Helper()
	lines := strings.Split(text, "\n")
	wants := func(pos source.Position, what string) {
		t.Helper()
		if rest := lines[pos.Line-1][pos.Col-1:]; !strings.HasPrefix(strings.Trim(rest, `"'`), what) {
			t.Errorf("%s: %s is not at %s, but %s", s.Name, what, pos, rest)
		}
	}
	wants(s.NamePos(), s.Name)
	for _, a := range append(s.VIPs, s.ExternalIPs...) {
		wants(s.AddrPos(a), a.String())
	}
	port := "30080"
	if s.Name == "b" {
		port = "30081"
	}
	tcp, udp := s.NodePortPos(source.TCP, s.Ports[0].NodePort), s.NodePortPos(source.UDP, s.Ports[2].NodePort)
	wants(tcp, port)
	wants(udp, port)
	if tcp == udp {
		t.Errorf("%s: both node ports are at %s", s.Name, tcp)
	}
	wants(s.NodePortPos(source.TCP, s.HealthCheckNodePort), "3000")
}

// A service that only moves in its file takes its places along, and is not read again.
func TestMovedServiceTakesItsPlaces(t *testing.T) {
	const a, b = "[[services]]\nname = \"a\"\nvips = [\"10.96.0.1\"]\nports = [{ port = 80 }]\nendpoints = []\n", "[[services]]\nname = \"b\"\nvips = [\"10.96.0.2\"]\nports = [{ port = 80 }]\nendpoints = []\n"
	first, _, before := Rules{}.ParseNew(t.Context(), "x.toml", []byte(a+b), nil)
	services, faults, _ := Rules{}.ParseNew(t.Context(), "x.toml", []byte("# one more\n"+a+b), before)
	if len(faults) > 0 || len(services) != 2 {
		t.Fatal(services, faults)
	}
	for i, want := range []source.Position{{File: "x.toml", Line: 4, Col: 9}, {File: "x.toml", Line: 9, Col: 9}} {
		if got := services[i].AddrPos(services[i].VIPs[0]); got != want {
			t.Errorf("address of %s at %s, want %s", services[i].Name, got, want)
		}
		if &services[i].VIPs[0] != &first[i].VIPs[0] {
			t.Errorf("%s was read again", services[i].Name)
		}
	}
}
