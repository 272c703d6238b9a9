package configs_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/read"
)

//go:generate go test -run TestSchemasAreUpToDate -update .

var update = flag.Bool("update", false, "write the JSON Schemas")

// schemas returns both, by the file that they are kept in, with what
// reference.toml says of each key as its description.
func schemas(t *testing.T) map[string]decode.Schema {
	text, err := os.ReadFile("reference.toml")
	fatal.If(t, err)
	settings, services, _ := strings.Cut(string(text), "## ----")
	services = regexp.MustCompile(`(?m)^#`).ReplaceAllString(services, "")
	service, daemon := read.Schema(), configs.Schema()
	ofSettings := comments(settings, `#?\[{1,2}(?:bgp\.)?(\w+)\]{1,2}`)
	describe(&daemon, ofSettings)
	for i, p := range daemon.Properties {
		if p.Key == "bgp" {
			describe(&daemon.Properties[i].Schema, withTables(ofSettings, "bgp."))
		}
	}
	said := comments(services, `\[{1,2}services\.(\w+)\]{1,2}`)
	describe(service.Properties[1].Schema.Items, said)
	describe(&service.Properties[2].Schema, said)
	service.Properties[2].Schema.Description = comments(services, `\[(defaults)\]`)["defaults"]
	return map[string]decode.Schema{"service.schema.json": service, "svcproxy.schema.json": daemon}
}

// comments returns the comment above each key, by table and key; of keys without
// one between them it is about all. A header matches where a table begins.
func comments(text, header string) map[string]string {
	table := regexp.MustCompile(`^` + header + `$`)
	key := regexp.MustCompile(`^#?(\w+) = `)
	out := map[string]string{}
	var in, said string
	var words []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		comment, isComment := strings.CutPrefix(line, "#")
		switch m := key.FindStringSubmatch(line); {
		case m != nil:
			if words != nil {
				said = strings.Join(words, " ")
			}
			if words = nil; out[in+m[1]] == "" {
				out[in+m[1]] = said
			}
		case isComment && !table.MatchString(line):
			words = append(words, strings.TrimSpace(comment))
		case table.MatchString(line):
			name := table.FindStringSubmatch(line)[1]
			if out[name] == "" {
				out[name] = strings.Join(words, " ")
			}
			in, said, words = name+".", "", nil
		case line == "[[services]]":
			in, said, words = "", "", nil
		default:
			words = nil
		}
	}
	return out
}

// withTables returns the comments of the keys of a table, and of the tables in it.
func withTables(said map[string]string, in string) map[string]string {
	out := maps.Clone(said)
	for key, words := range said {
		if key, ok := strings.CutPrefix(key, in); ok {
			out[key] = words
		}
	}
	return out
}

// describe gives each key below s its description.
func describe(s *decode.Schema, said map[string]string) {
	for i := range s.Properties {
		p := &s.Properties[i]
		p.Schema.Description = said[p.Key]
		within := &p.Schema
		if within.Items != nil {
			within = within.Items
		}
		if n := len(within.AnyOf); n > 0 {
			within = &within.AnyOf[n-1]
		}
		for j := range within.Properties {
			q := &within.Properties[j]
			q.Schema.Description = said[p.Key+"."+q.Key]
		}
	}
}

// The schemas that are kept are those of the tables that files are read by.
func TestSchemasAreUpToDate(t *testing.T) {
	for path, s := range schemas(t) {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		fatal.If(t, enc.Encode(s))
		if *update {
			fatal.If(t, os.WriteFile(path, b.Bytes(), 0o644))
		}
		if kept, err := os.ReadFile(path); err != nil || !bytes.Equal(kept, b.Bytes()) {
			t.Errorf("%s is not what the tables say (%v): run go test ./configs -update", path, err)
		}
	}
}

