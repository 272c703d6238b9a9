package read

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// inBoth calls do with a text in TOML, and with the same in JSON.
func inBoth(t *testing.T, text string, do func(t *testing.T, path string, data []byte)) {
	t.Helper()
	doc, faults := decode.TOML("a.toml", []byte(text))
	if faults != nil {
		t.Fatal(faults)
	}
	asJSON, err := json.Marshal(doc.Root)
	fatal.If(t, err)
	t.Run("TOML", func(t *testing.T) { do(t, "a.toml", []byte(text)) })
	t.Run("JSON", func(t *testing.T) { do(t, "a.json", asJSON) })
}

const checked = "[[services]]\nname = 'web'\nvips = ['10.96.0.10']\nports = [{ port = 80 }]\nendpoints = ['10.1.1.1', { address = '10.1.1.2', tier = 9, enabled = false }]\n"

func TestHealthCheck(t *testing.T) {
	const s = time.Second
	ok := []source.StatusRange{{First: 200, Last: 399}}
	tests := []struct {
		text string
		want *source.HealthCheck
	}{
		{"type = 'none'", nil},
		{"type = 'tcp'", &source.HealthCheck{Type: source.CheckTCP, Interval: 5 * s, IntervalDown: 5 * s, Timeout: 2 * s, Rise: 2, Fall: 3}},
		{"type = 'tcp'\ninterval = '1s'", &source.HealthCheck{Type: source.CheckTCP, Interval: s, IntervalDown: s, Timeout: s, Rise: 2, Fall: 3}},
		{"type = 'tcp'\nport = 81\ninterval = '3s'\ninterval_down = '500ms'\ntimeout = '3s'\nrise = 1\nfall = 255\nsource = '10.1.1.9'\nall_failed = 'refuse'",
			&source.HealthCheck{Type: source.CheckTCP, Port: 81, Interval: 3 * s, IntervalDown: s / 2, Timeout: 3 * s, Rise: 1, Fall: 255,
				Source: netip.MustParseAddr("10.1.1.9"), Refuse: true}},
		{"type = 'tcp'\nsource = ''\nall_failed = 'use_all'\nsend = 'a\\r\\n\\t\\\\\\x00\\xfF'\nexpect = '^\\x00'",
			&source.HealthCheck{Type: source.CheckTCP, Interval: 5 * s, IntervalDown: 5 * s, Timeout: 2 * s, Rise: 2, Fall: 3,
				Send: "a\r\n\t\\\x00\xff", Expect: `^\x00`}},
		{`type = "udp"` + "\nport = 53\n" + `send = "ping\r\n\\x00"`,
			&source.HealthCheck{Type: source.CheckUDP, Port: 53, Interval: 5 * s, IntervalDown: 5 * s, Timeout: 2 * s, Rise: 2, Fall: 3, Send: "ping\r\n\x00"}},
		{"type = 'http'", &source.HealthCheck{Type: source.CheckHTTP, Path: "/", Method: "GET", ExpectStatus: ok,
			Interval: 5 * s, IntervalDown: 5 * s, Timeout: 2 * s, Rise: 2, Fall: 3}},
		{"type = 'https'\npath = '/a?b'\nmethod = 'POST'\nhost = 'x:1'\nexpect_status = ['200', 204, '300-399']\nexpect_body = 'ok'\nserver_name = 'y'\nverify = false\nmin_tls = '1.1'",
			&source.HealthCheck{Type: source.CheckHTTPS, Path: "/a?b", Method: "POST", Host: "x:1", ExpectBody: "ok", ServerName: "y", Insecure: true, MinTLS: source.TLS11,
				ExpectStatus: []source.StatusRange{{First: 200, Last: 200}, {First: 204, Last: 204}, {First: 300, Last: 399}},
				Interval:     5 * s, IntervalDown: 5 * s, Timeout: 2 * s, Rise: 2, Fall: 3}},
		{"type = 'grpc'\ntls = true\nservice = 'a.B'\nserver_name = 'y'\nverify = true\nmin_tls = ''",
			&source.HealthCheck{Type: source.CheckGRPC, TLS: true, GRPCService: "a.B", ServerName: "y", Interval: 5 * s, IntervalDown: 5 * s, Timeout: 2 * s, Rise: 2, Fall: 3}},
		{"type = 'exec'\ncommand = ['/bin/a', '', '$x']",
			&source.HealthCheck{Type: source.CheckExec, Command: []string{"/bin/a", "", "$x"}, Interval: 5 * s, IntervalDown: 5 * s, Timeout: 2 * s, Rise: 2, Fall: 3}},
	}
	for _, tt := range tests {
		for _, text := range []string{checked + "[services.health_check]\n" + tt.text, "[defaults.health_check]\n" + tt.text + "\n" + checked} {
			inBoth(t, text, func(t *testing.T, path string, data []byte) {
				services, faults := Parse(path, data)
				if source.AnyError(faults) || len(services) != 1 {
					t.Fatalf("%s\n%v", data, faults)
				}
				if got := services[0].HealthCheck; !reflect.DeepEqual(got, tt.want) {
					t.Errorf("%s\n got: %+v\nwant: %+v", data, got, tt.want)
				}
			})
		}
	}
}

