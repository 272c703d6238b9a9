package watch

import "golang.org/x/sys/unix"

// Mounts is the table of mounts of this process, /proc/self/mountinfo; -1: nobody
// tells of changes, and the poll finds them.
type Mounts int

// OpenMounts does not use os.Open, whose poller would take the events.
func OpenMounts() Mounts {
	fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return Mounts(fd)
}

// Changed reports whether something was mounted or unmounted since the last call,
// proc_pid_mountinfo(5).
func (m Mounts) Changed() bool {
	if m < 0 {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(m), Events: unix.POLLPRI}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&unix.POLLPRI != 0
}

// Close ends the watch.
func (m Mounts) Close() {
	if m >= 0 {
		_ = unix.Close(int(m))
	}
}
