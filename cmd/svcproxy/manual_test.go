package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"svcproxy.dev/svcproxy/cmd/internal/manual"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/read"
)

// writeManual returns all files of the manual by their path, without the signs of roff.
func writeManual(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	fatal.If(t, manual.Write(dir, (&program{}).command(), os.DirFS("../..")))
	files := map[string]string{}
	for _, pattern := range []string{"man/*/*", "completions/*/*", "index.html"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		fatal.If(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			fatal.If(t, err)
			files[strings.TrimPrefix(path, dir+"/")] = strings.NewReplacer(`\fB`, "", `\fI`, "", `\fP`, "", `\fR`, "", `\`, "").Replace(string(text))
		}
	}
	return files
}

func TestManualIsReproducible(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "86400")
	first := writeManual(t)
	t.Setenv("SOURCE_DATE_EPOCH", "")
	second := writeManual(t)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Error(diff)
	}
	for _, path := range []string{"man/man8/svcproxy.8", "man/man5/svcproxy.toml.5", "man/man5/svcproxy-service.5",
		"completions/bash/svcproxy", "completions/zsh/_svcproxy", "completions/fish/svcproxy.fish", "index.html"} {
		if first[path] == "" {
			t.Errorf("no %s", path)
		}
		delete(first, path)
	}
	if len(first) > 0 {
		t.Errorf("not expected: %q", first)
	}
}

// Every command and each of its flags has its place.
func TestManualHasCommands(t *testing.T) {
	page := writeManual(t)["man/man8/svcproxy.8"]
	for _, c := range (&program{}).command().Commands() {
		_, section, found := strings.Cut(page, "\n.SS svcproxy "+c.Name())
		section, _, _ = strings.Cut(section, "\n.S")
		if !found || !strings.Contains(page, "\nsvcproxy "+c.Name()) {
			t.Errorf("svcproxy(8) lacks %s", c.Name())
		}
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(section, "--"+f.Name) {
				t.Errorf("svcproxy(8) lacks --%s of %s", f.Name, c.Name())
			}
		})
	}
}

// Every key has its place, in the table that it is of.
func TestManualHasKeys(t *testing.T) {
	files := writeManual(t)
	for path, s := range map[string]decode.Schema{"man/man5/svcproxy.toml.5": configs.Schema(), "man/man5/svcproxy-service.5": read.Schema()} {
		sections := map[string]string{}
		for part := range strings.SplitSeq(files[path], "\n.SH ") {
			title, text, _ := strings.Cut(part, "\n")
			sections[strings.Trim(title, "[]")] = text
		}
		if path == "man/man5/svcproxy.toml.5" {
			if !strings.Contains(files[path], "\n.SH [[owners]]\n") {
				t.Error("svcproxy.toml(5) has no list of tables owners")
			}
			sections[""] = sections["KEYS"]
		}
		keysIn(t, sections, "", s)
	}
}

// keysIn looks for the keys of a table in its section, and for the tables in it.
func keysIn(t *testing.T, sections map[string]string, at string, s decode.Schema) {
	for _, p := range s.Properties {
		within := p.Schema
		if within.Items != nil {
			within = *within.Items
		}
		if n := len(within.AnyOf); n > 0 {
			within = within.AnyOf[n-1]
		}
		switch path := strings.TrimPrefix(at+"."+p.Key, "."); {
		case within.Properties != nil:
			if _, ok := sections[path]; !ok {
				t.Errorf("no section %s", path)
			}
			keysIn(t, sections, path, within)
		case p.Key != "$schema" && !strings.Contains(sections[at], "\n"+p.Key+" ("):
			t.Errorf("[%s] lacks %s", at, p.Key)
		}
	}
}
