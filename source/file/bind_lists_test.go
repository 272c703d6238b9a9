package file

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// What the host can do may change under a list that is used: it is told, and nothing is removed.
func TestRevalidationRemovesNoEndpoints(t *testing.T) {
	onHost(t, func(h *host) {
		var refuse atomic.Bool
		h.check = func(s *source.Service) (list []source.Problem) {
			if refuse.Load() && len(s.Endpoints) > 1 {
				list = []source.Problem{{Path: source.At("endpoints", 1), Msg: "one endpoint at most here"}}
			}
			return list
		}
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(2))
		h.start()
		moment()
		again := func(not bool) {
			refuse.Store(not)
			h.src.Revalidate()
			moment()
		}
		again(true)
		h.use("refused", "web 2")
		h.restart()
		h.use("refused, restart", "web 2")
		h.say("refused", "web.endpoints.json stale 0; web.toml accepted 1", `DIR/web.endpoints.json:2:2: for service "default/web" (DIR/web.toml:2:8): one endpoint at most here`)
		again(false)
		h.use("good again", "web 2")
		h.say("good again", "web.endpoints.json accepted 0; web.toml accepted 1", "")
		again(true)
		h.set("web.endpoints.json", listOfN(1))
		h.use("one", "web 1")
		h.say("one", "web.endpoints.json accepted 0; web.toml accepted 1", "")
	})
}

// Where the state directory was damaged, and the list that a service had is lost, it has no endpoints until there is one.
func TestLostListLeavesNoEndpoints(t *testing.T) {
	for name, text := range map[string]string{"other": `["fd00::1", "10.1.0.7"]`, "damaged": ""} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *host) {
				h.write("web.toml", serviceFrom("web", fromList))
				h.write("web.endpoints.json", listOfN(3))
				h.start()
				moment()
				last := h.lastCopy("web.endpoints.json")
				h.stop()
				check(t, errors.Join(os.RemoveAll(h.state+"/history"), os.Remove(last)))
				if text != "" {
					h.record("web.endpoints.json", text)
				}
				h.write("web.endpoints.json", "[")
				h.start()
				moment()
				h.use("restart", "web 0")
				if !strings.Contains(h.log.String(), "a list of endpoints does not fit some services; they keep the endpoints they have, if any") {
					t.Errorf("the log says nothing:\n%s", &h.log)
				}
				h.set("web.endpoints.json", listOfN(2))
				h.use("repaired", "web 2")
			})
		})
	}
}

