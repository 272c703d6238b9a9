//go:build vm

package ipvs

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// A connection whose destination is removed at once is reset when the client sends. Others go on.
func TestClosedConnectionsAreReset(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(2)
		h.Put(h.service("web", 1, source.TCP, 0, 1))
		sends, other := h.connectTo(0), h.connectTo(1)
		defer other.Close()

		closed := h.service("web", 1, source.TCP, 1)
		for _, p := range closed.Pools {
			p.Closed = []netip.AddrPort{h.endpoint(0)}
		}
		h.Put(closed)
		h.wantState()
		if err := reset(sends); err != nil {
			h.Errorf("a client that sends: %v, want a reset", err)
		}
		if !h.goesOn(other) {
			h.Error("the connection to the other endpoint did not go on")
		}
	})
}

// reset sends something every moment until the connection is reset, and returns nil then.
func reset(c net.Conn) (err error) {
	defer c.Close()
	for start := time.Now(); !pace.Over(start, 20*time.Second); {
		if _, err = c.Write([]byte("x")); err == nil {
			c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			_, err = io.CopyN(io.Discard, c, 1<<20)
		}
		if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
			return nil
		}
		err = nil
	}
	return errors.New("it goes on")
}
