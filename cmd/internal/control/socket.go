package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lockName is the file in the run directory that is locked.
const lockName = "svcproxy.lock"

// open makes what is missing of run directory, claim and socket.
func (s *Server) open(patience time.Duration) error {
	if err := os.MkdirAll(s.runDir, 0o755); err != nil {
		return fmt.Errorf("making run directory: %w", err)
	}
	if err := s.claim(patience); err != nil {
		return err
	}
	return s.listen()
}

// claim claims the run directory, unless that is done. A lock whose file was removed
// is none: others would lock another file.
func (s *Server) claim(patience time.Duration) error {
	if s.claimed() {
		return nil
	}
	lock, err := claimDir("run", s.runDir, lockName, patience)
	if err != nil {
		return err
	}
	if s.lock != nil {
		s.lock.Close()
	}
	s.lock = lock
	return nil
}

func (s *Server) claimed() bool {
	if s.lock == nil {
		return false
	}
	held, err := s.lock.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(filepath.Join(s.runDir, lockName))
	return err == nil && os.SameFile(held, there)
}

// listen opens the socket for root and the groups that may ask. The directory is claimed, so that
// a socket that is there already is a dead one.
func (s *Server) listen() error {
	path := socketPath(s.runDir)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing a stale control socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("opening control socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // another may have that path by then
	err = os.Chmod(path, 0o660)
	trouble := ""
	if err := share(path); err != nil {
		trouble = fmt.Sprintf("sharing the control socket with groups, whose members cannot ask now: %v", err)
	}
	s.trouble.Store(trouble)
	file, statErr := os.Lstat(path)
	if err := errors.Join(err, statErr); err != nil {
		return errors.Join(fmt.Errorf("opening control socket: %w", err), l.Close())
	}
	if s.listener != nil {
		s.listener.Close() // its clients cannot reach it any more
	}
	s.listener, s.file = l, file
	return nil
}

// isThere reports whether clients find the socket, and the directory is ours.
func (s *Server) isThere() bool { return s.claimed() && s.linked() && listens(s.listener) }

// linked reports whether the file at the socket's path is ours.
func (s *Server) linked() bool {
	if s.listener == nil {
		return false
	}
	now, err := os.Lstat(socketPath(s.runDir))
	return err == nil && os.SameFile(now, s.file)
}

// listens reports whether l has not been closed.
func listens(l *net.UnixListener) bool { return l.SetDeadline(time.Time{}) == nil }

// close removes the socket, if it is still ours, and releases the claim.
func (s *Server) close() {
	if s.linked() {
		_ = os.Remove(socketPath(s.runDir)) // the next daemon would
	}
	if s.listener != nil {
		s.listener.Close()
	}
	if s.lock != nil {
		s.lock.Close()
	}
}