func TestKeysOfEndpointsThatAreAlive(t *testing.T) {
	text := strings.Replace(checked, "ports", "health_check = { type = 'tcp' }\nmin_up = 65535\nslow_start = '90s'\nclose_connections = 'always'\nenabled = false\nports", 1)
	inBoth(t, text, func(t *testing.T, path string, data []byte) {
		services, faults := Parse(path, data)
		if source.AnyError(faults) {
			t.Fatal(faults)
		}
		s := services[0]
		if s.MinUp != 65535 || s.SlowStart != 90*time.Second || s.CloseConnections != source.CloseAlways || !s.Disabled {
			t.Errorf("got %+v", s)
		}
		if a, b := s.Endpoints[0], s.Endpoints[1]; a.Tier != 0 || a.Disabled || b.Tier != 9 || !b.Disabled {
			t.Errorf("endpoints %+v", s.Endpoints)
		}
	})
}

// withDefaults is a file of services a, b and c: a has a check of its own, b has none, and c
// says nothing.
func withDefaults(defaults string) string {
	service := func(name, keys string) string {
		return "[[services]]\nname = '" + name + "'\nvips = ['10.96.0." + fmt.Sprint(name[0]) + "']\nports = [{ port = 80 }]\nendpoints = ['10.1.1.1', '10.1.1.2']\n" + keys
	}
	return defaults + service("a", "health_check = { type = 'http', path = '/a' }\n") +
		service("b", "health_check = { type = 'none' }\n") + service("c", "")
}

// A default is of the services that say nothing; what a service says replaces all of it.
func TestDefaultHealthCheck(t *testing.T) {
	inBoth(t, withDefaults("[defaults.health_check]\ntype = 'tcp'\nfall = 9\n"), func(t *testing.T, path string, data []byte) {
		services, faults, known := Rules{}.ParseNew(context.Background(), path, data, nil)
		if faults != nil || len(known) != 3 {
			t.Fatalf("faults %v, %d known, want none and 3", faults, len(known))
		}
		a, b, c := services[0].HealthCheck, services[1].HealthCheck, services[2].HealthCheck
		if a == nil || a.Path != "/a" || a.Fall != 3 || b != nil || c == nil || c.Type != source.CheckTCP || c.Fall != 9 {
			t.Errorf("got %+v, %+v, %+v", a, b, c)
		}
		compareChunks(t, data, path == "a.json")
	})
}

