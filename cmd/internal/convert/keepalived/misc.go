package keepalived

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// A misc is a program with its arguments, of MISC_CHECK.
type misc struct {
	words   []string
	told    map[string]string // environment variables that replace arguments: the address and the port of the endpoint
	dynamic bool              // exit codes above 1 set a weight
	addr    netip.Addr
}

// program makes a command of a program and its arguments. The address and the port of the real server
// among them become those of the endpoint that is asked.
func (r *checkReader) program(c *source.HealthCheck) bool {
	m := misc{addr: r.addr, told: map[string]string{r.addr.String(): `"$SVCPROXY_ADDRESS"`}}
	if r.port == r.own {
		m.told[strconv.Itoa(int(r.port))] = `"$SVCPROXY_PORT"`
	}
	c.Timeout = c.Interval // of keepalived, where no time is written
	for _, s := range r.node.sub {
		switch s.key() {
		case "misc_path":
			if m.words = slices.Clone(s.Words[1:]); len(m.words) == 1 { // in quotes, as a rule
				m.words, _ = reader.OfCommands.Split(m.words[0])
			}
		case "misc_timeout":
			c.Timeout = r.seconds("misc_timeout", c.Timeout)
		case "misc_dynamic":
			m.dynamic = true
			r.Note(s.At, "misc_dynamic sets no weight: exit codes above 2 pass, and 2, which stood for weight 0, fails", "126 and 127 fail too: a shell has them for a program that it cannot run")
		}
	}
	if len(m.words) == 0 {
		r.Note(r.node.At, "MISC_CHECK is left out: it has no misc_path", "")
		return false
	}
	r.misc = m
	isTold := func(word string) bool { return m.told[word] != "" }
	if c.Command = m.words; m.dynamic || slices.ContainsFunc(m.words[1:], isTold) {
		c.Command = shell([]misc{m})
	}
	return true
}

// weighs is the end of a script: of the exit codes that set a weight, that of weight 0 is a failure, and
// so are those by which a shell says that it cannot run a program.
const weighs = `; s=$?; case $s in 1|2|126|127) exit 1; esac; exit 0`

// shell returns a command that runs a program in a shell. Of several programs it runs the one of the endpoint that is
// checked, and passes an endpoint without a program. Words are arguments of the script, never part of its text.
func shell(miscs []misc) []string {
	var script strings.Builder
	var kept []string
	numbers := map[string]int{}
	several, dynamic := len(miscs) > 1, false
	for _, m := range miscs {
		if several {
			fmt.Fprintf(&script, " %s)", m.addr)
		}
		if dynamic = dynamic || m.dynamic; !m.dynamic {
			script.WriteString(" exec")
		}
		for k, w := range m.words {
			if m.told[w] != "" && k > 0 {
				script.WriteString(" " + m.told[w])
				continue
			}
			i, known := numbers[w]
			if !known {
				i, numbers[w], kept = len(kept), len(kept), append(kept, w)
			}
			fmt.Fprintf(&script, ` "${%d}"`, i)
		}
		if several {
			script.WriteString(" ;;")
		}
	}
	text := strings.TrimSpace(script.String())
	if several {
		text = `case "$SVCPROXY_ADDRESS" in ` + text + " esac"
	}
	if dynamic {
		text += weighs
	}
	return slices.Concat([]string{"/bin/sh", "-c", text}, kept)
}

// dispatch joins the different programs of real servers into one check, and reports whether it did. It requires that
// addresses and times allow it.
func dispatch(checks []reader.Checked, miscs []misc) bool {
	var all []misc
	var first *source.HealthCheck
	differ := false
	addrs := map[netip.Addr]bool{}
	for i, c := range checks {
		m := miscs[i]
		switch {
		case addrs[m.addr] || m.addr.Zone() != "": // a zone may be any text
			return false
		case c.Check == nil:
			continue
		case first == nil:
			first = c.Check
		case c.Check.Type != first.Type || c.Check.Interval != first.Interval || c.Check.Timeout != first.Timeout || c.Check.Fall != first.Fall:
			return false
		}
		differ = differ || !slices.Equal(c.Check.Command, first.Command)
		addrs[m.addr], all = true, append(all, m)
	}
	if !differ || first.Type != source.CheckExec || len(all) > source.MaxArguments {
		return false
	}
	one := *first
	if one.Command = shell(all); len(one.Command) > source.MaxArguments || len(one.Command[2]) > maxScript {
		return false
	}
	for i := range checks {
		checks[i].Check = &one
	}
	return true
}

// maxScript is the longest argument of a check, in bytes: maxCheckText of source.
const maxScript = 1024