// Every key has a description: reference.toml speaks of all of them.
func TestSchemasDescribeEveryKey(t *testing.T) {
	var missing []string
	var walk func(at string, s decode.Schema)
	walk = func(at string, s decode.Schema) {
		for _, p := range s.Properties {
			if p.Schema.Description == "" && p.Schema.Properties == nil && at+p.Key != "$schema" && at+p.Key != "services" {
				missing = append(missing, at+p.Key)
			}
			walk(at+p.Key+".", p.Schema)
		}
		if s.Items != nil {
			walk(at, *s.Items)
		}
		for _, a := range s.AnyOf {
			walk(at, a)
		}
	}
	for _, s := range schemas(t) {
		walk("", s)
	}
	if len(missing) > 0 {
		t.Errorf("no description of %q", missing)
	}
}

// conforms returns what a schema has against a value, "" for nothing.
func conforms(s decode.Schema, v any) string {
	if len(s.AnyOf) > 0 {
		if slices.ContainsFunc(s.AnyOf, func(a decode.Schema) bool { return conforms(a, v) == "" }) {
			return ""
		}
		return fmt.Sprintf("%v is none of those wanted", v)
	}
	switch v := v.(type) {
	case string:
		if s.Type != "string" && s.Type != "" || s.Enum != nil && !slices.Contains(s.Enum, v) || !regexp.MustCompile(s.Pattern).MatchString(v) {
			return fmt.Sprintf("%q is not a %s of %q %s", v, s.Type, s.Enum, s.Pattern)
		}
	case bool:
		if s.Type != "boolean" {
			return fmt.Sprintf("%v is not a %s", v, s.Type)
		}
	case int64:
		if s.Type != "integer" || v < *s.Minimum || v > *s.Maximum {
			return fmt.Sprintf("%d is not a %s in range", v, s.Type)
		}
	case map[string]any:
		return tableConforms(s, v)
	case []map[string]any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = v[i]
		}
		return conforms(s, list)
	case []any:
		return listConforms(s, v)
	}
	return ""
}

func listConforms(s decode.Schema, list []any) string {
	if s.Type == "" {
		return ""
	}
	if s.Type != "array" || len(list) < s.MinItems {
		return fmt.Sprintf("a list of %d is not a %s", len(list), s.Type)
	}
	for i, v := range list {
		if why := conforms(*s.Items, v); why != "" {
			return fmt.Sprintf("[%d]: %s", i, why)
		}
	}
	return ""
}

func tableConforms(s decode.Schema, table map[string]any) string {
	if s.Type != "object" && s.Type != "" {
		return "a table is not a " + s.Type
	}
	for _, key := range s.Required {
		if _, ok := table[key]; !ok {
			return key + " is missing"
		}
	}
	for key, v := range table {
		i := slices.IndexFunc(s.Properties, func(p decode.Property) bool { return p.Key == key })
		below, _ := s.Others.(*decode.Schema)
		if i >= 0 {
			below = &s.Properties[i].Schema
		}
		if below == nil {
			return key + " is unknown"
		}
		if why := conforms(*below, v); why != "" {
			return key + ": " + why
		}
	}
	return ""
}

func root(t *testing.T, path string, text []byte) map[string]any {
	t.Helper()
	parse := decode.TOML
	if filepath.Ext(path) == ".json" {
		parse = decode.JSON
	}
	doc, faults := parse(path, text)
	if faults != nil {
		t.Fatal(faults)
	}
	return doc.Root
}

// What is good conforms to the schemas, and the examples name theirs.
func TestExamplesConformToSchemas(t *testing.T) {
	kept := schemas(t)
	settings, services := reference(t)
	if why := conforms(kept["svcproxy.schema.json"], any(root(t, "r.toml", []byte(settings)))); why != "" {
		t.Errorf("settings of reference.toml: %s", why)
	}
	if why := conforms(kept["service.schema.json"], any(root(t, "r.toml", []byte(services)))); why != "" {
		t.Errorf("services of reference.toml: %s", why)
	}
	for _, path := range examples(t) {
		text, err := os.ReadFile(path)
		fatal.If(t, err)
		if why := conforms(kept["service.schema.json"], any(root(t, path, text))); why != "" {
			t.Errorf("%s: %s", path, why)
		}
		up := strings.Repeat("../", strings.Count(path, "/"))
		first := "#:schema " + up + "service.schema.json\n"
		if filepath.Ext(path) == ".json" {
			first = "{\n  \"$schema\": \"" + up + "service.schema.json\",\n"
		}
		if !strings.HasPrefix(string(text), first) {
			t.Errorf("%s does not begin with %q", path, first)
		}
	}
}

