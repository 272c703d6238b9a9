package healthz

import (
	"container/list"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// maxConns is how many connections a crowd holds. Health check ports are open to
// the network, and file descriptors are needed elsewhere: 1,024 is a common limit
// of a process.
const maxConns = 256

// A crowd bounds the connections of some listeners. None waits: where there are
// too many, the source that has the most loses the one that has been silent
// longest. So a client that connects and asks at once is answered, whatever others do.
type crowd struct {
	mu      sync.Mutex
	conns   map[net.Conn]*list.Element // of order
	order   *list.List                 // of member, silent for longest first
	sources map[netip.Prefix]int       // how many connections each has
}

// A member is a connection and where it comes from.
type member struct {
	conn   net.Conn
	source netip.Prefix
}

func newCrowd() *crowd {
	return &crowd{conns: map[net.Conn]*list.Element{}, order: list.New(), sources: map[netip.Prefix]int{}}
}

// follow takes a change of a connection, as http.Server.ConnState.
func (c *crowd) follow(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.join(member{conn, sourceOf(conn.RemoteAddr())})
		if len(c.conns) > maxConns {
			c.expel()
		}
	case http.StateClosed, http.StateHijacked:
		c.leave(conn)
	default:
		if e, ok := c.conns[conn]; ok {
			c.order.MoveToBack(e)
		}
	}
}

func (c *crowd) join(m member) {
	c.conns[m.conn] = c.order.PushBack(m)
	c.sources[m.source]++
}

// leave forgets a connection, which may have been expelled before.
func (c *crowd) leave(conn net.Conn) {
	e, ok := c.conns[conn]
	if !ok {
		return
	}
	source := c.order.Remove(e).(member).source
	delete(c.conns, conn)
	if c.sources[source]--; c.sources[source] == 0 {
		delete(c.sources, source)
	}
}

// expel closes the connection that has been silent longest of those whose source
// has the most.
func (c *crowd) expel() {
	most := 0
	for _, n := range c.sources {
		most = max(most, n)
	}
	for e := c.order.Front(); e != nil; e = e.Next() {
		if m := e.Value.(member); c.sources[m.source] == most {
			c.leave(m.conn)
			_ = m.conn.Close() // its server finds out
			return
		}
	}
}

// sourceOf returns whom a connection counts for: an IPv4 address, or an IPv6
// network of /64, of which one host has all addresses.
func sourceOf(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(ip, bits).Masked()
}
