//go:build netns

package hostsetup

import (
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/sysctl"
)

// namespace moves the test into a network namespace of its own, with an
// interface that uses router advertisements and one that does not.
func namespace(t *testing.T) {
	t.Helper()
	// Not unlocked: the thread ends with its namespace when the test does.
	runtime.LockOSThread()
	fatal.If(t, unix.Unshare(unix.CLONE_NEWNET))
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "ra0"}, PeerName: "still0"}
	fatal.If(t, netlink.LinkAdd(pair))
	for _, s := range []modes.Sysctl{
		{Name: forward4, Value: "0"}, {Name: forward6, Value: "0"}, {Name: routeLocalnet, Value: "0"},
		{Name: "net/ipv6/conf/ra0/accept_ra", Value: "1"}, {Name: "net/ipv6/conf/still0/accept_ra", Value: "0"},
		{Name: "net/netfilter/nf_conntrack_udp_timeout", Value: "30"}, {Name: beLiberal, Value: "0"},
	} {
		fatal.If(t, sysctl.Set(s.Name, s.Value))
	}
}

var iptables = modes.OfSetting("iptables")[0]

var settings = configs.Settings{
	Mode:     "iptables",
	Families: []string{"ipv4", "ipv6"}, LocalhostNodePorts: true,
	Conntrack: configs.Conntrack{UDPTimeout: 45 * time.Second, TCPBeLiberal: true},
	Init:      configs.Init{Forwarding: true},
}

// initAgain runs Init and returns what it said of sysctls.
func initAgain(t *testing.T) string {
	t.Helper()
	t.Setenv("PATH", t.TempDir()) // modules are the host's, not the test's
	var out strings.Builder
	fatal.If(t, Init(t.Context(), settings, &out))
	var said strings.Builder
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "net/") {
			said.WriteString(line)
		}
	}
	return said.String()
}

func TestInit(t *testing.T) {
	namespace(t)
	want := `net/ipv6/conf/ra0/accept_ra = 2 (was 1)
net/ipv4/ip_forward = 1 (was 0)
net/ipv4/conf/all/route_localnet = 1 (was 0)
net/ipv6/conf/all/forwarding = 1 (was 0)
net/netfilter/nf_conntrack_udp_timeout = 45 (was 30)
net/netfilter/nf_conntrack_tcp_be_liberal = 1 (was 0)
`
	if diff := cmp.Diff(want, initAgain(t)); diff != "" {
		t.Errorf("first run (-want +got):\n%s", diff)
	}
	if got := initAgain(t); got != "" {
		t.Errorf("second run changed:\n%s", got)
	}
	for name, want := range map[string]string{
		forward4: "1", forward6: "1", routeLocalnet: "1",
		"net/ipv6/conf/ra0/accept_ra": "2", "net/ipv6/conf/still0/accept_ra": "0",
		"net/netfilter/nf_conntrack_udp_timeout": "45",
	} {
		if got, err := sysctl.Get(name); got != want || err != nil {
			t.Errorf("%s = %s, %v; want %s", name, got, err, want)
		}
	}
}

// Forwarding is the whole host's: who does not want it has it left alone, and is
// told what does not work.
func TestForwardingIsLeftAlone(t *testing.T) {
	namespace(t)
	left := settings
	left.Init.Forwarding = false
	t.Setenv("PATH", t.TempDir())
	fatal.If(t, Init(t.Context(), left, io.Discard))
	for name, want := range map[string]string{forward4: "0", forward6: "0", "net/ipv6/conf/ra0/accept_ra": "1"} {
		if got, err := sysctl.Get(name); got != want || err != nil {
			t.Errorf("%s = %s, %v; want %s", name, got, err, want)
		}
	}
	want := []string{
		"IPv4 forwarding is off: no endpoint on another host answers; svcproxy init leaves it, as [init] forwarding is false: set net/ipv4/ip_forward=1",
		"IPv6 forwarding is off: no endpoint on another host answers; svcproxy init leaves it, as [init] forwarding is false: set net/ipv6/conf/all/forwarding=1",
	}
	if diff := cmp.Diff(want, Verify(t.Context(), left, iptables)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestVerify(t *testing.T) {
	namespace(t)
	want := []string{
		"IPv4 forwarding is off: no endpoint on another host answers; run svcproxy init, or set net/ipv4/ip_forward=1",
		"IPv6 forwarding is off: no endpoint on another host answers; run svcproxy init, or set net/ipv6/conf/all/forwarding=1",
		"connection tracking takes TCP segments outside their window for invalid: one of them makes the client or this host reset its connection; run svcproxy init, or set net/netfilter/nf_conntrack_tcp_be_liberal=1",
		"localhost_node_ports is set but route_localnet is off: no node port answers on 127.0.0.1; run svcproxy init, or set net/ipv4/conf/all/route_localnet=1",
	}
	if diff := cmp.Diff(want, Verify(t.Context(), settings, iptables)); diff != "" {
		t.Errorf("before init (-want +got):\n%s", diff)
	}
	initAgain(t)
	if got := Verify(t.Context(), settings, iptables); got != nil {
		t.Errorf("after init: %q", got)
	}
}
