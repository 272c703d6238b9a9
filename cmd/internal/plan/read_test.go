package plan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/filetest"
	"svcproxy.dev/svcproxy/source/read"
)

// Without a daemon the files are read as one that starts would, after what was last accepted.
func TestLastGood(t *testing.T) {
	text := func(name string, i int) string {
		return fmt.Sprintf("[[services]]\nname = %q\nvips = [\"10.96.0.%d\"]\nports = [{ port = 80 }]\nendpoints = []\n", name, i)
	}
	for _, tt := range []struct {
		name   string
		do     func(dir string) error
		want   string // edits, and how many services there are before and after
		faults string // the end of the only one
	}{
		{"nothing", func(string) error { return nil }, "[] 2 2", ""},
		{"changed", func(dir string) error { return os.WriteFile(filepath.Join(dir, "a.toml"), []byte(text("a", 7)), 0o644) }, "[~default/a] 2 2", ""},
		{"new", func(dir string) error { return os.WriteFile(filepath.Join(dir, "c.toml"), []byte(text("c", 3)), 0o644) }, "[+default/c] 2 3", ""},
		{"gone", func(dir string) error { return os.Remove(filepath.Join(dir, "b.toml")) }, "[-default/b] 2 1", ""},
		{"moved", func(dir string) error { return os.Rename(filepath.Join(dir, "b.toml"), filepath.Join(dir, "c.toml")) }, "[] 2 2", ""},
		{"broken", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "b.toml"), []byte("x = 1\nservices = []\n"), 0o644)
		}, "[] 2 2", "b.toml:1:1: unknown key \"x\"; want defaults or services"},
		{"empty", func(dir string) error { return os.Truncate(filepath.Join(dir, "b.toml"), 0) }, "[] 2 2", "b.toml: the file is empty; write services = [] for a file without services"},
		{"a directory", func(dir string) error {
			return cmpErr(os.Remove(filepath.Join(dir, "b.toml")), os.Mkdir(filepath.Join(dir, "b.toml"), 0o755))
		}, "[] 2 2", "b.toml: cannot be read: it is a directory; put a file in its place"},
		{"clash", func(dir string) error { return os.WriteFile(filepath.Join(dir, "0.toml"), []byte(text("z", 1)), 0o644) }, "[] 2 2", "(" + "DIR/a.toml:3:9)"},
		{"away", os.RemoveAll, "[] 2 2", "no such file or directory"},
		{"unmounted", func(dir string) error { return cmpErr(os.RemoveAll(dir), os.Mkdir(dir, 0o755)) }, "[] 2 2", "DIR: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, state := filepath.Join(t.TempDir(), "etc"), t.TempDir()
			fatal.If(t, os.Mkdir(dir, 0o755))
			for i, name := range []string{"a", "b"} {
				fatal.If(t, os.WriteFile(filepath.Join(dir, name+".toml"), []byte(text(name, i+1)), 0o644))
			}
			fatal.If(t, errors.Join(filetest.Accept(t.Context(), dir, state), tt.do(dir)))
			r := LastGood(read.Rules{}, nil, dir, state)
			var edits []string
			for _, tr := range r.Edits {
				s := serviceOf(tr)
				edits = append(edits, map[string]string{"add": "+", "change": "~", "remove": "-"}[s.Op]+s.Name)
			}
			if got := fmt.Sprintf("%v %d %d", edits, len(r.Before), len(r.After)); got != tt.want {
				t.Errorf("edits, services before and after: %s, want %s", got, tt.want)
			}
			want := strings.ReplaceAll(tt.faults, "DIR", dir)
			if want == "" && len(r.Faults) > 0 || want != "" && (len(r.Faults) != 1 || !strings.Contains(r.Faults[0].String(), want)) {
				t.Errorf("faults: %v\nwant %s", r.Faults, want)
			}
		})
	}
}

