package file

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// manyFrom are n services that refer to a list.
func manyFrom(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "[[services]]\nname = \"s%d\"\nvips = [\"10.96.%d.%d\"]\nports = [{ port = 80 }]\n%s\n", i, i/250, i%250+1, fromList)
	}
	return b.String()
}

// versionOf returns a version of a file with this text, which is good.
func versionOf(t *testing.T, rules read.Rules, name, text string) *read.Version {
	t.Helper()
	v := read.NewVersion(t.Context(), name, []byte(text), nil, rules, read.Rules.ParseNew, nil)
	if v.Broken {
		t.Fatalf("%s: %v", name, v.Faults)
	}
	return v
}

// to looks up one list.
func to(l *read.Version) read.Lookup {
	return func(string) (*read.Version, string) { return l, "" }
}

// The text of a list is read once for what is wrong with it for many services, and not again later.
func TestListPlacedOnce(t *testing.T) {
	const services, endpoints = 100, 400
	for name, list := range map[string]string{
		"warnings": regexp.MustCompile(`"[^"]*"`).ReplaceAllString(longListOf(endpoints), `{"address": $0, "weight": 0}`),
		"faults":   strings.Replace(longListOf(endpoints), `"10.1.0.1"`, `"fd00::1"`, 1),
	} {
		v := versionOf(t, read.Rules{}, "web.toml", manyFrom(services))
		l := versionOf(t, read.Rules{}, "web.endpoints.json", list)
		known := read.Rules{}.Bind(v, to(l), nil, nil, nil).Known
		for key, b := range known {
			b.Faults = nil
			known[key] = b
		}
		var b *read.Bound
		once := testing.AllocsPerRun(1, func() { l.List.Positions([]source.Path{source.At(read.ListKey)}) })
		placed := testing.AllocsPerRun(1, func() { b = read.Rules{}.Bind(v, to(l), nil, nil, nil, known) })
		again := testing.AllocsPerRun(1, func() { read.Rules{}.Bind(v, to(l), nil, nil, nil, b.Known) })
		if n := len(b.Faults["web.endpoints.json"]) + len(b.Warned); n != services {
			t.Errorf("%s: %d, want one of each of %d services", name, n, services)
		}
		if placed > 10*once || again > once {
			t.Errorf("%s: %v allocations to read the list, %v for all services, %v where all is known", name, once, placed, again)
		}
	}
}

// longListOf is a list of so many addresses.
func longListOf(n int) string {
	var b []string
	for i := range n {
		b = append(b, fmt.Sprintf(`"10.1.%d.%d"`, i/250, i%250+1))
	}
	return "[" + strings.Join(b, ",\n") + "]"
}

// Services that refer to one list share its endpoints, and nobody can append to them.
func TestServicesShareList(t *testing.T) {
	v := versionOf(t, read.Rules{}, "web.toml", manyFrom(2))
	for text, shared := range map[string]bool{
		longListOf(5): true,
		`[{"address": "10.1.0.1", "zone": "a"}, {"address": "10.1.0.2"}]`:              true,
		`[{"address": "10.1.0.1", "ports": {"": 8080}}, {"address": "10.1.0.2"}]`:      true,
		`[{"address": "10.1.0.1", "port": 8080}, {"address": "10.1.0.2", "port": 81}]`: false,
	} {
		l := versionOf(t, read.Rules{}, "web.endpoints.json", text)
		b := read.Rules{}.Bind(v, to(l), nil, nil, nil)
		var of [2]*source.Service
		for i := range of {
			of[i] = b.Services[i]
		}
		first, second := of[0].Endpoints, of[1].Endpoints
		if got := &first[0] == &second[0]; got != shared {
			t.Errorf("%s: shared is %v", text, got)
		}
		if cap(first) != len(first) || len(first) != len(l.List.Endpoints) {
			t.Errorf("%s: %d endpoints, and room for %d", text, len(first), cap(first))
		}
	}
}

