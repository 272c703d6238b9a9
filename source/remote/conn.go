package remote

import (
	"errors"
	"net/url"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// AllParts is for Fail: nothing can be watched.
const AllParts = -1

// Failed is closed by the first failure.
func (s *State) Failed() <-chan struct{} { return s.failed }

// Connection returns how the server is reached.
func (s *State) Connection() source.Connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// Use says which server is asked from now on. Until it answers, what was known of the
// connection stands.
func (s *State) Use(server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.Server = server
}

// Watching says that a part is being watched.
func (s *State) Watching(part int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching[part] = true
	if slices.Contains(s.watching, false) || s.conn.Connected {
		return
	}
	now := time.Now()
	s.log.Info("watching the server", "server", s.conn.Server, "after", now.Sub(s.conn.Since))
	s.conn.Connected, s.conn.Since, s.conn.Error = true, now, ""
}

// Fail says why a part, or AllParts, cannot be read.
func (s *State) Fail(part int, err error) {
	defer s.first.Do(func() { close(s.failed) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if part == AllParts {
		clear(s.watching)
	} else {
		s.watching[part] = false
	}
	if bare, ok := errors.AsType[*url.Error](err); ok {
		err = bare.Err // without the request, which differs each time
	}
	if s.conn.Connected || s.conn.Error != err.Error() {
		s.log.Warn("cannot watch the server, keeping the last known services", "server", s.conn.Server, "err", err)
	}
	if s.conn.Connected {
		s.conn.Connected, s.conn.Since = false, time.Now()
	}
	s.conn.Error = err.Error()
}