// What was accepted stays planned where a file lost its share since, as the daemon has it.
func TestLastGoodShare(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	const text = "[[services]]\nname = \"a\"\nvips = [\"10.96.0.1\"]\nports = [{ port = 80 }]\nendpoints = []\n"
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a.toml"), []byte(text), 0o644), filetest.Accept(t.Context(), dir, state)); err != nil {
		t.Fatal(err)
	}
	owners := func() []read.Owner { return []read.Owner{{Files: []string{"a.toml"}, Namespaces: []string{"default"}}} }
	r := LastGood(read.Rules{Owners: owners}, nil, dir, state)
	if len(r.Edits) != 0 || len(r.Before) != 1 || len(r.After) != 1 {
		t.Errorf("edits %v, %d services before and %d after", r.Edits, len(r.Before), len(r.After))
	}
	if want := "10.96.0.1 is outside of addresses of owners[0] in svcproxy.toml; leave it out: it has none"; len(r.Faults) != 1 || !strings.HasSuffix(r.Faults[0].String(), want) {
		t.Errorf("faults %v, want %s", r.Faults, want)
	}
}

// A service that does not fit its list keeps the endpoints it has, as the daemon has it, and the rest of a change is planned.
func TestLastGoodList(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	service := func(vips, port string) string {
		return fmt.Sprintf("[[services]]\nname = \"web\"\nvips = [%s]\nports = [{ name = %q, port = 80 }]\nendpoints_from = \"web.endpoints.json\"\n", vips, port)
	}
	write("web.toml", service(`"10.96.0.1"`, "http"))
	write("other.toml", strings.Replace(strings.Replace(service(`"10.96.0.9"`, "http"), `"web"`, `"other"`, 1), `endpoints_from = "web.endpoints.json"`, "endpoints = []", 1))
	write("web.endpoints.json", `["10.1.0.1", "10.1.0.2"]`)
	fatal.If(t, filetest.Accept(t.Context(), dir, state))
	for _, tt := range []struct {
		name, file, list string // empty: there is none
		want             string // the edits, addresses and endpoints
		fault            string
	}{
		{"fits", service(`"10.96.0.1"`, "http"), `["10.1.0.3"]`, "1 edits, 1 addresses, 1 endpoints", ""},
		{"does not fit", service(`"10.96.0.1", "10.96.0.2"`, "http"), `[{"address": "10.1.0.3", "ports": {"web": 8080}}]`, "1 edits, 2 addresses, 2 endpoints", `the service has no port named "web"`},
		{"broken", service(`"10.96.0.1", "10.96.0.2"`, "http"), `[`, "1 edits, 2 addresses, 2 endpoints", "the text ends within a value"},
		{"gone", service(`"10.96.0.1", "10.96.0.2"`, "http"), "", "1 edits, 2 addresses, 2 endpoints", "cannot be read: no such file or directory"},
		{"the service fits neither", service(`"fd00:96::1"`, "http"), `["10.1.0.3"]`, "1 edits, 1 addresses, 1 endpoints", "endpoint 10.1.0.3 is IPv4"},
		{"the service is refused for another", service(`"10.96.0.1", "10.96.0.9"`, "http"), `["10.1.0.3"]`, "1 edits, 1 addresses, 1 endpoints", "is taken by"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			write("web.toml", tt.file)
			if tt.list == "" {
				fatal.If(t, os.Remove(filepath.Join(dir, "web.endpoints.json")))
			} else {
				write("web.endpoints.json", tt.list)
			}
			r := LastGood(read.Rules{}, nil, dir, state)
			s := r.After[1]
			if got := fmt.Sprintf("%d edits, %d addresses, %d endpoints", len(r.Edits), len(s.VIPs), len(s.Endpoints)); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if tt.fault == "" && len(r.Faults) > 0 || tt.fault != "" && (len(r.Faults) != 1 || !strings.Contains(r.Faults[0].Msg, tt.fault)) {
				t.Errorf("faults %v, want one: %s", r.Faults, tt.fault)
			}
		})
	}
}

func cmpErr(list ...error) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}
