package repocheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// elsewhere are the files that log what others have said, and where that is checked
// or explained instead.
var elsewhere = map[string]string{
	"cmd/internal/daemon/follow.go":      "cmd/internal/hostsetup",
	"cmd/internal/daemon/run.go":         "cmd/internal/hostsetup",
	"cmd/internal/daemon/doubts.go":      "a fault, at its place in a file",
	"cmd/internal/hostsetup/features.go": "cmd/internal/hostsetup",
	"cmd/internal/settings/settings.go":  "a fault, at its place in a file",
	"cmd/internal/settings/lastgood.go":  "a fault, at its place in a file",
	"cmd/internal/modeswitch/switch.go":  "cmd/internal/hostsetup, cmd/internal/modes",
	"cmd/internal/control/server.go":     "cmd/internal/control/socket.go",
	"source/file/hand.go":                "damage of a kept copy",
	"cmd/internal/journal/journal.go":    "a failure of a command",
	"proxier/healthz/server.go":          "an address that cannot be listened on",
	"proxier/ipvs/owner.go":              "the callers there",
}

// composed are texts that are logged elsewhere than they are written, by where that is.
var composed = map[string]string{
	"a virtual server that service":                                           "proxier/ipvs/owner.go",
	"IPv4 forwarding is off: no endpoint on another host answers":             "cmd/internal/hostsetup/verify.go",
	"IPv6 forwarding is off: no endpoint on another host answers":             "cmd/internal/hostsetup/verify.go",
	"connection tracking takes TCP segments outside their window for invalid": "cmd/internal/hostsetup/verify.go",
	"localhost_node_ports is set but route_localnet is off":                   "cmd/internal/hostsetup/verify.go",
	"is drop, which": "cmd/internal/hostsetup/verify.go",
	"a connection of scheduler maglev that another host had before it died is refused here": "cmd/internal/hostsetup/verify.go",
}

// warnings returns the texts of all lines of the log of level warn and error, by the
// place of one of them. A text ends where a value begins.
func warnings(t *testing.T) map[string]token.Position {
	t.Helper()
	found := map[string]token.Position{}
	for _, room := range []string{"cmd", "configs", "source", "proxier", "netutil"} {
		err := filepath.WalkDir(room, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/backendtest/") {
				return err
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, path, nil, 0)
			if err != nil {
				return err
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
					warningsIn(t, set, fn, found)
				}
			}
			return nil
		})
		fatal.If(t, err)
	}
	return found
}

// warningsIn adds those of a function.
func warningsIn(t *testing.T, set *token.FileSet, fn *ast.FuncDecl, found map[string]token.Position) {
	ast.Inspect(fn, func(n ast.Node) bool {
		var where ast.Node
		switch n := n.(type) {
		case *ast.CallExpr:
			if isLogged(n) {
				where = n.Args[0]
			} else if hasLevel(n.Args) {
				where = n
			}
		case *ast.CompositeLit:
			if hasLevel(n.Elts) {
				where = n
			}
		case *ast.AssignStmt:
			if hasLevel(n.Rhs) {
				where = n
			}
		}
		if where == nil {
			return true
		}
		texts := sentences(where)
		if name, ok := where.(*ast.Ident); ok {
			texts = assigned(fn, name.Name)
		}
		pos := set.Position(where.Pos())
		if len(texts) == 0 && elsewhere[filepath.ToSlash(pos.Filename)] == "" {
			t.Errorf("%s: cannot tell what is logged here: say in the test where its text is", pos)
		}
		for _, text := range texts {
			found[text] = pos
		}
		return true
	})
}

// isLogged reports whether a call writes a line of level warn or error.
func isLogged(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || method.Sel.Name != "Warn" && method.Sel.Name != "Error" || len(call.Args) == 0 {
		return false
	}
	switch on := method.X.(type) {
	case *ast.Ident:
		return on.Name == "log" || on.Name == "slog"
	case *ast.SelectorExpr:
		return on.Sel.Name == "log" || on.Sel.Name == "Log"
	}
	return false
}

func hasLevel(list []ast.Expr) bool {
	return slices.ContainsFunc(list, func(e ast.Expr) bool {
		level, ok := e.(*ast.SelectorExpr)
		return ok && (level.Sel.Name == "LevelWarn" || level.Sel.Name == "LevelError")
	})
}

