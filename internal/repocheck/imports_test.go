package repocheck

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// forbidden says which rooms must not know which: imports go one way, from cmd
// to source and proxier, from backends to netutil, and never back.
var forbidden = []struct{ from, to string }{
	{"source", "svcproxy.dev/svcproxy/proxier"},
	{"source", "svcproxy.dev/svcproxy/netutil"},
	{"source", "svcproxy.dev/svcproxy/cmd"},
	{"source", "svcproxy.dev/svcproxy/configs"},
	{"proxier/policy", "svcproxy.dev/svcproxy/netutil"},
	{"proxier/policy", "svcproxy.dev/svcproxy/proxier/claims"},
	{"proxier/claims", "svcproxy.dev/svcproxy/netutil"},
	{"proxier/announce", "svcproxy.dev/svcproxy/netutil"},
	{"proxier/flows", "svcproxy.dev/svcproxy/netutil"},
	{"proxier/report", "svcproxy.dev/svcproxy/netutil"},
	{"proxier", "svcproxy.dev/svcproxy/cmd"},
	{"proxier", "svcproxy.dev/svcproxy/configs"},
	{"proxier", "svcproxy.dev/svcproxy/source/file"},
	{"proxier", "svcproxy.dev/svcproxy/source/decode"},
	{"proxier", "svcproxy.dev/svcproxy/source/kubernetes"},
	{"source/kubernetes", "svcproxy.dev/svcproxy/source/file"},
	{"source/remote", "svcproxy.dev/svcproxy/source/file"},
	{"source/remote", "svcproxy.dev/svcproxy/source/kubernetes"},
	{"source/http", "svcproxy.dev/svcproxy/source/file"},
	{"source/http", "svcproxy.dev/svcproxy/source/kubernetes"},
	{"source/file", "svcproxy.dev/svcproxy/source/kubernetes"},
	{"source/file", "svcproxy.dev/svcproxy/source/http"},
	{"netutil", "svcproxy.dev/svcproxy/source"},
	{"netutil", "svcproxy.dev/svcproxy/proxier"},
	{"netutil", "svcproxy.dev/svcproxy/cmd"},
	{"netutil", "svcproxy.dev/svcproxy/configs"},
	{"configs", "svcproxy.dev/svcproxy/proxier"},
	{"configs", "svcproxy.dev/svcproxy/netutil"},
	{"proxier/healthz", "svcproxy.dev/svcproxy/netutil"},
	{"test", "svcproxy.dev/svcproxy/vmtests"},
	{"vmtests/guest", "svcproxy.dev/svcproxy/test/lab"},
	{"vmtests/internal", "svcproxy.dev/svcproxy/vmtests/guest"},
}

// common are the packages that decide, or compare, and the file of records, which all others of proxier may know.
var common = []string{
	"svcproxy.dev/svcproxy/proxier/policy", "svcproxy.dev/svcproxy/proxier/claims", "svcproxy.dev/svcproxy/proxier/looks",
	"svcproxy.dev/svcproxy/proxier/bootrecord",
}

// knows are the folders of proxier that are built on others. Backends do not know each other, except for filter.
var knows = map[string][]string{
	"report":     {"flows"},
	"announce":   {"report"},
	"loop":       {"announce", "flows", "report"},
	"iptables":   {"filter"},
	"ipvs":       {"filter"},
	"conditions": {"healthcheck"},
	"healthz":    {"loop", "report"},
	"traffic":    {"report"},

	"backendtest": {"loop"},
}

// knowsAnother reports whether a file of a folder of proxier imports another one.
func knowsAnother(path, imported string) bool {
	if !within(path, "proxier") || strings.Count(path, "/") < 2 || !strings.HasPrefix(imported, "svcproxy.dev/svcproxy/proxier/") {
		return false
	}
	own := strings.Split(path, "/")[1]
	return !within(imported, "svcproxy.dev/svcproxy/proxier/"+own) && !slices.Contains(common, imported) &&
		!slices.ContainsFunc(knows[own], func(other string) bool { return within(imported, "svcproxy.dev/svcproxy/proxier/"+other) })
}

func TestImportsGoOneWay(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && path != "." && hasModule(path) {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, imported := range imports(t, path) {
			for _, f := range forbidden {
				if within(path, f.from) && within(imported, f.to) {
					t.Errorf("%s imports %s", path, imported)
				}
			}
			if knowsAnother(path, imported) {
				t.Errorf("%s imports %s: backends do not know each other", path, imported)
			}
			if (filepath.Dir(path) == "proxier" || within(path, "proxier/loop")) && within(imported, "svcproxy.dev/svcproxy/netutil") {
				t.Errorf("%s imports %s: policy knows no kernel", path, imported)
			}
			if strings.HasPrefix(imported, "k8s.io/") && !within(path, "source/kubernetes") {
				t.Errorf("%s imports %s: -tags nokubernetes would not leave it out", path, imported)
			}
		}
		return nil
	})
	fatal.If(t, err)
}

// Packages that the program itself must use, as the project was founded on them: docs/dependencies.md says for what.
var founding = []string{
	"github.com/BurntSushi/toml", "github.com/coreos/go-iptables/iptables", "github.com/fsnotify/fsnotify",
	"github.com/moby/ipvs", "github.com/ti-mo/conntrack", "github.com/vishvananda/netlink",
}

func TestProgramUsesFoundingPackages(t *testing.T) {
	const format = `{{if .Module}}{{if .Module.Main}}{{join .Imports "\n"}}{{end}}{{end}}`
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", format, "./cmd/svcproxy").Output()
	fatal.If(t, err)
	used := strings.Fields(string(out))
	for _, pkg := range founding {
		if !slices.Contains(used, pkg) {
			t.Errorf("no package of the program imports %s", pkg)
		}
	}
}

// hasModule reports whether a folder is a module of its own.
func hasModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func imports(t *testing.T, path string) []string {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	fatal.If(t, err)
	var out []string
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		fatal.If(t, err)
		out = append(out, p)
	}
	return out
}

func within(path, room string) bool { return path == room || strings.HasPrefix(path, room+"/") }
