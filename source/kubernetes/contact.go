//go:build !nokubernetes

package kubernetes

import (
	"errors"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"svcproxy/source"
)

// A contact knows whether all kinds of objects are being watched. Several
// goroutines tell it.
type contact struct {
	log    *slog.Logger
	failed chan struct{} // closed by the first failure
	first  sync.Once

	mu       sync.Mutex
	watching [kinds]bool
	conn     source.Connection
}

func newContact(log *slog.Logger) *contact {
	return &contact{log: log, failed: make(chan struct{}), conn: source.Connection{Since: time.Now(), Error: "not yet reached"}}
}

func (c *contact) status() source.Connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// use says which server is asked from now on. Until it answers, what was known of contact stands.
func (c *contact) use(server string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn.Server = server
}

// watch says that a kind of objects is being watched.
func (c *contact) watch(k kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watching[k] = true
	if c.watching != [kinds]bool{true, true, true} || c.conn.Connected {
		return
	}
	now := time.Now()
	c.log.Info("watching the API server", "server", c.conn.Server, "after", now.Sub(c.conn.Since))
	c.conn.Connected, c.conn.Since, c.conn.Error = true, now, ""
}

// fail says why a kind of objects cannot be listed or watched; k below 0: none can.
func (c *contact) fail(k kind, err error) {
	defer c.first.Do(func() { close(c.failed) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if k < 0 {
		c.watching = [kinds]bool{}
	} else {
		c.watching[k] = false
	}
	if bare := (*url.Error)(nil); errors.As(err, &bare) {
		err = bare.Err // without the request, which differs each time
	}
	if c.conn.Connected || c.conn.Error != err.Error() {
		c.log.Warn("the API server cannot be watched: services stay as last heard", "server", c.conn.Server, "err", err)
	}
	if c.conn.Connected {
		c.conn.Connected, c.conn.Since = false, time.Now()
	}
	c.conn.Error = err.Error()
}
