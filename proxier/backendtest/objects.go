package backendtest

import (
	"regexp"
	"strings"
)

// FilterObjects adds to objects what a program such as iptables-save, and ipset save, print
// of the chains, jumps and sets of ours, as Plan names them. tool is iptables or ip6tables.
func FilterObjects(objects map[string]string, tool, saved string) {
	for _, builtIn := range builtInChains { // exist always, whether they have jumps or not
		objects[tool+" jumps of "+builtIn] = ""
	}
	table := ""
	for line := range strings.Lines(saved) {
		word := strings.Fields(line)
		switch {
		case len(word) == 0:
		case strings.HasPrefix(line, "*"):
			table = strings.TrimSpace(line[1:])
		case strings.HasPrefix(line, ":SVCP-"):
			objects[tool+" chain "+table+" "+word[0][1:]] += ""
		case word[0] == "-A" && strings.HasPrefix(word[1], "SVCP-"):
			objects[tool+" chain "+table+" "+word[1]] += line
		case word[0] == "-A" && ourJump.MatchString(line):
			objects[tool+" jumps of "+table+" "+word[1]] += line
		case word[0] == "create" && strings.HasPrefix(word[1], "SVCP-"):
			objects["ip set "+word[1]] = strings.Join(word[2:], " ")
		case word[0] == "add" && strings.HasPrefix(word[1], "SVCP-"):
			objects["ip set "+word[1]+" member "+strings.Join(word[2:], " ")] = ""
		}
	}
}

var builtInChains = []string{
	"filter INPUT", "filter FORWARD", "filter OUTPUT",
	"nat PREROUTING", "nat INPUT", "nat OUTPUT", "nat POSTROUTING",
	"mangle PREROUTING", "mangle INPUT", "mangle FORWARD", "mangle OUTPUT", "mangle POSTROUTING",
}

var ourJump = regexp.MustCompile(`(-j|-g) SVCP-\S+\s*$`)

// FilterNamed is Host.Named of what FilterObjects lists.
func FilterNamed(planned string) (name, holds string) { return planned, "" }
