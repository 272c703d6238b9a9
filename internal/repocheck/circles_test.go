package repocheck

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// inFloors are the folders with so many files that a reader needs them in an order: each
// uses only what files below it have, and none is used by what it uses.
var inFloors = []string{"netutil/nft", "proxier/nftables", "proxier/nftables/layout", "source/file", "source/keep"}

func TestFilesUseNoneThatUsesThem(t *testing.T) {
	for _, dir := range inFloors {
		uses := usesOf(t, dir)
		if len(uses) < 5 {
			t.Fatalf("%s: only %d files use another: are they read?", dir, len(uses))
		}
		if circle := circleIn(uses); circle != nil {
			t.Errorf("%s: files use each other: %s", dir, strings.Join(circle, " -> "))
		}
	}
}

// Each stage of source/file uses only those after it: the package doc lists them, by the first word of the
// names of their files, in the order in which a change travels.
func TestStagesUseLaterOnes(t *testing.T) {
	text, err := os.ReadFile("source/file/source.go")
	fatal.If(t, err)
	var stages []string
	for _, m := range regexp.MustCompile(`(?m)^//\t([a-z]+) {2,}\w`).FindAllSubmatch(text, -1) {
		stages = append(stages, string(m[1]))
	}
	for from, files := range usesOf(t, "source/file") {
		at := slices.Index(stages, stageOf(from))
		for to := range files {
			if goal := slices.Index(stages, stageOf(to)); at < 0 || goal < at {
				t.Errorf("source/file: %s uses %s, which is an earlier stage, or none: the doc lists %q", from, to, stages)
			}
		}
	}
}

// stageOf returns the stage of a file: check_dir.go is of check.
func stageOf(name string) string {
	stage, _, _ := strings.Cut(strings.TrimSuffix(name, ".go"), "_")
	return stage
}

// usesOf returns, of each file of a package, in which others the functions, types, methods,
// fields and variables stand that it names. Other packages are not read, so what is
// reached through their types is not seen.
func usesOf(t *testing.T, dir string) map[string]map[string]bool {
	t.Helper()
	set := token.NewFileSet()
	files := parseDir(t, set, dir)
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: noImporter{}, Error: func(error) {}} // it misses other packages only
	pkg, _ := config.Check(dir, set, files, info)
	for _, f := range files {
		addUnchecked(f, pkg, info)
		leaveOutReceivers(f, info)
	}
	uses := map[string]map[string]bool{}
	for id, object := range info.Uses {
		from, to := fileOf(set, id), fileOf(set, object)
		if object.Pkg() != pkg || from == to {
			continue
		}
		if uses[from] == nil {
			uses[from] = map[string]bool{}
		}
		uses[from][to] = true
	}
	return uses
}

// parseDir reads the files of a package but its tests.
func parseDir(t *testing.T, set *token.FileSet, dir string) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	fatal.If(t, err)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		fatal.If(t, err)
		files = append(files, f)
	}
	return files
}

// addUnchecked adds the types that are asserted of what other packages have, as in e.(raw): the
// checker does not know that, and passes over them.
func addUnchecked(f *ast.File, pkg *types.Package, info *types.Info) {
	ast.Inspect(f, func(n ast.Node) bool {
		if a, ok := n.(*ast.TypeAssertExpr); ok {
			if id, ok := a.Type.(*ast.Ident); ok && info.Uses[id] == nil && pkg.Scope().Lookup(id.Name) != nil {
				info.Uses[id] = pkg.Scope().Lookup(id.Name)
			}
		}
		return true
	})
}

// leaveOutReceivers forgets the types that methods are of: they may stand in any file.
func leaveOutReceivers(f *ast.File, info *types.Info) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
			ast.Inspect(fn.Recv, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					delete(info.Uses, id)
				}
				return true
			})
		}
	}
}

func fileOf(set *token.FileSet, at interface{ Pos() token.Pos }) string {
	return filepath.Base(set.Position(at.Pos()).Filename)
}

// A noImporter knows no package.
type noImporter struct{}

func (noImporter) Import(string) (*types.Package, error) { return nil, errors.New("not read") }

// circleIn returns a way from a file back to it; nil: there is none.
func circleIn(uses map[string]map[string]bool) []string {
	done := map[string]bool{}
	for _, from := range slices.Sorted(maps.Keys(uses)) {
		if circle := follow(uses, []string{from}, done); circle != nil {
			return circle
		}
	}
	return nil
}

func follow(uses map[string]map[string]bool, way []string, done map[string]bool) []string {
	at := way[len(way)-1]
	if i := slices.Index(way, at); i < len(way)-1 {
		return way[i:]
	}
	if done[at] {
		return nil
	}
	for _, next := range slices.Sorted(maps.Keys(uses[at])) {
		if circle := follow(uses, append(way, next), done); circle != nil {
			return circle
		}
	}
	done[at] = true
	return nil
}
