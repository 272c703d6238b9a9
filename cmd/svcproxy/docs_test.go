package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/internal/fatal"
)

var (
	codeSpan  = regexp.MustCompile("`(?:/usr/sbin/|bin/)?(svcproxy [a-z]+[^`]*)`")
	codeBlock = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```$|((?:^    [^\n]*\n)+)")
	inBlock   = regexp.MustCompile(`(?m)(?:^[ $#]*|["/;(|&]|then |exec \S+ )\s*(?:\S*/)?(svcproxy [a-z]+(?: [^\n|;&>)#]*)?)`)

	// A usage says what may be given, in place of giving it.
	usageSign = regexp.MustCompile(`[\[\]|]|\.\.\.|\b[A-Z]{2,}\b|--[a-z-]+ [A-Z]\b`)
	mention   = regexp.MustCompile(`^svcproxy \w+( --[a-z-]+)*$`) // of a command, by its name
	flagName  = regexp.MustCompile(`(?:^|[ \[|(])--([a-z][a-z-]*)`)
	word      = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s]+`)
)

// commandsOf returns all calls of svcproxy that a page has.
func commandsOf(page string) (list []string) {
	for _, m := range codeBlock.FindAllStringSubmatch(page, -1) {
		for _, c := range inBlock.FindAllStringSubmatch(m[1]+m[2], -1) {
			list = append(list, c[1])
		}
	}
	for _, m := range codeSpan.FindAllStringSubmatch(codeBlock.ReplaceAllString(page, "\n"), -1) {
		for part := range strings.SplitSeq(strings.ReplaceAll(m[1], `\|`, "|"), "&&") { // | is escaped in tables
			list = append(list, strings.TrimSpace(part))
		}
	}
	return list
}

// Each command of README and docs is one that svcproxy takes: it exists, has these
// flags with such values, and takes as many arguments. Nothing is run.
func TestDocsCommands(t *testing.T) {
	paths, err := filepath.Glob("../../docs/*.md")
	fatal.If(t, err)
	found := 0
	for _, path := range append(paths, "../../README.md") {
		page, err := os.ReadFile(path)
		fatal.If(t, err)
		for _, text := range commandsOf(string(page)) {
			found++
			if why := refused(text); why != "" {
				t.Errorf("%s: %s: %s", filepath.Base(path), text, why)
			}
		}
	}
	if found < 50 {
		t.Errorf("%d commands found", found)
	}
}

// refused says why svcproxy would not take a command; "": it would.
func refused(text string) string {
	root := (&program{}).command()
	if usageSign.MatchString(text) || mention.MatchString(text) {
		return refusedUsage(root, text)
	}
	var args []string
	for _, w := range word.FindAllString(text, -1)[1:] {
		args = append(args, strings.Trim(w, `'",`))
	}
	cmd, args, err := root.Find(args)
	if err == nil && cmd != root {
		if err = cmd.ParseFlags(args); err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// refusedUsage looks for the command and the names of its flags only.
func refusedUsage(root *cobra.Command, text string) string {
	cmd, _, err := root.Find(strings.Fields(text)[1:2])
	if err != nil {
		return err.Error()
	}
	for _, m := range flagName.FindAllStringSubmatch(text, -1) {
		if cmd.Flags().Lookup(m[1]) == nil && cmd.InheritedFlags().Lookup(m[1]) == nil {
			return "unknown flag: --" + m[1]
		}
	}
	return ""
}

func TestRefusedCommands(t *testing.T) {
	page := "`svcproxy status web --sort ready`, `svcproxy stat`, and `svcproxy status [NAME ...] [--al\\|--problems]`\n\n    svcproxy explain 192.0.2.1   # too few\n\n" +
		"```sh\nip netns exec a bin/svcproxy run --masquerade-bit x &\nsvcproxy version | cat\n```\n"
	want := map[string]string{
		"svcproxy status web --sort ready":             "",
		"svcproxy stat":                                `unknown command "stat" for "svcproxy"`,
		"svcproxy status [NAME ...] [--al|--problems]": "unknown flag: --al",
		"svcproxy explain 192.0.2.1":                   "accepts 2 arg(s), received 1",
		"svcproxy run --masquerade-bit x":              `invalid argument "x" for "--masquerade-bit" flag: masquerade_bit is "x"`,
		"svcproxy version":                             "",
	}
	list := commandsOf(page)
	if len(list) != len(want) {
		t.Errorf("found %q", list)
	}
	for _, text := range list {
		why, ok := want[strings.TrimSpace(text)]
		if got := refused(text); !ok || !strings.HasPrefix(got, why) || (why == "") != (got == "") {
			t.Errorf("%s: %q", text, got)
		}
	}
}
