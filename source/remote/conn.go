package remote

import (
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A ConnState knows whether all that a source reads of its server is being watched.
// Its methods may be called from any goroutine.
type ConnState struct {
	log    *slog.Logger
	failed chan struct{}
	first  sync.Once

	mu       sync.Mutex
	watching []bool
	conn     source.Connection
}

// AllParts is for Fail: nothing can be watched.
const AllParts = -1

// NewConnState is of a server of which so many parts are watched.
func NewConnState(log *slog.Logger, parts int) *ConnState {
	return &ConnState{
		log: log, failed: make(chan struct{}), watching: make([]bool, parts),
		conn: source.Connection{Since: time.Now(), Error: "not yet reached"},
	}
}

// Failed is closed by the first failure.
func (c *ConnState) Failed() <-chan struct{} { return c.failed }

// Connection returns how the server is reached.
func (c *ConnState) Connection() source.Connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// Use says which server is asked from now on. Until it answers, what was known of the
// connection stands.
func (c *ConnState) Use(server string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn.Server = server
}

// Watching says that a part is being watched.
func (c *ConnState) Watching(part int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watching[part] = true
	if slices.Contains(c.watching, false) || c.conn.Connected {
		return
	}
	now := time.Now()
	c.log.Info("watching the server", "server", c.conn.Server, "after", now.Sub(c.conn.Since))
	c.conn.Connected, c.conn.Since, c.conn.Error = true, now, ""
}

// Fail says why a part, or AllParts, cannot be read.
func (c *ConnState) Fail(part int, err error) {
	defer c.first.Do(func() { close(c.failed) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if part == AllParts {
		clear(c.watching)
	} else {
		c.watching[part] = false
	}
	if bare := (*url.Error)(nil); errors.As(err, &bare) {
		err = bare.Err // without the request, which differs each time
	}
	if c.conn.Connected || c.conn.Error != err.Error() {
		c.log.Warn("cannot watch the server, keeping the last known services", "server", c.conn.Server, "err", err)
	}
	if c.conn.Connected {
		c.conn.Connected, c.conn.Since = false, time.Now()
	}
	c.conn.Error = err.Error()
}
