//go:build vm

package vmtests

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// passedIn is the line of a test, or of a part of one, that passed, with its seconds.
var passedIn = regexp.MustCompile(`(?m)^\s*--- PASS: (\S+) \(([0-9.]+)s\)`)

// slowestListed is how many tests of a guest are named with their times.
const slowestListed = 15

// slowest lists the tests that took longest, a line each: those to make faster when all take too long.
func slowest(output string) string {
	type timed struct {
		name    string
		seconds float64
	}
	var all []timed
	for _, m := range passedIn.FindAllStringSubmatch(output, -1) {
		seconds, _ := strconv.ParseFloat(m[2], 64)
		all = append(all, timed{m[1], seconds})
	}
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	var b strings.Builder
	for _, t := range all[:min(len(all), slowestListed)] {
		fmt.Fprintf(&b, "%8.1f s  %s\n", t.seconds, t.name)
	}
	return b.String()
}

func TestSlowest(t *testing.T) {
	got := slowest("--- PASS: TestA (1.50s)\n    --- PASS: TestA/b (12.25s)\n--- FAIL: TestC (99.00s)\n")
	if want := "    12.2 s  TestA/b\n     1.5 s  TestA\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