// assigned returns the texts that a variable of a function gets.
func assigned(fn *ast.FuncDecl, name string) (texts []string) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok {
			if to, ok := a.Lhs[0].(*ast.Ident); ok && to.Name == name {
				texts = append(texts, sentences(a)...)
			}
		}
		return true
	})
	return texts
}

// sentences returns the string literals of several words.
func sentences(n ast.Node) (texts []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil && (strings.Contains(text, " ") || !strings.Contains(text, "_") && len(text) > 8) {
				texts = append(texts, strings.TrimSpace(text))
			}
		}
		return true
	})
	return texts
}

// A row of docs/operations.md begins with the text of a line of the log; an alert has a section.
var (
	logRow       = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
	alertSection = regexp.MustCompile(`(?m)^### (Svcproxy\w+)$`)
	alert        = regexp.MustCompile(`(?m)^ +- alert: (\w+)$`)
	runbook      = regexp.MustCompile(`(?m)^ +runbook_url: file:///usr/share/doc/svcproxy/(docs/[a-z-]+\.md)#(\S+)$`)
	heading      = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// A reader of a warning, an error or an alert finds what to do, and finds nothing
// that is not said any more.
func TestOperationsExplainsEveryWarning(t *testing.T) {
	page, err := os.ReadFile("docs/operations.md")
	fatal.If(t, err)
	rules, err := os.ReadFile("configs/monitoring/svcproxy.rules.yml")
	fatal.If(t, err)
	logged := map[string]string{}
	for text, pos := range warnings(t) {
		logged[text] = pos.String()
	}
	for text, path := range composed {
		if code, err := os.ReadFile(path); err != nil || !strings.Contains(string(code), text) {
			t.Errorf("%s does not say %q (%v)", path, text, err)
		}
		logged[text] = path
	}
	same(t, "lines of the log", logged, names(logRow, page))
	alerts := map[string]string{}
	for name := range names(alert, rules) {
		alerts[name] = "configs/monitoring"
	}
	same(t, "alerts", alerts, names(alertSection, page))
}

// Each alert has a runbook: a section of a page that packages install, the one with its name.
func TestAlertsHaveRunbooks(t *testing.T) {
	rules, err := os.ReadFile("configs/monitoring/svcproxy.rules.yml")
	fatal.If(t, err)
	blocks := regexp.MustCompile(`(?m)^ +- alert: `).Split(string(rules), -1)[1:]
	if len(blocks) < 10 {
		t.Fatalf("%d alerts found", len(blocks))
	}
	for _, block := range blocks {
		name, _, _ := strings.Cut(block, "\n")
		m := runbook.FindStringSubmatch(block)
		if m == nil {
			t.Errorf("%s has no runbook_url", name)
			continue
		}
		if page, err := os.ReadFile(m[1]); err != nil || !anchors(page)[m[2]] || m[2] != strings.ToLower(name) {
			t.Errorf("%s: no section %s of %s with its name (%v)", name, m[2], m[1], err)
		}
	}
}

// anchors returns those that the headings of a page have in a browser.
func anchors(page []byte) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllSubmatch(page, -1) {
		plain := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(string(m[1])), "")
		found[strings.ReplaceAll(plain, " ", "-")] = true
	}
	return found
}

func names(pattern *regexp.Regexp, text []byte) map[string]bool {
	found := map[string]bool{}
	for _, m := range pattern.FindAllSubmatch(text, -1) {
		found[string(m[1])] = true
	}
	return found
}

// same tells what is in one and not in the other.
func same(t *testing.T, what string, said map[string]string, explained map[string]bool) {
	t.Helper()
	if len(said) < 10 {
		t.Errorf("%d %s found", len(said), what)
	}
	for _, text := range slices.Sorted(maps.Keys(said)) {
		if !explained[text] {
			t.Errorf("docs/operations.md lacks one of the %s: %q (%s)", what, text, said[text])
		}
	}
	for text := range explained {
		if said[text] == "" {
			t.Errorf("docs/operations.md explains what is not among the %s: %q", what, text)
		}
	}
}
