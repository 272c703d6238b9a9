package control

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrClaimed says that another daemon has the lock of a directory.
var ErrClaimed = errors.New("another svcproxy")

// ClaimState takes the lock of a state directory until the file is closed: two
// daemons would remove each other's copies and records.
func ClaimState(stateDir string) (*os.File, error) {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return nil, fmt.Errorf("making state directory: %w", err)
	}
	return claimDir("state", stateDir, "state.lock", lockPatience) // another one: it may be the run directory, too
}

// claimDir takes the lock of a directory of some kind, a file of that name. The kernel releases it when
// its holder dies, so that, unlike a socket file, it is never stale.
func claimDir(kind, dir, name string, patience time.Duration) (*os.File, error) {
	fail := func(err error) error { return fmt.Errorf("claiming %s directory %s: %w", kind, dir, err) }
	// Readable for nobody else: who can open a file can also lock it.
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fail(err)
	}
	if err := lock(f, patience); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w%s is running; give each its own --%s-dir", ErrClaimed, holder(f), kind)
		}
		return nil, errors.Join(fail(err), f.Close())
	}
	// Who has the lock is for people, and may be missing: the disk may be full.
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return f, nil
}

// lockPatience is for how long a daemon that was killed may still seem to hold its lock, or the
// name in its namespace: until a child that it was starting has become another program.
const lockPatience = 2 * time.Second

// lock locks f, or returns that another process held it all the time.
func lock(f *os.File, patience time.Duration) (err error) {
	patiently(patience, func() bool {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		return !errors.Is(err, unix.EWOULDBLOCK)
	})
	return err
}

// patiently tries something until it is done, or for so long.
func patiently(patience time.Duration, try func() (done bool)) {
	for deadline := time.Now().Add(patience); !try() && !time.Now().After(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
}

// holder returns " (pid 123)", or nothing where that cannot be said.
func holder(lock io.Reader) string {
	b, err := io.ReadAll(io.LimitReader(lock, 20))
	if err != nil {
		return ""
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}
