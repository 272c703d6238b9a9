package repocheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
)

// namesOfOtherThings are files that write the name of a mode and mean another thing.
var namesOfOtherThings = []string{
	"configs/schema.go",                 // the table [ipvs] of svcproxy.toml
	"cmd/internal/settings/settings.go", // the same
	"proxier/filter/layout/ipvs.go",     // a match of iptables
	"cmd/internal/convert/convert.go",   // the program iptables
}

// asModes are files for which a mode of that name is what they are about.
var asModes = []string{
	"cmd/internal/modes/modes.go",   // describes them
	"cmd/internal/convert/judge.go", // reads what was written for IPVS
}

// A mode is named where it is described, by its text or its variable. Code elsewhere asks its descriptor.
func TestModesAreNamedOnce(t *testing.T) {
	var names []string
	for _, m := range configs.Modes {
		names = append(names, m.Name)
	}
	for _, room := range []string{"cmd", "configs", "proxier", "source"} {
		err := filepath.WalkDir(room, func(path string, _ fs.DirEntry, err error) error {
			other := path == "configs/modes.go" || slices.Contains(namesOfOtherThings, path)
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || other {
				return err
			}
			if name := modeVariable(t, path); name != "" && !slices.Contains(asModes, path) {
				t.Errorf("%s asks for %s; its descriptor in cmd/internal/modes can say what is asked", path, name)
			}
			for _, text := range literals(t, path) {
				if slices.Contains(names, text) {
					t.Errorf("%s names the mode %q; its descriptor in cmd/internal/modes can say what is asked", path, text)
				}
			}
			return nil
		})
		fatal.If(t, err)
	}
}

// modeVariable returns what a file of Go has of configs' variables of single modes; empty: none.
func modeVariable(t *testing.T, path string) (name string) {
	ast.Inspect(parsed(t, path), func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && strings.HasSuffix(sel.Sel.Name, "Mode") {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "configs" {
				name = "configs." + sel.Sel.Name
			}
		}
		return true
	})
	return name
}

func parsed(t *testing.T, path string) *ast.File {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	fatal.If(t, err)
	return f
}

// literals returns the strings that a file of Go writes.
func literals(t *testing.T, path string) (all []string) {
	ast.Inspect(parsed(t, path), func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, err := strconv.Unquote(lit.Value)
			fatal.If(t, err)
			all = append(all, text)
		}
		return true
	})
	return all
}
