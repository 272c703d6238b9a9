package repocheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// A name that Go has already, such as any, max or make, is not taken for another thing:
// who reads on finds that it does not mean what it means everywhere else.
func TestPredeclaredNamesKeepTheirMeaning(t *testing.T) {
	read := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{".git", ".cache", "bin", "dist"}, path) || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		read++
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, id := range shadows(set, f) {
			t.Errorf("%s: %s is a name that Go has already: choose another", set.Position(id.Pos()), id.Name)
		}
		return nil
	})
	fatal.If(t, err)
	if read < 500 {
		t.Errorf("only %d files", read)
	}
}

// shadows returns where a file declares what Go has declared, in order. Fields and
// methods may be named so: they are reached through a value.
func shadows(set *token.FileSet, f *ast.File) (found []*ast.Ident) {
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: noImporter{}, Error: func(error) {}} // it misses other files and packages
	config.Check(f.Name.Name, set, []*ast.File{f}, info)
	for id, object := range info.Defs {
		if types.Universe.Lookup(id.Name) != nil && !isMember(object) {
			found = append(found, id)
		}
	}
	slices.SortFunc(found, func(a, b *ast.Ident) int { return int(a.Pos() - b.Pos()) })
	return found
}

// isMember reports whether an object is a field or a method.
func isMember(object types.Object) bool {
	switch o := object.(type) {
	case *types.Var:
		return o.IsField()
	case *types.Func:
		return o.Signature().Recv() != nil
	}
	return false
}
