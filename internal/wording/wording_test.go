//go:build !race

package wording

import (
	_ "embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// kept is a message that people's searches of logs rely on, and so the lab's.
const kept = "another program changed our table; repairing it"

//go:embed banned.txt
var banned string

// A rule is a pattern that must not match, and what to write instead.
type rule struct {
	pattern *regexp.Regexp
	instead string
}

// A vocabulary is the rules, and one pattern of all of them: a text is read once.
type vocabulary struct {
	rules []rule
	any   *regexp.Regexp
}

func newVocabulary(t *testing.T, text string) *vocabulary {
	t.Helper()
	v, all := &vocabulary{}, []string(nil)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, instead, ok := strings.Cut(line, " => ")
		if !ok {
			t.Fatalf("%q is not PATTERN => INSTEAD", line)
		}
		pattern = strings.TrimSpace(pattern)
		v.rules, all = append(v.rules, rule{regexp.MustCompile(`(?i)^(?:` + pattern + `)$`), instead}), append(all, pattern)
	}
	v.any = regexp.MustCompile(`(?i)\b(?:` + strings.Join(all, "|") + `)\b`)
	return v
}

// in returns where a text has what a rule bans, as "LINE: what, write this instead".
func (v *vocabulary) in(text string) (found []string) {
	text = words(strings.ReplaceAll(text, kept, ""))
	for _, at := range v.any.FindAllStringIndex(text, -1) {
		what := text[at[0]:at[1]]
		i := slices.IndexFunc(v.rules, func(r rule) bool { return r.pattern.MatchString(what) })
		line := 1 + strings.Count(text[:at[0]], "\n")
		found = append(found, strconv.Itoa(line)+": \""+what+"\"; write "+v.rules[i].instead)
	}
	return found
}

// faults returns where the name of a file, as line 0, or its text has what a rule bans.
func (v *vocabulary) faults(path, text string) (found []string) {
	for _, f := range v.in(path) {
		found = append(found, path+":0: "+strings.TrimPrefix(f, "1: "))
	}
	for _, f := range v.in(text) {
		found = append(found, path+":"+f)
	}
	return found
}

// words returns a text with a space between the words of each identifier and file name:
// "TestHTTPServer2" is "Test HTTP Server 2", and "too_old_test.go" "too old test.go".
func words(text string) string {
	var out strings.Builder
	out.Grow(len(text) + len(text)/16)
	start := 0
	for i := 1; i < len(text); i++ {
		before, here := text[i-1], text[i]
		switch {
		case here == '_':
			out.WriteString(text[start:i] + " ")
			start = i + 1
		case isUpper(here) && (isLower(before) || isDigit(before)), isDigit(here) && (isLower(before) || isUpper(before)),
			isUpper(here) && isUpper(before) && i+1 < len(text) && isLower(text[i+1]):
			out.WriteString(text[start:i] + " ")
			start = i
		}
	}
	return out.String() + text[start:]
}

func isUpper(b byte) bool { return 'A' <= b && b <= 'Z' }
func isLower(b byte) bool { return 'a' <= b && b <= 'z' }
func isDigit(b byte) bool { return '0' <= b && b <= '9' }

func TestWordsOfIdentifiers(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "_": "_", "a": "a", "plain text.": "plain text.", "TestHTTPServer2": "Test HTTP Server 2", "too_old_test.go": "too old test.go",
		"ofTheURL": "of The URL", "IPs of A VIP\nnext": "I Ps of A VIP\nnext", "SOME_NAME_": "SOME NAME ", "größe": "größe",
	} {
		if got := words(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestFaultsOfWording(t *testing.T) {
	v := newVocabulary(t, "# some\n\ntells? whether => \"reports whether\"\nmends?|mended => repair\n")
	for text, want := range map[string][]string{
		"// Empty tells whether it is.\n// It retells whetherever, recommends, is mendable.\n": {`1: "tells whether"; write "reports whether"`},
		"a\n\nfunc TestMendsAfterDelta(t *testing.T) {\n":                                      {`3: "Mends"; write repair`},
		"x := mendPatience + isMended":                                                         {`1: "mend"; write repair`, `1: "Mended"; write repair`},
		"HTTPMend(tellsWhether)":                                                               {`1: "Mend"; write repair`, `1: "tells Whether"; write "reports whether"`},
		"time_to_mend = MEND_2":                                                                {`1: "mend"; write repair`, `1: "MEND"; write repair`},
		"mend1 amended commendable Recommend":                                                  {`1: "mend"; write repair`},
	} {
		if got := v.in(text); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	want := []string{`a/mend_netns_test.go:0: "mend"; write repair`, `a/mend_netns_test.go:2: "Mended"; write repair`}
	if got := v.faults("a/mend_netns_test.go", "package a\n// isMended\n"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What people read: code, documentation, settings, units and scripts, and the names of
// their files. Left out are what tests feed the program.
func TestWording(t *testing.T) {
	v := newVocabulary(t, banned)
	for _, path := range files(t) {
		text, err := os.ReadFile(filepath.Join("../..", path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		fatal.If(t, err)
		for _, f := range v.faults(path, string(text)) {
			t.Error(f)
		}
	}
}

// skipped are folders whose files are not read: what was built, and what tests feed the
// program.
var skipped = regexp.MustCompile(`(^|/)(\.git|\.cache|\.vagrant|bin|dist|node_modules|testdata)$|^internal/wording$`)

var read = regexp.MustCompile(`\.(go|md|toml|service|conf|sh|json|ya?ml|html|c?tmpl|hcl)$|(^|/)(Makefile|Vagrantfile)$|^(scripts|packaging|systemd)/`)

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
		case d.Type().IsRegular() && read.MatchString(path):
			paths = append(paths, path)
		}
		return nil
	})
	fatal.If(t, err)
	if len(paths) < 100 {
		t.Fatalf("only %d files", len(paths))
	}
	return paths
}

func TestFilesRead(t *testing.T) {
	paths := files(t)
	for _, path := range []string{
		"CHANGELOG.md", "Makefile", "scripts/test", "packaging/deb/postinst", "packaging/nfpm.yaml", "test/lab/cases_test.go", "systemd/svcproxy.service",
		"configs/kubernetes/rbac.yaml", "configs/monitoring/svcproxy.rules.yml", "configs/reference.toml", "configs/service.schema.json",
		"configs/examples/templates/web.endpoints.toml.ctmpl", "cmd/internal/manual/book.html",
	} {
		if !slices.Contains(paths, path) {
			t.Errorf("%s is not read", path)
		}
	}
	for _, path := range paths {
		if strings.Contains(path, "testdata/") {
			t.Errorf("%s is read", path)
		}
	}
}
