// Package packaging_test tests how packages are made; what they do is tested in vmtests.
package packaging_test

import (
	"os/exec"
	"strings"
	"testing"
)

// What git describe says becomes a version that dpkg and rpm order as it was made.
func TestVersion(t *testing.T) {
	for _, tt := range []struct{ described, want string }{
		{"v1.2.3", "1.2.3"},
		{"v1.2.3-rc.1", "1.2.3~rc.1"},
		{"v1.2.3-rc-1", "1.2.3~rc.1"}, // rpm takes no second hyphen
		{"v1.2.3-5-gabcdef0", "1.2.3+5.gabcdef0"},
		{"v1.2.3-rc.1-5-gabcdef0-dirty", "1.2.3~rc.1+5.gabcdef0.dirty"},
		{"v1.2.3-dirty", "1.2.3.dirty"},
	} {
		if got := version(t, tt.described); got != tt.want {
			t.Errorf("%s is %q, want %q", tt.described, got, tt.want)
		}
	}
}

// Before the first release there is a commit only, which says nothing of what came first: its number does.
func TestVersionOfCommit(t *testing.T) {
	got := version(t, "abcdef0-dirty")
	if !strings.HasPrefix(got, "0.0.0+") || !strings.HasSuffix(got, ".gabcdef0.dirty") || strings.Contains(got, "-") {
		t.Errorf("got %q", got)
	}
}

func version(t *testing.T, described string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "./version", described).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}
