package repocheck

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

var snippet = regexp.MustCompile("(?ms)^```(toml|json)\n(.*?)^```$")

// Every snippet of README and docs is a whole file that svcproxy reads without a fault.
func TestReadmeSnippets(t *testing.T) {
	found := 0
	for _, name := range pages(t) {
		text, err := os.ReadFile(name)
		fatal.If(t, err)
		for _, m := range snippet.FindAllSubmatch(text, -1) {
			found++
			for _, f := range parseSnippet(filepath.Base(name)+"."+string(m[1]), m[2]) {
				t.Errorf("%s\nin:\n%s", f, m[2])
			}
		}
	}
	if found < 2 {
		t.Fatalf("%d snippets found, want some of TOML and of JSON", found)
	}
}

// link is one to a file of the tree.
var link = regexp.MustCompile(`\]\(([^)#:]+)\)`)

// What a page links to is there.
func TestLinksLeadSomewhere(t *testing.T) {
	for _, name := range pages(t) {
		text, err := os.ReadFile(name)
		fatal.If(t, err)
		for _, m := range link.FindAllSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), string(m[1]))); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// The layout that README shows has each folder of the rooms that code is in.
func TestReadmeLayout(t *testing.T) {
	text, err := os.ReadFile("README.md")
	fatal.If(t, err)
	_, layout, _ := strings.Cut(string(text), "## How the code is laid out")
	for _, room := range []string{"cmd/internal", "internal", "netutil", "proxier", "source", "test"} {
		entries, err := os.ReadDir(room)
		fatal.If(t, err)
		for _, e := range entries {
			if e.IsDir() && e.Name() != "testdata" && e.Name() != "internal" && !regexp.MustCompile(`\b`+e.Name()+`\b`).MatchString(layout) {
				t.Errorf("README.md says nothing of %s/%s", room, e.Name())
			}
		}
	}
}

// pages returns what users and those who work on the code read.
func pages(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob("docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("docs: %q, %v", docs, err)
	}
	return append(docs, "README.md", "CONTRIBUTING.md")
}

func parseSnippet(name string, text []byte) []source.Fault {
	if strings.Contains(string(text), "services") {
		_, faults := read.Parse(name, text)
		return faults
	}
	if filepath.Ext(name) == ".json" { // settings are in TOML
		_, faults := read.Parse("docs.endpoints.json", text)
		return faults
	}
	_, faults := configs.Parse(name, text)
	return faults
}

// What README says of the commands is what --help says: the same names.
func TestReadmeCommands(t *testing.T) {
	text, err := os.ReadFile("README.md")
	fatal.If(t, err)
	bin := filepath.Join(t.TempDir(), "svcproxy")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", bin, "./cmd/svcproxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build, which the race detector's environment differs from
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	help, err := exec.Command(bin, "--help").Output()
	fatal.If(t, err)
	var commands []string
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z]+) +[A-Z]`).FindAllSubmatch(help, -1) {
		if name := string(m[1]); name != "help" {
			commands = append(commands, name)
		}
	}
	if len(commands) < 7 {
		t.Fatalf("--help lists %q", commands)
	}
	for _, name := range commands {
		if !strings.Contains(string(text), "| `svcproxy "+name) && !strings.Contains(string(text), "`, `svcproxy "+name) { // a row may have several
			t.Errorf("README's table of commands lacks %s", name)
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `svcproxy ([a-z]+)").FindAllSubmatch(text, -1) {
		if !strings.Contains(string(help), "\n  "+string(m[1])+" ") {
			t.Errorf("--help lacks %s, which README lists", m[1])
		}
	}
}

// README opens with two commands: one that shows svcproxy at work, and one that runs all tests, which is what CI does.
func TestReadmeOpening(t *testing.T) {
	text, err := os.ReadFile("README.md")
	fatal.If(t, err)
	opening, _, _ := strings.Cut(string(text), "\n## ")
	var commands []string
	for _, m := range regexp.MustCompile(`(?m)^    (\S+)$`).FindAllStringSubmatch(opening, -1) {
		commands = append(commands, m[1])
	}
	if want := []string{"scripts/demo", "scripts/test"}; !slices.Equal(commands, want) {
		t.Errorf("README opens with the commands %q, want %q", commands, want)
	}
	ci, err := os.ReadFile(".ci/run")
	if err != nil || !strings.Contains(string(ci), "\nexec scripts/test\n") {
		t.Errorf("CI does not run the second: %v\n%s", err, ci)
	}
}