// check and plan say of a directory with lists what the daemon does.
func TestListsReadOnce(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.toml":              serviceFrom("a", `endpoints_from = "a.endpoints.json"`),
		"a.endpoints.json":    listOfN(2),
		"b.toml":              serviceFrom("b", `endpoints_from = "b.endpoints.json"`),
		"b.endpoints.json":    `["10.1.0.1", "fd00::1"]`,
		"c.toml":              serviceFrom("c", `endpoints_from = "c.endpoints.json"`),
		"d.toml":              strings.ReplaceAll(serviceFrom("d", `endpoints_from = "d.endpoints.toml"`), "{ port = 80 }", `{ name = "a", port = 80 }, { name = "b", port = 81 }`),
		"d.endpoints.toml":    "endpoints = [{ address = \"10.1.0.1\", port = 8080 },\n\"10.1.0.2\", \"10.1.0.2\", { address = \"10.1.0.3\", ports = { c = 1 } }]",
		"e.toml":              serviceFrom("e", `endpoints_from = "e.endpoints.json"`),
		"e.endpoints.json":    `[{"address": "10.1.0.1", "weight": 0}]`,
		"f.toml":              serviceFrom("f", `endpoints_from = "f.endpoints.json"`),
		"f.endpoints.json":    `[`,
		"none.endpoints.json": "[]",
	} {
		write(t, dir+"/"+name, text)
	}
	files, err := read.Rules{}.ReadDir(dir, nil)
	check(t, err)
	var got []string
	for _, f := range files {
		line := strings.TrimPrefix(f.Path, dir+"/")
		for _, s := range f.Services {
			line += fmt.Sprintf(" %s %d", s.Name, len(s.Endpoints))
		}
		for _, fault := range f.Faults {
			line += "\n  " + strings.ReplaceAll(fault.String(), dir+"/", "")
		}
		got = append(got, line)
	}
	want := []string{
		"a.endpoints.json", "a.toml a 2",
		"b.endpoints.json",
		"b.toml\n  " + `b.endpoints.json:1:14: for service "default/b" (b.toml:2:8): endpoint fd00::1 is IPv6, and the service has no address of that family; nothing would be sent to it`,
		"c.toml\n  " + `c.toml:5:18: "c.endpoints.json" is no file of this directory; the file is used once the list is there: [] is one without endpoints`,
		"d.endpoints.toml",
		"d.toml\n  " + `d.endpoints.toml:1:45: for service "default/d" (d.toml:2:8): the endpoint has a port, and the service has several; write ports = { name = number }` +
			"\n  " + `d.endpoints.toml:2:13: for service "default/d" (d.toml:2:8): endpoint 10.1.0.2:80 of port "a" is already endpoints[1]` +
			"\n  " + `d.endpoints.toml:2:63: for service "default/d" (d.toml:2:8): the service has no port named "c"; want a or b`,
		"e.endpoints.json",
		"e.toml e 1\n  " + `e.endpoints.json:1:1: warning: for service "default/e" (e.toml:2:8): all endpoints have weight 0, so new connections are refused`,
		"f.endpoints.json\n  f.endpoints.json:1:2: the text ends within a value",
		"f.toml\n  " + `f.toml:5:18: "f.endpoints.json" cannot be used, and no good version of it is known: f.endpoints.json:1:2: the text ends within a value`,
		"none.endpoints.json\n  none.endpoints.json: warning: no service refers to this file of endpoints; write endpoints_from = \"none.endpoints.json\" in the service that it is for",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	state := t.TempDir()
	if units, _ := Recall(read.Rules{}, dir, state); len(units) > 0 {
		t.Errorf("last good without a state: %v", units)
	}
	a := files[1].Services[0]
	if at := (read.Rules{}).EndpointPlaces(a); len(at) != 2 || at[1] != (source.Position{File: dir + "/a.endpoints.json", Line: 2, Col: 2}) {
		t.Errorf("places: %v", at)
	}
	write(t, dir+"/a.endpoints.json", listOfN(3))
	if at := (read.Rules{}).EndpointPlaces(a); at != nil {
		t.Errorf("places in another list: %v", at)
	}
}

// A list refers to ports as they are written, of a range and of several protocols too.
func TestListOfSeveralProtocols(t *testing.T) {
	dir := t.TempDir()
	service := serviceFrom("dns", `endpoints_from = "dns.endpoints.json"`)
	for _, tt := range []struct{ ports, list, want string }{
		{`{ name = "dns", port = 53, protocol = ["tcp", "udp"] }`, `["10.1.0.1:5353"]`, "map[dns-tcp:5353 dns-udp:5353]"},
		{`{ name = "dns", port = 53, protocol = ["tcp", "udp"] }, { name = "web", port = 80 }`, `[{"address": "10.1.0.1", "ports": {"dns": 5353}}]`, "map[dns-tcp:5353 dns-udp:5353]"},
		{`{ name = "rtp", port = "8000-8001" }`, `["10.1.0.1:5353"]`, `dns.endpoints.json:1:2: for service "default/dns" (dns.toml:2:8): the endpoint has a port, and the service a range of them; leave it out: endpoints serve each port by its own number`},
		{`{ name = "rtp", port = "8000-8001" }`, `["10.1.0.1"]`, "map[]"},
	} {
		write(t, dir+"/dns.toml", strings.Replace(service, "{ port = 80 }", tt.ports, 1))
		write(t, dir+"/dns.endpoints.json", tt.list)
		f := read.Rules{}.ReadFile(dir + "/dns.toml")
		var got string
		for _, fault := range f.Faults {
			got += strings.ReplaceAll(fault.String(), dir+"/", "")
		}
		for _, s := range f.Services {
			got += fmt.Sprint(s.Endpoints[0].Ports)
		}
		if got != tt.want {
			t.Errorf("%s, %s\n got: %s\nwant: %s", tt.ports, tt.list, got, tt.want)
		}
	}
}
