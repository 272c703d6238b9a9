package control

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// often has the socket looked at all the time.
func often(t *testing.T) {
	old := lookInterval
	lookInterval = 10 * time.Millisecond
	t.Cleanup(func() { lookInterval = old })
}

// A disk that is full keeps nobody from claiming a directory.
func TestClaimOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	fatal.If(t, os.Symlink("/dev/full", filepath.Join(dir, lockName)))
	defer start(t, dir)()
	if _, err := NewClient(dir).StatusOf(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, err := claimDir("run", dir, lockName, 0); !errors.Is(err, ErrClaimed) {
		t.Errorf("claimed again: %v, want ErrClaimed", err)
	}
}

// A socket that was removed comes again, with its directory and its claim.
func TestRemovedSocketComesAgain(t *testing.T) {
	often(t)
	for _, name := range []string{"svcproxy.sock", lockName, ""} {
		t.Run("removed "+name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			defer start(t, dir)()
			fatal.If(t, os.RemoveAll(filepath.Join(dir, name)))
			pace.Until(t, "claimed again", func() bool {
				_, err := os.Stat(filepath.Join(dir, lockName))
				return err == nil && isClaimed(t, dir)
			})
			pace.Until(t, "answering", func() bool { return NewClient(dir).Running(t.Context()) })
		})
	}
}

// isClaimed reports whether a daemon has the claim to a run directory. A claim is not its file alone: between
// making that and locking it others may be first, and it is tried again.
func isClaimed(t *testing.T, dir string) bool {
	t.Helper()
	lock, err := claimDir("run", dir, lockName, 0)
	if err == nil {
		fatal.If(t, lock.Close())
	} else if !errors.Is(err, ErrClaimed) {
		t.Fatal(err)
	}
	return err != nil
}

// A run directory that cannot be made now is made when it can be.
func TestRunDirectoryComesLater(t *testing.T) {
	often(t)
	dir := filepath.Join(t.TempDir(), "run")
	fatal.If(t, os.WriteFile(dir, nil, 0o600))
	defer start(t, dir)()
	if NewClient(dir).Running(t.Context()) {
		t.Fatal("a socket in a file answers")
	}
	fatal.If(t, os.Remove(dir))
	pace.Until(t, "answering", func() bool { return NewClient(dir).Running(t.Context()) })
}

// What another daemon made meanwhile in the place of a removed directory is left alone.
func TestRunDirectoryTakenByAnother(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	stop := start(t, dir)
	fatal.If(t, os.RemoveAll(dir))
	fatal.If(t, os.Mkdir(dir, 0o755))
	lock, err := claimDir("run", dir, lockName, 0)
	fatal.If(t, err)
	defer lock.Close()
	l, err := net.Listen("unix", socketPath(dir))
	fatal.If(t, err)
	defer l.Close()
	stop()
	if !NewClient(dir).Running(t.Context()) {
		t.Error("the other's socket was removed")
	}
}
