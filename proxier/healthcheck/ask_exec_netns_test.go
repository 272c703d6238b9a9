//go:build netns

package healthcheck

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source"
)

// deadDisk is set for a process that runs TestExecOnDeadDisk in a mount namespace of its own.
const deadDisk = "HEALTHCHECK_TEST_DEAD_DISK"

// TestExecOnDeadDisk has a program on a file system that does not answer: that holds up nothing but its check.
func TestExecOnDeadDisk(t *testing.T) {
	if dir := os.Getenv(deadDisk); dir != "" {
		beOnDeadDisk(t, dir)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestExecOnDeadDisk$", "-test.v")
	cmd.Env = append(os.Environ(), deadDisk+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Setpgid: true}
	cmd.WaitDelay = time.Second
	timer := time.AfterFunc(time.Minute, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	defer timer.Stop()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("while a program cannot be read: %v\n%s", err, out)
	}
}

// beOnDeadDisk asks by a program that cannot be read, and sees that this process goes on.
func beOnDeadDisk(t *testing.T, dir string) {
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fuse.Close() // which fails what waits for it
	if err := unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())); err != nil {
		t.Fatal(err)
	}
	check := source.HealthCheck{Type: source.CheckExec, Command: []string{filepath.Join(dir, "check")}, Timeout: 100 * time.Millisecond}
	want(t, "of a dead disk", asked(t, netip.MustParseAddrPort("192.0.2.1:80"), check), "not asked: "+errUnbegun.Error())
	runtime.GC()
	want(t, "beside it", asked(t, netip.MustParseAddrPort("192.0.2.1:80"), shell("exit 3")), "exit code 3")
	if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
}
