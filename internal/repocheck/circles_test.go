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

// stages are those of source/file, by the first word of the names of their files, in the order
// in which a change travels: each uses only those after it. The package doc says what they are.
var stages = []string{
	"run", "command", "look", "events", "hand", "wait", "trial", "guard", "bind", "keep", "outgoing",
	"source", "state", "removals", "check", "decisions", "read", "timing",
}

// backward are the arrows between stages that run against their order, as "from -> to", and why each has to.
var backward = map[string]string{}

func TestStagesUseLaterOnes(t *testing.T) {
	for _, fault := range offOrder(betweenStages(usesOf(t, "source/file")), stages, backward) {
		t.Errorf("source/file: %s", fault)
	}
}

// The map of the package doc is in the order that is tested.
func TestStagesInDoc(t *testing.T) {
	text, err := os.ReadFile("source/file/source.go")
	fatal.If(t, err)
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^//\t([a-z]+) {2,}\w`).FindAllSubmatch(text, -1) {
		listed = append(listed, string(m[1]))
	}
	if !slices.Equal(listed, stages) {
		t.Errorf("the doc of source/file lists\n%q, want\n%q", listed, stages)
	}
}

// betweenStages returns which stages use which others, of files that do.
func betweenStages(uses map[string]map[string]bool) map[string]map[string]bool {
	arrows := map[string]map[string]bool{}
	for from, files := range uses {
		for to := range files {
			if stageOf(from) == stageOf(to) {
				continue
			}
			if arrows[stageOf(from)] == nil {
				arrows[stageOf(from)] = map[string]bool{}
			}
			arrows[stageOf(from)][stageOf(to)] = true
		}
	}
	return arrows
}

// stageOf returns the stage of a file: check_dir.go is of check.
func stageOf(name string) string {
	stage, _, _ := strings.Cut(strings.TrimSuffix(name, ".go"), "_")
	return stage
}

// offOrder says which arrows run against an order and are not allowed to, which of those that are
// do not, and which stages have no place in the order.
func offOrder(arrows map[string]map[string]bool, order []string, allowed map[string]string) (faults []string) {
	left := maps.Clone(allowed)
	for _, from := range slices.Sorted(maps.Keys(arrows)) {
		for _, to := range slices.Sorted(maps.Keys(arrows[from])) {
			arrow, at, goal := from+" -> "+to, slices.Index(order, from), slices.Index(order, to)
			_, known := left[arrow]
			switch delete(left, arrow); {
			case at < 0 || goal < 0:
				faults = append(faults, arrow+": one of them has no place in the order")
			case at > goal && !known:
				faults = append(faults, arrow+" runs against the order")
			case at < goal && known:
				faults = append(faults, arrow+" runs with the order, and is no exception")
			}
		}
	}
	for _, arrow := range slices.Sorted(maps.Keys(left)) {
		faults = append(faults, arrow+" is gone, and no exception any more")
	}
	return faults
}

func TestOffOrder(t *testing.T) {
	arrows := betweenStages(map[string]map[string]bool{
		"a_x.go": {"a.go": true, "b.go": true}, "b.go": {"c_x.go": true}, "c.go": {"a.go": true, "b.go": true, "d.go": true},
	})
	allowed := map[string]string{"c -> b": "", "b -> c": "", "b -> a": ""}
	want := []string{
		"b -> c runs with the order, and is no exception", "c -> a runs against the order",
		"c -> d: one of them has no place in the order", "b -> a is gone, and no exception any more",
	}
	if got := offOrder(arrows, []string{"a", "b", "c"}, allowed); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestCircleIn(t *testing.T) {
	uses := map[string]map[string]bool{"a": {"b": true}, "b": {"c": true}, "c": {"d": true}, "d": {"b": true}}
	if got := strings.Join(circleIn(uses), " "); got != "b c d b" {
		t.Errorf("got %q", got)
	}
	if delete(uses, "d"); circleIn(uses) != nil {
		t.Errorf("got %q, want none", circleIn(uses))
	}
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
