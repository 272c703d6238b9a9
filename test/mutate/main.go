// Mutate puts faults into Go files, one at a time, and says which of them a command finds: one that
// still succeeds with a fault has not found it. The files themselves stay as they are. Faults are random, or
// those of a list, for which the command is not tried without a fault, and has their mode in place of MODE:
//
//	go run ./test/mutate -n 10 proxier/policy/resolve.go proxier/policy/usable.go -- go test ./test/policy
//	go run ./test/mutate -list test/history/faults.json -- go test -tags netns -run TestHistory/MODE$ ./test/history -for 30m
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	n := flag.Int("n", 10, "how many faults are tried")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the random choice")
	list := flag.String("list", "", "a file of faults, in place of random ones")
	flag.Parse()
	split := slices.Index(flag.Args(), "--")
	files, command := flag.Args()[:max(split, 0)], flag.Args()[split+1:]
	if len(command) == 0 || (len(files) == 0) != (*list != "") {
		fmt.Fprintln(os.Stderr, "usage: mutate [-n N] [-seed N] FILE... -- COMMAND...\n       mutate -list FILE -- COMMAND...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var survived int
	var err error
	if *list != "" {
		survived, err = runList(ctx, *list, command)
	} else {
		survived, err = run(ctx, *n, *seed, files, command)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if survived > 0 {
		os.Exit(1)
	}
}

// run tries n faults of files, and returns how many the command did not find.
func run(ctx context.Context, n int, seed uint64, files, command []string) (survived int, err error) {
	var all []fault
	for _, name := range files {
		list, err := faultsOf(name)
		if err != nil {
			return 0, err
		}
		all = append(all, list...)
	}
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if err := try(ctx, nil, command); err != nil {
		return 0, fmt.Errorf("%q fails without a fault: %w", command, err)
	}
	fmt.Printf("seed %d, %d of %d possible faults\n", seed, min(n, len(all)), len(all))
	for tried := 0; tried < n && len(all) > 0; all = all[1:] {
		f, verdict := all[0], "found"
		if f.builds(ctx) != nil {
			continue
		}
		if tried++; try(ctx, &f, command) == nil {
			verdict = "NOT FOUND"
			survived++
		}
		if ctx.Err() != nil {
			return survived, ctx.Err()
		}
		fmt.Printf("%-9s  %s: %q becomes %q\n", verdict, f.pos, f.text[f.start:f.end], f.other)
	}
	return survived, nil
}

// A fault replaces a part of a file.
type fault struct {
	pos        token.Position
	text       string // of the whole file
	start, end int
	other      string
}

// opposites are operators that are taken for each other.
var opposites = map[token.Token]token.Token{
	token.LAND: token.LOR, token.LOR: token.LAND, token.EQL: token.NEQ, token.NEQ: token.EQL, token.ADD: token.SUB, token.SUB: token.ADD,
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
}

// faultsOf returns the possible faults of a file: conditions and words that are reversed, operators and
// numbers that are off by one, and statements that are left out.
func faultsOf(name string) (list []fault, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	replace := func(from, to token.Pos, other string) {
		list = append(list, fault{set.Position(from), string(text), set.Position(from).Offset, set.Position(to).Offset, other})
	}
	source := func(n ast.Node) string {
		return string(text[set.Position(n.Pos()).Offset:set.Position(n.End()).Offset])
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok == token.VAR
		case *ast.IfStmt:
			replace(n.Cond.Pos(), n.Cond.End(), "!("+source(n.Cond)+")")
		case *ast.BinaryExpr:
			if o, ok := opposites[n.Op]; ok {
				replace(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), o.String())
			}
		case *ast.Ident:
			if o, ok := map[string]string{"true": "false", "false": "true"}[n.Name]; ok {
				replace(n.Pos(), n.End(), o)
			}
		case *ast.BasicLit:
			if n.Kind == token.INT {
				replace(n.Pos(), n.End(), "("+n.Value+"+1)")
			}
		case *ast.ExprStmt:
			replace(n.Pos(), n.End(), "")
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				replace(n.Pos(), n.End(), "")
			}
		case *ast.BranchStmt:
			replace(n.Pos(), n.End(), "")
		}
		return true
	})
	return list, nil
}

// builds fails if the package of a file does not build with a fault.
func (f *fault) builds(ctx context.Context) error {
	return try(ctx, f, []string{"go", "build", "-o", os.DevNull, "./" + filepath.Dir(f.pos.Filename)})
}

// try runs a command with a fault in what it builds; nil: with none.
func try(ctx context.Context, f *fault, command []string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = os.Environ()
	if f != nil {
		dir, err := os.MkdirTemp("", "mutate")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		overlay, err := f.overlay(dir)
		if err != nil {
			return err
		}
		cmd.Env = append(cmd.Env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// overlay writes a file for go build -overlay that has the fault.
func (f *fault) overlay(dir string) (name string, err error) {
	from, err := filepath.Abs(f.pos.Filename)
	to, name := filepath.Join(dir, "faulty.go"), filepath.Join(dir, "overlay.json")
	text, _ := json.Marshal(map[string]map[string]string{"Replace": {from: to}})
	return name, errors.Join(err,
		os.WriteFile(to, []byte(f.text[:f.start]+f.other+f.text[f.end:]), 0o600),
		os.WriteFile(name, text, 0o600))
}
