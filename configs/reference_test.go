package configs_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/read"
)

var comparePrefix = cmp.Options{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
}

// reference returns the two parts of reference.toml: the settings as they stand,
// and the service file without the marks that make it a comment.
func reference(t *testing.T) (settings, services string) {
	t.Helper()
	data, err := os.ReadFile("reference.toml")
	fatal.If(t, err)
	settings, rest, found := strings.Cut(string(data), "## ----")
	if !found {
		t.Fatal("reference.toml has no second part")
	}
	for line := range strings.Lines(rest) {
		if line, ok := strings.CutPrefix(line, "# "); ok {
			services += line
		}
	}
	return settings, services
}

func TestReferenceIsDefault(t *testing.T) {
	settings, _ := reference(t)
	got, faults := configs.Parse("reference.toml", []byte(settings))
	if faults != nil {
		t.Fatal(faults)
	}
	if diff := cmp.Diff(configs.Default(), got, comparePrefix); diff != "" {
		t.Errorf("reference.toml (-default +written):\n%s", diff)
	}
	whole, _ := os.ReadFile("reference.toml")
	if _, faults := configs.Parse("reference.toml", whole); faults != nil {
		t.Error(faults)
	}
}

func TestReferenceService(t *testing.T) {
	_, services := reference(t)
	if _, faults := read.Parse("reference.toml", []byte(services)); faults != nil {
		t.Errorf("the second part of reference.toml: %v\n%s", faults, services)
	}
}

// keysOf has a parser list the keys of a table, by giving it one that it does not know.
func keysOf(t *testing.T, hint string) []string {
	t.Helper()
	hint, ok := strings.CutPrefix(hint, "want ")
	if !ok {
		t.Fatalf("no list of keys in %q", hint)
	}
	return regexp.MustCompile(", | or ").Split(hint, -1)
}

// tablesOf returns the names of all tables of svcproxy.toml, and that of its top.
func tablesOf(s decode.Schema) []string {
	names := []string{""}
	for _, p := range s.Properties {
		if p.Schema.Type == "object" {
			names = append(names, p.Key)
		}
	}
	return names
}

func TestReferenceHasEveryKey(t *testing.T) {
	settings, services := reference(t)
	for _, table := range tablesOf(configs.Schema()) {
		text, part := "qqqqqqqqqq = 1", settings
		if table != "" {
			text = "[" + table + "]\n" + text
			_, part, _ = strings.Cut(settings, "\n["+table+"]\n")
		}
		part, _, _ = strings.Cut(part, "\n[")
		part, _, _ = strings.Cut(part, "\n#[[")
		_, faults := configs.Parse("x.toml", []byte(text))
		for _, key := range keysOf(t, faults[len(faults)-1].Hint) {
			if !regexp.MustCompile(`(?m)^#?`+key+` = `).MatchString(part) && !strings.Contains(settings, "\n["+key+"]\n") && !strings.Contains(settings, "\n#[["+strings.TrimPrefix(table+"."+key, ".")+"]]\n") {
				t.Errorf("reference.toml lacks %q of [%s]", key, table)
			}
		}
	}
	for _, list := range []string{"[[bgp.peers]]", "[[owners]]"} {
		_, part, _ := strings.Cut(settings, "\n#"+list+"\n")
		part, _, _ = strings.Cut(part, "\n[")
		_, faults := configs.Parse("x.toml", []byte(list+"\nqqqqqqqqqq = 1"))
		for _, key := range keysOf(t, faults[len(faults)-1].Hint) {
			if !regexp.MustCompile(`(?m)^#` + key + ` = `).MatchString(part) {
				t.Errorf("reference.toml lacks %q of %s", key, list)
			}
		}
	}
	tables := map[string]string{
		`\[\[services\]\]`:            "[[services]]\nqqqqqqqqqq = 1",
		`\[\[services\.ports\]\]`:     "[[services]]\n[[services.ports]]\nqqqqqqqqqq = 1",
		`\[\[services\.endpoints\]\]`: "[[services]]\n[[services.endpoints]]\nqqqqqqqqqq = 1",
		`\[services\.health_check\]`:  "[[services]]\n[services.health_check]\nqqqqqqqqqq = 1",
		`\[defaults\]`:                "services = []\n[defaults]\nqqqqqqqqqq = 1",
	}
	for header, text := range tables {
		_, faults := read.Parse("x.toml", []byte(text))
		for _, key := range keysOf(t, faults[len(faults)-1].Hint) {
			if !regexp.MustCompile(`(?m)^ *` + key + ` = |\.` + key + `\]`).MatchString(services) {
				t.Errorf("reference.toml lacks %q of %s", key, header)
			}
		}
	}
}

func TestExamplesAreValid(t *testing.T) {
	want := map[string][]string{
		"web.toml":        {"default/web"},
		"dual-stack.toml": {"default/shop"},
		"checks.toml":     {"default/cart", "default/mail", "default/sessions"},
		"defaults.toml":   {"shop/cart", "shop/checkout", "shop/events"},
		"dns.toml":        {"infra/dns"},
		"ingress.toml":    {"default/ingress"},
		"media.toml":      {"default/media"},
		"node-ports.json": {"monitoring/metrics"},
		"weights.toml":    {"default/api"},

		"keepalived/web.toml": {"default/web"},
	}
	got := map[string][]string{}
	paths := examples(t)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		fatal.If(t, err)
		services, faults := read.Parse(path, data)
		if faults != nil {
			t.Errorf("%s: %v", path, faults)
		}
		for _, s := range services {
			name := strings.TrimPrefix(path, "examples/")
			got[name] = append(got[name], s.Key.String())
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("examples (-want +got):\n%s", diff)
	}
	if slices.Contains(paths, "examples/svcproxy.toml") {
		t.Error("an example has the name of the settings")
	}
}

// examples returns the service files among the examples.
func examples(t *testing.T) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"examples/*.*", "examples/keepalived/web.toml"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		paths = append(paths, found...)
	}
	return paths
}

// Settings that are shown with an example are whole.
func TestExampleSettingsAreWhole(t *testing.T) {
	for _, path := range []string{"examples/keepalived/svcproxy.toml", "examples/notify/svcproxy.toml"} {
		data, err := os.ReadFile(path)
		fatal.If(t, err)
		if _, faults := configs.Parse(path, data); faults != nil {
			t.Error(faults)
		}
		if why := conforms(schemas(t)["svcproxy.schema.json"], any(root(t, path, data))); why != "" {
			t.Errorf("%s: %s", path, why)
		}
	}
}
