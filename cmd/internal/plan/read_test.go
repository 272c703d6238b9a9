package plan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for i, name := range []string{"a", "b"} {
				if err := os.WriteFile(filepath.Join(dir, name+".toml"), []byte(text(name, i+1)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(filetest.Accept(t.Context(), dir, state), tt.do(dir)); err != nil {
				t.Fatal(err)
			}
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

func cmpErr(list ...error) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}
