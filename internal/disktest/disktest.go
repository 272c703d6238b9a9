// Package disktest has file systems and files that do not answer, for tests in a mount namespace of their own, as root.
package disktest

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Dead mounts over dir what never answers: a FUSE that nobody serves. Answer, or the end of the test, removes it,
// and fails what waits for it.
func Dead(t testing.TB, dir string) (answer func()) {
	t.Helper()
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	answer = sync.OnceFunc(func() {
		if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		_ = fuse.Close()
	})
	t.Cleanup(answer)
	if err := unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())); err != nil {
		t.Fatal(err)
	}
	return answer
}

// Unopenable has each open of one of these files or directories wait, fanotify(7), until answer is called or the test
// ends. What they are can be looked at, and files in such a directory are opened as ever.
func Unopenable(t testing.TB, paths ...string) (answer func()) {
	t.Helper()
	answer, err := hold(0, paths...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(answer)
	return answer
}

// Slow has each open of any file or directory on the file system of path wait until answer is called.
func Slow(path string) (answer func(), err error) { return hold(unix.FAN_MARK_FILESYSTEM, path) }

func hold(flags uint, paths ...string) (answer func(), err error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("holding what opens %s: %w", paths, err)
	}
	answer = sync.OnceFunc(func() { _ = unix.Close(fd) }) // the kernel allows what waits
	for _, path := range paths {
		if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|flags, unix.FAN_OPEN_PERM|unix.FAN_ONDIR, unix.AT_FDCWD, path); err != nil {
			answer()
			return nil, fmt.Errorf("holding what opens %s: %w", path, err)
		}
	}
	return answer, nil
}

// inside is set for a process that is in a mount namespace of its own.
const inside = "SVCPROXY_TEST_MOUNTS"

// Isolated runs the test once more, in a mount namespace of its own, unless it is in one already. It reports whether it is:
// otherwise all is done.
func Isolated(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.WaitDelay = time.Second // for what it started
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("in a mount namespace: %v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}