// What a schema can say of a mistake, it says.
func TestSchemasRefuseMistakes(t *testing.T) {
	const svc = "[[services]]\nname = 'a'\nports = [{ port = 80 }]\n"
	tests := []struct{ schema, text, want string }{
		{"service", "", "services is missing"},
		{"service", "services = []\nx = 1", "x is unknown"},
		{"service", "services = {}", "services: a table is not a array"},
		{"service", "[[services]]\nname = 'a'", "services: [0]: ports is missing"},
		{"service", svc + "vip = []", "services: [0]: vip is unknown"},
		{"service", svc + "vips = ['web']", `services: [0]: vips: [0]: "web" is not a string of [] ^[0-9a-fA-F:.]+$`},
		{"service", svc + "namespace = 'A'", `services: [0]: namespace: "A" is not a string of [] ^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`},
		{"service", svc + "session_affinity = 'ClientIP'", `services: [0]: session_affinity: "ClientIP" is not a  of ["none" "client_ip"] `},
		{"service", svc + "session_affinity_timeout = '3 h'", `services: [0]: session_affinity_timeout: "3 h" is not a string of [] ^[-+]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`},
		{"service", svc + "health_check_node_port = 65536", "services: [0]: health_check_node_port: 65536 is not a integer in range"},
		{"service", svc + "publish_not_ready = 'yes'", `services: [0]: publish_not_ready: "yes" is not a boolean of [] `},
		{"service", svc + "endpoints = ['web:80']", "services: [0]: endpoints: [0]: web:80 is none of those wanted"},
		{"service", svc + "endpoints = [{ address = '10.0.0.1', ports = { a = 0 } }]", "services: [0]: endpoints: [0]: map[address:10.0.0.1 ports:map[a:0]] is none of those wanted"},
		{"service", svc + "[[services.endpoints]]\nport = 1", "services: [0]: endpoints: [0]: map[port:1] is none of those wanted"},
		{"service", svc + "endpoints = [{ address = '10.0.0.1', tier = 10 }]", "services: [0]: endpoints: [0]: map[address:10.0.0.1 tier:10] is none of those wanted"},
		{"service", svc + "health_check = {}", "services: [0]: health_check: type is missing"},
		{"service", svc + "health_check = { type = 'ping' }", `services: [0]: health_check: type: "ping" is not a  of ["tcp" "http" "https" "grpc" "udp" "exec" "none"] `},
		{"service", svc + "health_check = { type = 'http', rise = 256 }", "services: [0]: health_check: rise: 256 is not a integer in range"},
		{"service", svc + "health_check = { type = 'http', expect_status = ['2xx'] }", "services: [0]: health_check: expect_status: [0]: 2xx is none of those wanted"},
		{"service", svc + "[defaults.health_check]\ntype = 'tcp'\nx = 1", "defaults: health_check: x is unknown"},
		{"svcproxy", "masquerade = 'nat'", `masquerade: "nat" is not a  of ["auto" "all" "never"] `},
		{"svcproxy", "sources = []", "sources: a list of 0 is not a array"},
		{"svcproxy", "sync.x = 1", "sync: x is unknown"},
		{"svcproxy", "limits.ports = 0", "limits: ports: 0 is not a integer in range"},
	}
	kept := schemas(t)
	for _, tt := range tests {
		if got := conforms(kept[tt.schema+".schema.json"], any(root(t, "x.toml", []byte(tt.text)))); got != tt.want {
			t.Errorf("%s\n got: %s\nwant: %s", tt.text, got, tt.want)
		}
	}
}
