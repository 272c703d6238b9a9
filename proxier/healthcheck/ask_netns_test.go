//go:build netns

package healthcheck

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source"
)

// A host whose ports are all in use for other endpoints asks all the same.
func TestPortsInUse(t *testing.T) {
	netnstest.Enter(t)
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fatal.If(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40001"), 0))
	from := netip.MustParseAddr("127.0.0.1")
	other := netip.MustParseAddrPort("127.0.0.1:8001")
	l, err := net.Listen("tcp4", other.String())
	fatal.If(t, err)
	defer l.Close()
	for range 2 {
		conn, err := net.Dial("tcp4", other.String())
		fatal.If(t, err)
		defer conn.Close()
	}
	l, err = net.Listen("tcp4", "127.0.0.1:8003")
	fatal.If(t, err)
	defer l.Close()
	at := addrOf(l.Addr())
	want(t, "no source", asked(t, at, source.HealthCheck{Type: source.CheckTCP}), "")
	want(t, "source", asked(t, at, source.HealthCheck{Type: source.CheckTCP, Source: from}), "")
}
