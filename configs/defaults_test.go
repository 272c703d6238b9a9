package configs_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/read"
)

// alongside are the keys without which another one does nothing, or is a fault.
var alongside = map[string]map[string]any{
	"session_affinity_timeout": {"session_affinity": "client_ip"},
	"tunnel_type":              {"forward": "tunnel"},
	"tunnel_port":              {"forward": "tunnel", "tunnel_type": "gue"},
	"tls":                      {"type": "grpc"},
	"service":                  {"type": "grpc"},
	"server_name":              {"type": "https"},
	"verify":                   {"type": "https"},
	"min_tls":                  {"type": "https"},
	"send":                     {"type": "tcp"},
	"expect":                   {"type": "tcp"},
}

// A file that writes a default says what one that does not write it says.
func TestDefaultsOfServices(t *testing.T) {
	service := read.Schema().Properties[1].Schema.Items
	sameWithDefaults(t, service, func(with map[string]any) map[string]any { return with })
	for _, p := range service.Properties {
		var table *decode.Schema
		switch p.Key {
		case "ports":
			table = p.Schema.Items
		case "endpoints":
			table = &p.Schema.Items.AnyOf[1]
		case "health_check":
			table = &p.Schema
		default:
			continue
		}
		sameWithDefaults(t, table, func(with map[string]any) map[string]any {
			if p.Key == "health_check" {
				return map[string]any{p.Key: with}
			}
			return map[string]any{p.Key: []any{with}}
		})
	}
}

// needed are the required keys of each table.
var needed = map[string]any{"name": "a", "vips": []any{"10.96.0.1"}, "port": 80, "address": "10.0.0.1", "type": "http",
	"ports": []any{map[string]any{"port": 80}}, "endpoints": []any{map[string]any{"address": "10.0.0.1"}}}

// sameWithDefaults tries each default of a table that is put into a service.
func sameWithDefaults(t *testing.T, s *decode.Schema, into func(map[string]any) map[string]any) {
	t.Helper()
	tried := 0
	for _, p := range s.Properties {
		if p.Schema.Default == nil || p.Key == "vips" || p.Key == "endpoints" || p.Key == "command" {
			continue
		}
		tried++
		base := map[string]any{}
		for _, key := range s.Required {
			base[key] = needed[key]
		}
		maps.Copy(base, alongside[p.Key])
		written := maps.Clone(base)
		written[p.Key] = p.Schema.Default
		if without, with := parsed(t, into(base)), parsed(t, into(written)); !without.Equal(with) {
			t.Errorf("%s = %v: %s", p.Key, p.Schema.Default, cmp.Diff(without, with))
		}
	}
	if tried < 2 {
		t.Errorf("%d defaults", tried)
	}
}

func parsed(t *testing.T, keys map[string]any) *source.Service {
	t.Helper()
	all := map[string]any{"name": "a", "vips": needed["vips"], "ports": needed["ports"], "endpoints": needed["endpoints"]}
	maps.Copy(all, keys)
	text, err := json.Marshal(map[string]any{"services": []any{all}})
	fatal.If(t, err)
	services, faults := read.Parse("a.json", text)
	if len(services) != 1 {
		t.Fatalf("%s: %v", text, faults)
	}
	return services[0]
}

func TestDefaultsOfSettings(t *testing.T) {
	tried := 0
	for _, p := range configs.Schema().Properties {
		tried += settingsWithDefaults(t, "", decode.Properties{p})
		tried += settingsWithDefaults(t, "["+p.Key+"]\n", p.Schema.Properties)
	}
	if tried < 45 {
		t.Errorf("%d keys have a default", tried)
	}
}

// settingsWithDefaults writes each default below a header, and returns how many there are.
func settingsWithDefaults(t *testing.T, header string, properties decode.Properties) (tried int) {
	t.Helper()
	for _, p := range properties {
		if p.Schema.Default == nil {
			continue
		}
		tried++
		value, err := json.Marshal(p.Schema.Default) // as TOML writes it
		fatal.If(t, err)
		got, faults := configs.Parse("a.toml", []byte(header+p.Key+" = "+string(value)))
		for _, f := range faults {
			if !f.Warning {
				t.Error(f)
			}
		}
		if diff := cmp.Diff(configs.Default(), got, comparePrefix); diff != "" {
			t.Errorf("%s%s = %s: %s", strings.TrimSpace(header), p.Key, value, diff)
		}
	}
	return tried
}

// What cannot be written is no default: of these keys there is none.
func TestKeysWithoutDefault(t *testing.T) {
	want := []string{
		"services.labels", "services.endpoints", "services.endpoints_from", "services.masquerade", "services.node_port_addresses", "ports.target_port", "endpoints.port", "endpoints.ports", "health_check.port",
		"node_name", "owners", "bgp.peers",
	}
	var got []string
	note := func(table string, s *decode.Schema) {
		for _, p := range s.Properties {
			if p.Schema.Default == nil && p.Schema.Properties == nil && !slices.Contains(s.Required, p.Key) {
				got = append(got, strings.TrimPrefix(table+"."+p.Key, "."))
			}
		}
	}
	service := read.Schema().Properties[1].Schema.Items
	note("services", service)
	for _, p := range service.Properties {
		switch p.Key {
		case "ports":
			note("ports", p.Schema.Items)
		case "endpoints":
			note("endpoints", &p.Schema.Items.AnyOf[1])
		case "health_check":
			note("health_check", &p.Schema)
		}
	}
	settings := configs.Schema()
	note("", &settings)
	for _, p := range settings.Properties {
		note(p.Key, &p.Schema)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
