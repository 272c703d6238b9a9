//go:build !race

package wording

import (
	_ "embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// kept is a message that people's searches of logs rely on, and so the lab's.
const kept = "somebody else changed our table: mending it"

//go:embed banned.txt
var banned string

// A rule is a pattern that must not match, and what to write instead.
type rule struct {
	pattern *regexp.Regexp
	instead string
}

func rules(t *testing.T) (rs []rule) {
	t.Helper()
	for line := range strings.Lines(banned) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, instead, ok := strings.Cut(line, " => ")
		if !ok {
			t.Fatalf("%q is not PATTERN => INSTEAD", line)
		}
		rs = append(rs, rule{regexp.MustCompile(`(?i)\b(` + strings.TrimSpace(pattern) + `)\b`), instead})
	}
	return rs
}

// faults returns where text has what a rule bans, as "LINE: what, write this instead".
func faults(rs []rule, path, text string) (found []string) {
	for i, line := range strings.Split(text, "\n") {
		line = strings.ReplaceAll(line, kept, "")
		for _, r := range rs {
			if m := r.pattern.FindString(line); m != "" {
				found = append(found, path+":"+strconv.Itoa(i+1)+": \""+m+"\"; write "+r.instead)
			}
		}
	}
	return found
}

func TestFaults(t *testing.T) {
	rs := []rule{{regexp.MustCompile(`(?i)\b(tells? whether)\b`), "reports whether"}}
	got := faults(rs, "a.go", "// Empty tells whether it is.\n// It retells whetherever.\n")
	if want := `a.go:1: "tells whether"; write reports whether`; len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What people read: code, documentation, settings, units and scripts. Left out are what
// tests feed the program, and the lab, whose cases stay as they are.
func TestWording(t *testing.T) {
	rs := rules(t)
	for _, path := range files(t) {
		text, err := os.ReadFile(filepath.Join("../..", path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range faults(rs, path, string(text)) {
			t.Error(f)
		}
	}
}

// skipped are folders whose files are not read: what was built, what tests feed the
// program, and what stays as it is.
var skipped = regexp.MustCompile(`(^|/)(\.git|\.cache|\.vagrant|bin|dist|node_modules|testdata)$|^internal/wording$|^test/lab$`)

var read = regexp.MustCompile(`\.(go|md|toml|service|conf|sh|json)$|^Makefile$|^scripts/`)

// files returns the paths of what is read, below the folder of the project.
func files(t *testing.T) (paths []string) {
	t.Helper()
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // another test has removed what it made
			return nil
		case err != nil:
			return err
		case d.IsDir() && skipped.MatchString(path):
			return fs.SkipDir
		case d.Type().IsRegular() && read.MatchString(path) && path != "CHANGELOG.md":
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < 100 {
		t.Fatalf("only %d files", len(paths))
	}
	return paths
}
