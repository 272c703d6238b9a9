//go:build netns

package netnstest

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/disktest"
)

// A namespace that is there when ip makes its first namespace since the boot can be removed.
func TestNamespacesBesideThoseOfIP(t *testing.T) {
	if !disktest.Isolated(t) {
		return
	}
	if err := unix.Mount("run", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	n, err := New(UniqueName())
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"add", "del"} {
		if out, err := exec.Command("ip", "netns", what, "another").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(Dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
