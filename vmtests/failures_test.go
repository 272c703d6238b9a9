//go:build vm

package vmtests

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What go test -v prints says whose the next lines are, and at the end who failed.
var (
	whose   = regexp.MustCompile(`^=== (?:RUN|CONT|NAME|PAUSE)\s+(\S+)\n`)
	verdict = regexp.MustCompile(`^\s*--- (FAIL|PASS|SKIP): (\S+)`)
)

// failures returns of the output of tests, as go test -v prints it, what those that
// failed said, and all of it where none is known to have failed.
func failures(output string) string {
	said := make(map[string]string)
	var names []string
	name := ""
	for line := range strings.Lines(output) {
		if m := whose.FindStringSubmatch(line); m != nil {
			name = m[1]
			continue
		}
		if m := verdict.FindStringSubmatch(line); m != nil {
			name = m[2]
			if m[1] == "FAIL" {
				names = append(names, name)
			}
		}
		said[name] += line
	}
	if len(names) == 0 {
		return output
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		b.WriteString("=== " + name + "\n" + said[name])
	}
	return b.String()
}

func TestFailures(t *testing.T) {
	const output = `=== RUN   TestA
=== RUN   TestA/one
    a_test.go:1: one is fine
=== RUN   TestA/two
    a_test.go:2: two is not
=== NAME  TestA/one
    a_test.go:3: still fine
=== NAME  TestA/two
    a_test.go:4: at all
--- FAIL: TestA (0.00s)
    --- PASS: TestA/one (0.00s)
    --- FAIL: TestA/two (0.00s)
`
	const want = `=== TestA
--- FAIL: TestA (0.00s)
=== TestA/two
    a_test.go:2: two is not
    a_test.go:4: at all
    --- FAIL: TestA/two (0.00s)
`
	if got := failures(output); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, whole := range []string{"", "panic: a test of a guest ran out of time\n"} {
		if got := failures(whole); got != whole {
			t.Errorf("got %q, want %q", got, whole)
		}
	}
}
