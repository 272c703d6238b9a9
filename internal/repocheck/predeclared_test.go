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
		for _, id := range shadows(f) {
			t.Errorf("%s: %s is a name that Go has already: choose another", set.Position(id.Pos()), id.Name)
		}
		return nil
	})
	fatal.If(t, err)
	if read < 500 {
		t.Errorf("only %d files", read)
	}
}

func TestShadows(t *testing.T) {
	const text = `package p

import min "math"

type error interface{ max(cap int) }

type box[any interface{}] struct{ len, new int }

var close, fine = 1, 2

const iota = 3

func copy(append int) (real int) {
	for delete, print := range []int{} {
		clear := func(panic, other int) {}
		clear(delete, print)
	}
	var imag, own int
	own, recover := own, imag
	switch byte := recover.(type) {
	}
	min.max, own = len(s), cap(s)
	return
}

func (string box) make() {}
`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", text, parser.SkipObjectResolution)
	fatal.If(t, err)
	var got []string
	for _, id := range shadows(f) {
		got = append(got, id.Name)
	}
	const want = "min error cap any close iota copy append real delete print clear panic imag recover byte string"
	if got := strings.Join(got, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// shadows returns where a file declares what Go has declared, in order. Fields and
// methods may be named so: they are reached through a value.
func shadows(f *ast.File) (found []*ast.Ident) {
	add := func(names ...*ast.Ident) {
		for _, id := range names {
			if id != nil && types.Universe.Lookup(id.Name) != nil {
				found = append(found, id)
			}
		}
	}
	addFields := func(lists ...*ast.FieldList) {
		for _, l := range lists {
			if l == nil {
				continue
			}
			for _, field := range l.List {
				add(field.Names...)
			}
		}
	}
	addAll := func(list ...ast.Expr) {
		for _, e := range list {
			if id, ok := e.(*ast.Ident); ok {
				add(id)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			add(n.Name)
		case *ast.TypeSpec:
			add(n.Name)
			addFields(n.TypeParams)
		case *ast.ValueSpec:
			add(n.Names...)
		case *ast.FuncDecl:
			if n.Recv == nil {
				add(n.Name)
			}
			addFields(n.Recv)
		case *ast.FuncType:
			addFields(n.TypeParams, n.Params, n.Results)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				addAll(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				addAll(n.Key, n.Value)
			}
		}
		return true
	})
	slices.SortFunc(found, func(a, b *ast.Ident) int { return int(a.Pos() - b.Pos()) })
	return found
}
