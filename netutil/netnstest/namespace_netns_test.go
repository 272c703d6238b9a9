//go:build netns

package netnstest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/disktest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
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

// A command that hangs is killed with what it has started, which may hold its output, and the error says so.
func TestHangingCommandIsKilled(t *testing.T) {
	n := Make(t)
	defer func(before time.Duration) { CommandTimeout = before }(CommandTimeout)
	CommandTimeout = 50 * time.Millisecond
	child, err := n.Run("sh", "-c", "sleep 600 & echo $!; wait")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(child))
	fatal.If(t, err)
	pace.Until(t, "no child is left", func() bool { return unix.Kill(pid, 0) != nil || zombie(pid) })
}

// Of a test that was killed before its namespace was mounted a file is left.
func TestSweepRemovesUnmountedNames(t *testing.T) {
	Make(t)
	path := filepath.Join(Dir, namePrefix+"4194305-1") // larger than any process id
	fatal.If(t, os.WriteFile(path, nil, 0o600))
	if err := Sweep(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want the name gone", err)
		os.Remove(path)
	}
}
