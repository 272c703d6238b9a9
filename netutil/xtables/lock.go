package xtables

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lockWait is how many seconds a program waits for the lock of the legacy variant.
const lockWait = 60

// lockPath returns the file that programs of the legacy variant lock, found as they find it.
func lockPath() string {
	if p := os.Getenv("XTABLES_LOCKFILE"); p != "" {
		return p
	}
	return "/run/xtables.lock"
}

// lockHolder returns and describes the process that holds the lock; empty if none does, or it is unknown.
func lockHolder() (pid int, text string) {
	var st unix.Stat_t
	if err := unix.Stat(lockPath(), &st); err != nil {
		return 0, ""
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, ""
	}
	pid = holderOf(locks, &st)
	if pid <= 0 { // 0: a process of another PID namespace
		return 0, ""
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return pid, fmt.Sprintf("process %d", pid)
	}
	return pid, fmt.Sprintf("process %d (%s)", pid, bytes.TrimSpace(comm))
}

// foreignHolder says which process of others holds the lock; empty: none.
func foreignHolder() string {
	pid, holder := lockHolder()
	if holder == "" || running(pid) {
		return ""
	}
	return fmt.Sprintf("the lock %s is held by %s", lockPath(), holder)
}

// nameHolder adds the holder of the lock to an error of the legacy variant.
func (t *Tool) nameHolder(err error) error {
	if _, holder := lockHolder(); t.Variant == Legacy && holder != "" {
		return fmt.Errorf("%w; the lock %s is held by %s", err, lockPath(), holder)
	}
	return err
}

// isLocked reports whether a program did not get the lock in time.
func isLocked(err error) bool {
	return err != nil && strings.Contains(err.Error(), "holding the xtables lock")
}

// holderOf finds the holder of a file's lock in lines of /proc/locks such as
// "1: FLOCK  ADVISORY  WRITE 708 00:19:1226 0 EOF". Waiters have "->" after the number.
func holderOf(locks []byte, st *unix.Stat_t) int {
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil {
			return pid
		}
	}
	return 0
}
