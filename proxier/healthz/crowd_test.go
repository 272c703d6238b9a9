package healthz

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// crowdSize is far more than a crowd holds.
const crowdSize = 8 * maxConns

// probePatience is much less than the time after which the server gives a silent
// connection up, times the connections before.
const probePatience = 20 * time.Second

// A probe is answered whatever others leave open, on a health check port and on
// the node's own address, from another address than theirs and from the same.
func TestProbesAreAnswered(t *testing.T) {
	own := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), freePort(t))
	s := serve(t, own.String(), NewHealth())
	check := netip.AddrPortFrom(own.Addr(), freePort(t))
	s.SetNodeHealth([]loop.NodeHealth{{Port: check.Port(), LocalEndpoints: policy.PerFamily{IPv4: 1}}})
	s.SetNode(&policy.Node{NodePortAddrs: []netip.Addr{check.Addr()}})
	for what, says := range map[string]string{
		"nothing":        "",
		"half a request": "GET /livez HTTP/1.1\r\nHost: a\r\n",
		"keep alive":     "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		for _, addr := range []netip.AddrPort{own, check} {
			t.Run(fmt.Sprintf("%s to %s", what, addr), func(t *testing.T) {
				pace.Until(t, "listening", func() bool { return probe("127.0.0.6", addr) == nil })
				for range crowdSize {
					c, err := dialer("127.0.0.5").Dial("tcp", addr.String())
					fatal.If(t, err)
					defer c.Close()
					c.(*net.TCPConn).SetLinger(0) // its port is free again at once
					_, _ = c.Write([]byte(says))  // it may be closed already
				}
				for _, from := range []string{"127.0.0.6", "127.0.0.5"} {
					if err := probe(from, addr); err != nil {
						t.Errorf("beside %d connections of 127.0.0.5: %v", crowdSize, err)
					}
				}
			})
		}
	}
}

// A source that asks now and then keeps its connection while another has many.
func TestLargestSourceLoses(t *testing.T) {
	c := newCrowd()
	conn := func(from string) net.Conn { return &conn{from: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))} }
	quiet, active := conn("192.0.2.1:1"), conn("[2001:db8:0:1::1]:1")
	c.follow(quiet, http.StateNew)
	c.follow(active, http.StateNew)
	var many []net.Conn
	for i := range 2 * maxConns {
		many = append(many, conn(fmt.Sprintf("[2001:db8:0:2::%x]:1", i))) // one host
		c.follow(many[i], http.StateNew)
		c.follow(active, http.StateIdle)
	}
	for what, conn := range map[string]net.Conn{"that was silent": quiet, "that asked": active, "newest": many[2*maxConns-1]} {
		if closed(conn) {
			t.Errorf("the connection %s is closed", what)
		}
	}
	if !closed(many[0]) || len(c.conns) != maxConns || c.order.Len() != maxConns {
		t.Errorf("%d connections, want %d", len(c.conns), maxConns)
	}
	for _, conn := range append(many, quiet, active) {
		c.follow(conn, http.StateClosed)
	}
	if len(c.conns)+len(c.sources)+c.order.Len() != 0 {
		t.Error("closed connections are not forgotten")
	}
}

// A conn has an address and can be closed.
type conn struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (c *conn) RemoteAddr() net.Addr { return c.from }
func (c *conn) Close() error         { c.closed = true; return nil }

func closed(c net.Conn) bool { return c.(*conn).closed }

func dialer(from string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: probePatience}
}

// probe asks once, from an address.
func probe(from string, addr netip.AddrPort) error {
	client := http.Client{Timeout: probePatience, Transport: &http.Transport{DialContext: dialer(from).DialContext, DisableKeepAlives: true}}
	resp, err := client.Get("http://" + addr.String() + "/livez")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", resp.Status)
	}
	return nil
}
