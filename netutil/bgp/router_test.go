package bgp_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/bgp"
)

// Numbers of both sides.
const (
	ourAS    = 64512
	routerAS = 64500
	asTrans  = 23456
)

var loopback = netip.MustParseAddr("127.0.0.1")

// wait is how long a test waits for what takes milliseconds, or GoBGP's two seconds before it connects.
func wait() time.Duration { return pace.Scale(patience) }

const patience = 10 * time.Second

// A router is the other side, by hand: it says what a test wants and keeps what it hears.
type router struct {
	t  *testing.T
	ln net.Listener
	as uint32
}

func newRouter(t *testing.T) *router { t.Helper(); return newRouterAt(t, loopback) }

func newRouterAt(t *testing.T, addr netip.Addr) *router {
	t.Helper()
	ln, err := net.Listen("tcp4", netip.AddrPortFrom(addr, 0).String())
	fatal.If(t, err)
	t.Cleanup(func() { ln.Close() })
	return &router{t, ln, routerAS}
}

// peer is the router as a peer of a speaker.
func (r *router) peer() bgp.Peer {
	at := netip.MustParseAddrPort(r.ln.Addr().String())
	return bgp.Peer{Address: at.Addr(), AS: routerAS, Port: at.Port()}
}

// A conn is a connection from the speaker, whose OPEN has been read.
type conn struct {
	t    *testing.T
	c    net.Conn
	open *packet.BGPOpen
	in   chan *packet.BGPMessage // closed at the end of the connection
}

// accept takes the next connection, reads OPEN and answers it with one of its own.
func (r *router) accept() *conn {
	r.t.Helper()
	cn := r.acceptSilently()
	cn.write(r.ourOpen())
	return cn
}

// acceptSilently takes the next connection and reads OPEN.
func (r *router) acceptSilently() *conn {
	r.t.Helper()
	if err := r.ln.(*net.TCPListener).SetDeadline(time.Now().Add(wait())); err != nil {
		r.t.Fatal(err)
	}
	c, err := r.ln.Accept()
	if err != nil {
		r.t.Fatal(err)
	}
	return r.keep(c)
}

// keep reads OPEN from a connection, and what comes after it until the test ends.
func (r *router) keep(c net.Conn) *conn {
	r.t.Helper()
	m, err := read(c)
	if err != nil {
		r.t.Fatal(err)
	}
	cn := &conn{r.t, c, m.Body.(*packet.BGPOpen), make(chan *packet.BGPMessage, 10000)}
	var wg sync.WaitGroup
	wg.Go(cn.receive)
	r.t.Cleanup(func() { c.Close(); wg.Wait() })
	return cn
}

// establish is accept, and agrees.
func (r *router) establish() *conn {
	r.t.Helper()
	c := r.accept()
	c.write(packet.NewBGPKeepAliveMessage())
	return c
}

func (r *router) ourOpen() *packet.BGPMessage {
	v4, v6 := packet.NewCapGracefulRestartTuple(packet.RF_IPv4_UC, false), packet.NewCapGracefulRestartTuple(packet.RF_IPv6_UC, false)
	caps := packet.NewOptionParameterCapability([]packet.ParameterCapabilityInterface{
		packet.NewCapMultiProtocol(packet.RF_IPv4_UC), packet.NewCapMultiProtocol(packet.RF_IPv6_UC),
		packet.NewCapFourOctetASNumber(r.as),
		packet.NewCapGracefulRestart(false, false, 120, []*packet.CapGracefulRestartTuple{v4, v6}),
	})
	m, err := packet.NewBGPOpenMessage(asTrans, uint16(time.Hour/time.Second), netip.AddrFrom4([4]byte{192, 0, 2, byte(r.as)}), []packet.OptionParameterInterface{caps})
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

func read(r io.Reader) (*packet.BGPMessage, error) {
	head := make([]byte, packet.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	h := &packet.BGPHeader{}
	if err := h.DecodeFromBytes(head); err != nil {
		return nil, err
	}
	body := make([]byte, int(h.Len)-len(head))
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return packet.ParseBGPBody(h, body)
}

func (c *conn) receive() {
	defer close(c.in)
	for {
		m, err := read(c.c)
		if err != nil {
			return
		}
		c.in <- m
	}
}

func (c *conn) write(m *packet.BGPMessage) {
	c.t.Helper()
	b, err := m.Serialize()
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.c.Write(b); err != nil && !errors.Is(err, net.ErrClosed) {
		c.t.Fatal(err)
	}
}

// next returns the next message but keepalives; nil at the end of the connection.
func (c *conn) next() *packet.BGPMessage {
	c.t.Helper()
	for {
		select {
		case m := <-c.in:
			if m != nil && m.Header.Type == packet.BGP_MSG_KEEPALIVE {
				continue
			}
			return m
		case <-time.After(wait()):
			c.t.Fatal("no message from the speaker")
		}
	}
}

// update returns the next message, which must be UPDATE.
func (c *conn) update() *packet.BGPUpdate {
	c.t.Helper()
	m := c.next()
	if m == nil {
		c.t.Fatal("the speaker closed the connection; want UPDATE")
	}
	u, ok := m.Body.(*packet.BGPUpdate)
	if !ok {
		c.t.Fatalf("got %+v; want UPDATE", m.Body)
	}
	return u
}

// capability returns the one of a kind in the speaker's OPEN.
func capability[C packet.ParameterCapabilityInterface](c *conn) (found C) {
	c.t.Helper()
	for _, o := range c.open.OptParams {
		for _, a := range o.(*packet.OptionParameterCapability).Capability {
			if a, ok := a.(C); ok {
				return a
			}
		}
	}
	c.t.Fatalf("no %T in OPEN", found)
	return found
}

// attribute returns the one of a kind in u, or nothing.
func attribute[A packet.PathAttributeInterface](u *packet.BGPUpdate) (found A, ok bool) {
	i := slices.IndexFunc(u.PathAttributes, func(a packet.PathAttributeInterface) bool { _, is := a.(A); return is })
	if i < 0 {
		return found, false
	}
	return u.PathAttributes[i].(A), true
}
