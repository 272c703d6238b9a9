//go:build !nokubernetes

package kubernetes

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// A network is all there is between a client and an API server. While it is
// silent, everything that is sent is lost and nobody is told.
type network struct {
	net.Listener
	server atomic.Pointer[string] // its address
	silent atomic.Bool
	wg     sync.WaitGroup
}

func newNetwork(t *testing.T) *network {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	n := &network{Listener: l}
	t.Cleanup(n.wg.Wait)
	t.Cleanup(func() { l.Close() })
	n.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.wg.Go(func() { n.join(c, *n.server.Load()) })
		}
	})
	return n
}

// join carries what two ends send, until one of them ends.
func (n *network) join(c net.Conn, to string) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	var wg sync.WaitGroup
	for _, ends := range [][2]net.Conn{{c, s}, {s, c}} {
		wg.Go(func() {
			io.Copy(lossy{ends[1], n}, ends[0])
			ends[0].Close()
			ends[1].Close()
		})
	}
	wg.Wait()
}

// lossy is one end as seen through a network.
type lossy struct {
	io.Writer
	n *network
}

func (l lossy) Write(b []byte) (int, error) {
	if l.n.silent.Load() {
		return len(b), nil
	}
	return l.Writer.Write(b)
}

// A network that falls silent is noticed, and services stay meanwhile.
func TestSilentNetworkIsNoticed(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1") // is 30
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")      // is 15
	n := newNetwork(t)                               // ends after the server, whose end closes connections
	a := startAPIServer(t, svc("a", "10.96.0.1"))
	addr := a.addr
	n.server.Store(&addr)
	cert, ca := authority(t, n.Addr().String())
	a.stop()
	a.tls = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}
	a.start()
	dir := t.TempDir()
	config := filepath.Join(dir, "config")
	fatal.If(t, os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600))
	fatal.If(t, os.WriteFile(config, fmt.Appendf(nil, kubeconfigText, n.Addr(), "one"), 0o600))
	r := run(t, Options{Kubeconfig: config, NodeName: "here"})
	r.wants("default/a")
	r.connected(true)

	n.silent.Store(true)
	a.put(svc("b", "10.96.0.2"))
	r.connected(false)
	if have := r.look(); have != "default/a" {
		t.Errorf("have %q in the silence", have)
	}
	n.silent.Store(false)
	r.wants("default/a; default/b")
	r.connected(true)
}
