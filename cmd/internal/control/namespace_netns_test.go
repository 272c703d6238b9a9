//go:build netns

package control

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// These tests need root, to listen as another user.

// A local user who takes the name keeps no daemon from starting, and is named.
func TestHolderOfAnotherUser(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	name := uniqueName(t)
	fd := listenAs(t, name, nobody)
	defer unix.Close(fd)
	c := claimed(t, name)
	want := fmt.Sprintf("process %d (", os.Getpid())
	if w := strings.Join(c.Warnings(), "\n"); !strings.HasPrefix(w, want) || !strings.Contains(w, "of user 65534") {
		t.Errorf("warnings %q, want %q", w, want)
	}
	if err := CheckNamespace(name); err != nil {
		t.Errorf("check: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// listenAs listens as another user. The kernel notes who calls listen, unix(7).
func listenAs(t *testing.T, name string, uid int) int {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: name}), setThreadUID(uid), unix.Listen(fd, 8), setThreadUID(0))
	}
	fatal.If(t, err)
	return fd
}

// setThreadUID changes the effective user of this thread; of all threads Go would.
func setThreadUID(uid int) error {
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return errno
	}
	return nil
}
