package repocheck

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

var (
	fence    = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	heredoc  = regexp.MustCompile(`(?ms)^cat >(\S+\.toml) <<'?EOF'?\n(.*?)^EOF$`)
	isConfig = regexp.MustCompile(`(?m)^ *(\[\[services\]\]|\[\[(?:bgp\.peers|owners)\]\]|\[(bgp|ipvs|conntrack|guard|defaults\.health_check)\]) *$`)
)

// Commands are those of a shell, and files that they write are read without a fault.
func TestDocsShellParses(t *testing.T) {
	blocks, files := 0, 0
	eachBlock(t, func(page, language, text string) {
		if language != "sh" && language != "console" {
			return
		}
		blocks++
		cmd := exec.CommandContext(t.Context(), "sh", "-n")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s\n%s", page, err, out, text)
		}
		for _, m := range heredoc.FindAllStringSubmatch(text, -1) {
			files++
			for _, f := range parseSnippet(m[1], []byte(m[2])) {
				t.Errorf("%s: %s\nin:\n%s", page, f, m[2])
			}
		}
	})
	if blocks < 10 || files == 0 {
		t.Errorf("%d blocks of commands, %d files", blocks, files)
	}
}

// Whatever looks like a file of svcproxy is marked as one, so that it is read by TestReadmeSnippets.
func TestDocsConfigIsMarked(t *testing.T) {
	found := 0
	eachBlock(t, func(page, language, text string) {
		if !isConfig.MatchString(heredoc.ReplaceAllString(text, "")) {
			return
		}
		if found++; language != "toml" {
			t.Errorf("%s: a block that is not marked as TOML:\n%s", page, text)
		}
	})
	if found < 5 {
		t.Errorf("%d files found", found)
	}
	for _, name := range pages(t) {
		text, err := os.ReadFile(name)
		fatal.If(t, err)
		if m := regexp.MustCompile(`(?m)^    \[\[services\]\]`).Find(fence.ReplaceAll(text, nil)); m != nil {
			t.Errorf("%s: a file that is indented, in place of marked as TOML", name)
		}
	}
}

// eachBlock calls f with each fenced block of each page.
func eachBlock(t *testing.T, f func(page, language, text string)) {
	t.Helper()
	for _, name := range pages(t) {
		text, err := os.ReadFile(name)
		fatal.If(t, err)
		for _, m := range fence.FindAllSubmatch(text, -1) {
			f(name, string(m[1]), string(m[2]))
		}
	}
}
