package keepalived

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// misc makes a command of a program and its arguments. The address and the port of the real server
// among them become those of the endpoint that is asked.
func (r checkReader) misc(c *source.HealthCheck) bool {
	var line string
	dynamic := false
	c.Timeout = c.Interval // of keepalived, where no time is written
	for _, s := range r.node.sub {
		switch s.key() {
		case "misc_path":
			line = strings.Join(s.Words[1:], " ")
		case "misc_timeout":
			c.Timeout = r.seconds("misc_timeout", c.Timeout)
		case "misc_dynamic":
			dynamic = true
			r.Note(s.at, "misc_dynamic sets no weight: exit codes above 2 pass, and 2, which stood for weight 0, fails", "126 and 127 fail too: a shell has them for a program that it cannot run")
		}
	}
	words := reader.CommandWords(line)
	if len(words) == 0 {
		r.Note(r.node.at, "MISC_CHECK is left out: it has no misc_path", "")
		return false
	}
	c.Command = r.command(words, dynamic)
	return true
}

// weighs is the end of a script: of the exit codes that set a weight, that of weight 0 is a failure, and
// so are those by which a shell says that it cannot run a program.
const weighs = `; s=$?; case $s in 1|2|126|127) exit 1; esac; exit 0`

// command returns a program and its arguments. Where one is the address or port of the real server,
// a shell puts in those that the check is told: its text is fixed, and the arguments are no part of it.
func (r checkReader) command(words []string, dynamic bool) []string {
	var script strings.Builder
	var kept []string
	for i, w := range words {
		switch {
		case i > 0 && w == r.addr.String():
			script.WriteString(` "$SVCPROXY_ADDRESS"`)
		case i > 0 && r.port != 0 && w == strconv.Itoa(int(r.port)):
			script.WriteString(` "$SVCPROXY_PORT"`)
		default:
			fmt.Fprintf(&script, ` "${%d}"`, len(kept))
			kept = append(kept, w)
		}
	}
	switch {
	case dynamic:
		return slices.Concat([]string{"/bin/sh", "-c", strings.TrimSpace(script.String()) + weighs}, kept)
	case len(kept) == len(words):
		return words
	}
	return slices.Concat([]string{"/bin/sh", "-c", "exec" + script.String()}, kept)
}
