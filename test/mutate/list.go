package main

import (
	"context"
	"encoding/json"
	"fmt"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A listed fault is one that svcproxy once had.
type listed struct {
	Name    string // what it does
	From    string // where it was described
	Mode    string // in which it shows
	File    string // from the folder with go.mod on
	Was     string // the text of File that it replaces, which is there once
	Becomes string
}

// readList reads a file of faults, which are in files below root.
func readList(name, root string) (faults []fault, list []listed, err error) {
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading faults: %w", err)
	}
	for _, l := range list {
		text, err := os.ReadFile(filepath.Join(root, l.File))
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", l.Name, err)
		}
		before, after, _ := strings.Cut(string(text), l.Was)
		if n := strings.Count(string(text), l.Was); n != 1 || l.Was == l.Becomes {
			return nil, nil, fmt.Errorf("%s: %s has %d times what it replaces, want one", l.Name, l.File, n)
		}
		at := token.Position{Filename: filepath.Join(root, l.File), Line: 1 + strings.Count(before, "\n")}
		faults = append(faults, fault{at, string(text), len(before), len(text) - len(after), l.Becomes})
	}
	return faults, list, nil
}

// runList tries the faults of a file, and returns how many the command did not find. What the command said is
// kept in a file for each fault.
func runList(ctx context.Context, name string, command []string) (survived int, err error) {
	faults, list, err := readList(name, ".")
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "svcproxy-faults-")
	if err != nil {
		return 0, err
	}
	for i := range faults {
		if err := faults[i].builds(ctx); err != nil {
			return 0, fmt.Errorf("%s: %w", list[i].Name, err)
		}
		words := make([]string, len(command))
		for j, w := range command {
			words[j] = strings.ReplaceAll(w, "MODE", list[i].Mode)
		}
		start, verdict := time.Now(), "found"
		said := try(ctx, &faults[i], words)
		if ctx.Err() != nil {
			return survived, ctx.Err()
		}
		if said == nil {
			verdict = "NOT FOUND"
			survived++
		}
		log := filepath.Join(dir, fmt.Sprint(i+1))
		if err := os.WriteFile(log, fmt.Append(nil, said), 0o600); err != nil {
			return survived, err
		}
		fmt.Printf("%-9s  after %v, %s: %s (%s), see %s\n", verdict, time.Since(start).Round(time.Second), list[i].Mode, list[i].Name, list[i].From, log)
	}
	return survived, nil
}
