package shrink

import (
	"slices"
	"strings"
	"testing"
)

// A list is shortened to what fails together.
func TestFewestFindsWhatFailsTogether(t *testing.T) {
	letters := strings.Split("abcdefghijklmnopqrstuvwxyz", "")
	for _, want := range []string{"", "q", "az", "cdx", "aeiouy"} {
		asked := 0
		got := Fewest(letters, func(some []string) bool {
			asked++
			return !slices.ContainsFunc(strings.Split(want, ""), func(s string) bool { return s != "" && !slices.Contains(some, s) })
		})
		if text := strings.Join(got, ""); want != "" && text != want {
			t.Errorf("shrunk to %q; want %q", text, want)
		}
		if asked > 200 {
			t.Errorf("%q took %d runs", want, asked)
		}
	}
}
