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

// failures returns of the output of tests, as go test -v prints it, which failed
// and what they said, all of it where none is known to have failed.
func failures(output string) (names []string, all string) {
	said := make(map[string]string)
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
		return nil, output
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		b.WriteString("=== " + name + "\n" + said[name])
	}
	return names, b.String()
}

// patterns returns what runs the tests with these names, and of the lab's cases
// their groups: TestCases/ipvs-nft/kills/at_any_moment is a case of kills.
func patterns(names []string) (list []string) {
	const groupDepth = 3
	for _, name := range names {
		parts := strings.Split(name, "/")
		if parts[0] != "TestCases" {
			parts = parts[:1]
		} else if len(parts) < groupDepth {
			continue // its groups are told too
		}
		pattern := ""
		for i, part := range parts[:min(len(parts), groupDepth)] {
			if i > 0 {
				pattern += "/"
			}
			pattern += "^" + regexp.QuoteMeta(part) + "$"
		}
		if !slices.Contains(list, pattern) {
			list = append(list, pattern)
		}
	}
	return list
}

func TestPatterns(t *testing.T) {
	got := patterns([]string{"TestCases", "TestCases/ipvs", "TestCases/ipvs/kills", "TestCases/ipvs/kills/at_any_moment", "TestLegal", "TestLegal/a"})
	want := []string{"^TestCases$/^ipvs$/^kills$", "^TestLegal$"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
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
	if names, got := failures(output); got != want || !slices.Equal(names, []string{"TestA", "TestA/two"}) {
		t.Errorf("got %q and\n%s\nwant\n%s", names, got, want)
	}
	for _, whole := range []string{"", "panic: a test of a guest ran out of time\n"} {
		if _, got := failures(whole); got != whole {
			t.Errorf("got %q, want %q", got, whole)
		}
	}
}
