package check_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy/cmd/internal/check"
	"svcproxy/configs"
	"svcproxy/source"
)

// service returns a file of one service with one port of one VIP.
func service(name, vip string) string {
	return "[[services]]\nname = \"" + name + "\"\nvips = [\"" + vip + "\"]\nports = [{ port = 80 }]\nendpoints = [\"192.0.2.1\"]\n"
}

func TestPath(t *testing.T) {
	const broken = "[[services]]\nname = \"b\"\nvips = [\"10.96.0.9\"]\nports = [{ port = 80 }]\nprot = 1\n"
	tests := []struct {
		name  string
		files map[string]string
		path  string // below the config directory; ../ is outside of it
		want  []string
	}{
		{"good directory", map[string]string{"a.toml": service("a", "10.96.0.1")}, ".", nil},
		{"every file and the settings", map[string]string{
			"svcproxy.toml": "mode = \"x\"\n", "a.toml": broken, "b.toml": "x",
		}, ".", []string{
			`svcproxy.toml:1:8: unknown mode "x"; want auto, nftables, ipvs or iptables`,
			`a.toml:5:1: `, `b.toml:1:1: `,
		}},
		{"clash in a directory", map[string]string{
			"a.toml": service("a", "10.96.0.1"), "b.toml": service("b", "10.96.0.1"),
		}, ".", []string{`b.toml:1:1: service "default/b": 10.96.0.1:80/tcp is taken by "default/a" (`}},
		{"a member that comes last", map[string]string{
			"a.toml": service("a", "10.96.0.1"), "b.toml": service("b", "10.96.0.1"),
		}, "a.toml", []string{`a.toml:1:1: service "default/a": 10.96.0.1:80/tcp is taken by "default/b" (`}},
		{"a member among faults of others", map[string]string{
			"a.toml": service("a", "10.96.0.1"), "b.toml": broken,
		}, "a.toml", nil},
		{"another file", map[string]string{
			"a.toml": service("a", "10.96.0.1"), "../b.txt": service("b", "10.96.0.1"),
		}, "../b.txt", nil},
		{"settings alone", map[string]string{"svcproxy.toml": "zones = \"x\"\n", "a.toml": broken}, "svcproxy.toml",
			[]string{`svcproxy.toml:1:1: unknown key "zones"`}},
		{"our own port", map[string]string{
			"svcproxy.toml": "http_address = \":8080\"\n",
			"a.toml":        strings.Replace(service("a", "10.96.0.1"), "port = 80", "port = 80, node_port = 8080", 1),
		}, "a.toml", []string{`a.toml:1:1: service "default/a": port 8080/tcp is the one svcproxy itself listens on`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "etc")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for name, text := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			faults, err := check.Path(filepath.Join(dir, tt.path), dir, configs.Load)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, dir, tt.want, faults)
		})
	}
}

// compare wants one fault for each beginning of a line.
func compare(t *testing.T, dir string, want []string, faults []source.Fault) {
	t.Helper()
	var got []string
	for i, f := range faults {
		line := strings.TrimPrefix(f.String(), dir+"/")
		if i < len(want) && strings.HasPrefix(line, want[i]) {
			line = want[i]
		}
		got = append(got, line)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "none.toml")} {
		if faults, err := check.Path(path, dir, configs.Load); !errors.Is(err, fs.ErrNotExist) || faults != nil {
			t.Errorf("Path(%s) = %v, %v; want that it does not exist", path, faults, err)
		}
	}
}