// What is multiplied is bounded: a list by the services of a file.
func TestListedEndpointsOfFile(t *testing.T) {
	rules := read.Rules{Limits: read.Limits{FrontendEndpoints: 12}}
	for services, want := range map[int]string{
		3: "",
		4: "web.toml:20:18: the services of this file have 16 endpoints of frontends (addresses times ports times endpoints), more than 12; " +
			"use fewer addresses, ports, endpoints or different weights, or raise frontend_endpoints in [limits] of svcproxy.toml",
	} {
		v := versionOf(t, rules, "web.toml", manyFrom(services))
		b := rules.Bind(v, to(versionOf(t, rules, "web.endpoints.json", longListOf(4))), nil, nil, nil)
		got := ""
		if f := b.AllFaults(); len(f) > 0 {
			got = f[0].String()
		}
		if got != want || b.Unfit != (want != "") {
			t.Errorf("%d services: %q, want %q", services, got, want)
		}
	}
}

// So are ports of ranges, also where a service has not changed.
func TestPortsOfFile(t *testing.T) {
	rules := read.Rules{Limits: read.Limits{Frontends: 12}}
	text := func(n int, line string) string {
		return strings.ReplaceAll(strings.ReplaceAll(manyFrom(n), "port = 80 ", `port = "80-83" `), fromList, line)
	}
	whole := strings.ReplaceAll(text(4, "endpoints = []"), "[[services]]", "[[ services ]]")
	for how, data := range map[string]string{"in chunks": text(4, "endpoints = []"), "whole": whole} {
		services, faults := rules.Parse("web.toml", []byte(data))
		if len(services) > 0 || len(faults) != 1 || faults[0].String() != "web.toml:19:9: the services of this file have 16 frontends (addresses times ports), more than 12; "+
			"use fewer addresses or ports, or raise frontends in [limits] of svcproxy.toml" {
			t.Errorf("%s: %d services, %v", how, len(services), faults)
		}
	}
	before := versionOf(t, rules, "web.toml", text(3, "endpoints = []")).Known
	if _, faults, _ := rules.ParseNew(t.Context(), "web.toml", []byte(text(4, "endpoints = []")), before); !source.AnyError(faults) {
		t.Error("a file that grew has no fault")
	}
}

// Where a list lost its endpoints nobody knows the places of those of before.
func TestPlacesInEmptyList(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/web.toml", serviceFrom("web", fromList))
	write(t, dir+"/web.endpoints.json", listOfN(2))
	svc := (read.Rules{}).ReadFile(dir + "/web.toml").Services[0]
	write(t, dir+"/web.endpoints.json", "[]")
	if at := (read.Rules{}).EndpointPlaces(svc); at != nil {
		t.Errorf("places %v", at)
	}
	svc = (read.Rules{}).ReadFile(dir + "/web.toml").Services[0]
	if at := (read.Rules{}).EndpointPlaces(svc); at == nil || len(at) > 0 {
		t.Errorf("of an empty list: places %v", at)
	}
}

// Where one list does not fit many files, the log has one line, and the status as many faults as for one file.
func TestListThatFitsNoFile(t *testing.T) {
	onHost(t, func(h *host) {
		var many []int
		for i := range 100 {
			many = append(many, i)
		}
		for i := range 30 {
			h.write(fmt.Sprintf("f%02d.toml", i), strings.NewReplacer(`"web"`, fmt.Sprintf(`"s%d"`, i), "10.96.0.119", fmt.Sprintf("10.96.1.%d", i)).Replace(portNamed("http", "")))
		}
		h.write("web.endpoints.json", namedList("http", 1, 2))
		h.start()
		moment()
		h.set("web.endpoints.json", namedList("web", many...))
		if now := h.sink.inUse(); strings.Count(now, " 2") != 30 {
			t.Errorf("in use: %s", now)
		}
		if n := strings.Count(h.faults(), "for service"); n != 1000 {
			t.Errorf("%d faults", n)
		}
		if n := strings.Count(h.log.String(), "does not fit some services"); n != 1 || !strings.Contains(h.log.String(), "files=30") {
			t.Errorf("%d lines: %s", n, &h.log)
		}
	})
}
