package bgp_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// routerHold is the hold time of a router that is impatient, shorter than GoBGP takes no connection for.
const routerHold = 3 * time.Second

// Both sides connect, the router chooses the one of its own, and the session is lost: the speaker comes to a session again
// also with a router that gives up a connection on which it hears nothing for three seconds.
func TestLostAfterCollision(t *testing.T) {
	r := newRouter(t)
	cfg := config(r.peer())
	cfg.ListenPort = freePort(t)
	s := run(t, cfg)
	set(t, s, route("198.51.100.1/32"))

	out := r.acceptSilently()
	in := r.dial(cfg.ListenPort)
	in.write(r.ourOpen())
	in.write(packet.NewBGPKeepAliveMessage())
	until(t, s, "established over the router's connection", established)
	out.write(r.ourOpen())
	out.write(packet.NewBGPKeepAliveMessage())
	out.c.Close()
	in.c.Close()

	pace.Until(t, "a session on a connection that the speaker opens", func() bool { return r.establish().hearsKeepAlive(routerHold) })
}

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp4", ":0")
	fatal.If(t, err)
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// dial connects to the speaker as the router, once it listens.
func (r *router) dial(port int) *conn {
	r.t.Helper()
	at := netip.AddrPortFrom(loopback, uint16(port)).String()
	var c net.Conn
	fatal.If(r.t, pace.Poll(patience, func() (err error) {
		c, err = net.Dial("tcp4", at)
		return err
	}))
	return r.keep(c)
}

// hearsKeepAlive reports whether a keepalive comes in time, and closes the connection if none does.
func (c *conn) hearsKeepAlive(in time.Duration) bool {
	end := time.After(in)
	for {
		select {
		case m := <-c.in:
			if m == nil || m.Header.Type == packet.BGP_MSG_KEEPALIVE {
				return m != nil
			}
		case <-end:
			c.c.Close()
			return false
		}
	}
}
