package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/check"
	"svcproxy.dev/svcproxy/cmd/internal/control"
)

// mayAdminister returns an error where this process may not change the network of
// its namespace. What it then tries would fail one by one, for reasons that do
// not say so.
func mayAdminister(command string) error {
	may, err := has(0, unix.CAP_NET_ADMIN)
	if err != nil {
		return err
	}
	if !may {
		return fmt.Errorf("svcproxy %s needs root or CAP_NET_ADMIN: it changes the network of this host", command)
	}
	return nil
}

// has reports whether a process has any of these capabilities, which are below 32;
// 0 is this thread.
func has(pid int, capabilities ...uintptr) (bool, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3, Pid: int32(pid)}
	var sets [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&hdr, &sets[0]); err != nil {
		return false, fmt.Errorf("reading the capabilities of process %d: %w", pid, err)
	}
	return slices.ContainsFunc(capabilities, func(c uintptr) bool { return sets[0].Effective&(1<<c) != 0 }), nil
}

// overriding are the capabilities to pass over the modes of files. The unit does
// not give them to the daemon.
var overriding = []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH}

// readAsDaemon makes check say of files what the daemon says of them: it starts this
// program again without the capabilities in overriding, which needs root, unless the
// daemon that runs has them. Where that cannot be, check goes on as it is.
func (p *program) readAsDaemon(ctx context.Context, c *check.Checker, paths []string) {
	may, err := has(0, overriding...)
	if err != nil || !may || !slices.ContainsFunc(paths, c.OfDaemon) {
		return
	}
	for _, path := range paths { // what is elsewhere is for who asks to read
		if !c.OfDaemon(path) {
			return
		}
	}
	if pid, err := control.NewClient(p.dirs.run).PID(ctx); err == nil {
		if may, err := has(pid, overriding...); err != nil || may {
			return
		}
	}
	startWithout(overriding)
}

// startWithout starts this program again without capabilities, once. It returns where that fails.
func startWithout(capabilities []uintptr) {
	runtime.LockOSThread() // what it drops, only this thread does
	defer runtime.UnlockOSThread()
	dropped := false
	for _, c := range capabilities {
		bounding, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err == nil && bounding == 1 && unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) == nil {
			dropped = true
		}
	}
	if dropped {
		_ = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
}