// A change of defaults is one of all services that have them, though their texts are the same;
// what is no change of them leaves all as they are.
func TestChangedDefaultsAreRead(t *testing.T) {
	const was = "[defaults.health_check]\ntype = 'tcp'\n"
	for _, tt := range []struct {
		now  string
		want string // of c
		same bool   // none is read again
	}{
		{"# a comment\n[defaults.health_check]\nrise=2\ntype = \"tcp\"\n", "tcp 3", false},
		{"# a comment\n\n" + was, "tcp 3", true},
		{"[defaults]\nhealth_check.type = 'tcp' # the same\n", "tcp 3", true},
		{was + "fall = 4\n", "tcp 4", false},
		{"[defaults]\n", "none", false},
		{"", "none", false},
	} {
		before, _, known := Rules{}.ParseNew(context.Background(), "a.toml", []byte(withDefaults(was)), nil)
		inBoth(t, withDefaults(tt.now), func(t *testing.T, path string, data []byte) {
			known, before := known, before
			if path == "a.json" {
				text, _ := decode.TOML("", []byte(withDefaults(was)))
				old, _ := json.Marshal(text.Root)
				before, _, known = Rules{}.ParseNew(context.Background(), path, old, nil)
			}
			services, faults, now := Rules{}.ParseNew(context.Background(), path, data, known)
			if faults != nil || len(now) != 3 {
				t.Fatalf("%s\nfaults %v, %d known, want none and 3", data, faults, len(now))
			}
			got := "none"
			if c := services[2].HealthCheck; c != nil {
				got = fmt.Sprint(c.Type, " ", c.Fall)
			}
			same := &services[0].Endpoints[0] == &before[0].Endpoints[0] // moved at most
			if got != tt.want || same != tt.same {
				t.Errorf("%s\nc has %s, read again %v; want %s, %v", data, got, !same, tt.want, !tt.same)
			}
		})
	}
}

// Equal checks are one, of services that are read together, one by one, or later.
func TestEqualChecksAreOne(t *testing.T) {
	many := func(n int, defaults string) []byte {
		text := string(listed(false, make([]int, n)...))
		for i := range n {
			keys := fmt.Sprintf("name = \"s%d\"\n", i)
			if i%2 == 0 {
				text = strings.Replace(text, keys, keys+"health_check = { type = 'tcp', fall = 3 }\n", 1)
			}
		}
		return []byte(defaults + strings.ReplaceAll(text, "endpoints = []", "endpoints = ['10.1.1.1']"))
	}
	count := func(services []*source.Service) int {
		checks := map[*source.HealthCheck]bool{}
		for _, s := range services {
			checks[s.HealthCheck] = true
		}
		return len(checks)
	}
	const same, other = "[defaults.health_check]\ntype = 'tcp'\n", "[defaults.health_check]\ntype = 'http'\n"
	whole, faults := Rules{}.parseWhole("a.toml", many(20, same), false)
	if len(whole) != 20 || count(whole) != 1 {
		t.Errorf("%d services of %d checks, want 20 of 1; faults %v", len(whole), count(whole), faults)
	}
	var known KnownServices
	var services []*source.Service
	for _, step := range []struct {
		n        int
		defaults string
		want     int
	}{{20, same, 1}, {30, same, 1}, {30, other, 2}, {40, other, 2}, {40, same, 1}} {
		services, faults, known = Rules{}.ParseNew(context.Background(), "a.toml", many(step.n, step.defaults), known)
		if len(services) != step.n || count(services) != step.want {
			t.Errorf("%d services of %d checks, want %d of %d; faults %v", len(services), count(services), step.n, step.want, faults)
		}
	}
}

// What is wrong with a default is said once, where it stands, in files of any size.
func TestFaultOfDefaults(t *testing.T) {
	for _, tt := range []struct{ defaults, want string }{
		{"[defaults.health_check]\ntype = 'tcp'\ntimeout = '9s'\n",
			"[a.toml:3:11: warning: timeout 9s is more than interval 5s; an endpoint that does not answer is asked only every timeout]"},
		{"[defaults.health_check]\ntype = 'http'\npath = 'x'\n", `[a.toml:3:8: the path "x" does not begin with "/"]`},
		{"[defaults.health_check]\ntype = 'http'\nsource = 'fd00::1'\n",
			"[a.toml:16:1: source fd00::1 is IPv6, and no endpoint is; it is that of [defaults]: write a health_check of the service, type = \"none\" for no check]"},
	} {
		text := withDefaults(tt.defaults)
		if _, faults := Parse("a.toml", []byte(text)); fmt.Sprint(faults) != tt.want {
			t.Errorf("faults\n got: %v\nwant: %s", faults, tt.want)
		}
		compareChunks(t, []byte(text), false)
	}
}
