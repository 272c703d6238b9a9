//go:build netns

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
)

var nodePortGroups = []group{
	{
		name: "primary node ports",
		cases: []testCase{
			{name: "node ports on the primary address", run: testPrimaryNodePorts},
			{name: "node port follows address", run: testNodePortFollowsAddress},
			{name: "node port without other addresses", run: testNodePortOnly},
		},
	},
	{
		name:     "all node ports",
		settings: "node_port_addresses = [\"all\"]\n",
		cases:    []testCase{{name: "node ports on all addresses", run: testAllNodePorts}},
	},
	{
		name:     "some node ports",
		settings: "node_port_addresses = [\"10.2.0.0/24\", \"fd00:2::/64\"]\n",
		cases:    []testCase{{name: "node ports on chosen addresses", run: testChosenNodePorts}},
	},
	{
		name:     "localhost node ports",
		settings: "localhost_node_ports = true\n",
		cases:    []testCase{{name: "node ports on localhost", run: testLocalhostNodePorts}},
		except:   []string{"nftables", "ipvs"},
	},
	{
		name:   "no localhost node ports",
		cases:  []testCase{{name: "refused by name", run: testLocalhostRefused}},
		except: []string{"iptables"},
	},
}

func testPrimaryNodePorts(t *testing.T, e *env) {
	e.serve(t, FrontAddr, e.nodePort())
	e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
	both := by(e.Local[0], e.Remote[0])
	e.expect(t,
		check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: both.masked()},
		check{from: e.Local[2], to: UplinkAddr, port: e.nodePort(), want: both.masked()},
		check{from: e.Node, to: UplinkAddr, port: e.nodePort(), want: both},
		check{from: e.Client, to: FrontAddr, port: e.nodePort(), want: by(e.Node)},
		check{from: e.Client, to: e.Gateway.Addr(), port: e.nodePort(), want: untouched},
		check{from: e.Client, to: UplinkAddr, port: e.nodePort() + 500, want: refused}, // by the host: nobody listens
		check{from: e.Client, to: e.vip(1), port: e.nodePort(), want: refused},
		check{from: e.Client, to: e.external(1), port: e.nodePort(), want: e.unserved()},
	)
	e.expectPing(t, e.Client, UplinkAddr, Answered)
}

func testNodePortFollowsAddress(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0])...))
	second := Dual{netip.MustParseAddr("10.3.77.1"), netip.MustParseAddr("fd00:3:0:77::1")} // of no network
	t.Run("added", func(t *testing.T) {
		e.carry(t, "uplink", second)
		e.expect(t,
			check{from: e.Client, to: second, port: e.nodePort(), want: by(e.Local[0])},
			check{from: e.Node, to: second, port: e.nodePort(), want: by(e.Local[0])},
		)
	})
	e.expect(t,
		check{from: e.Client, to: second, port: e.nodePort(), want: untouched},
		check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: by(e.Local[0])},
	)
}

func testAllNodePorts(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
	both := by(e.Local[0], e.Remote[0])
	e.expect(t,
		check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: both.masked()},
		check{from: e.Client, to: FrontAddr, port: e.nodePort(), want: both.masked()},
		check{from: e.Node, to: FrontAddr, port: e.nodePort(), want: both},
		check{from: e.Node, to: localhost, port: e.nodePort(), want: refused}, // by the host
	)
}

func testChosenNodePorts(t *testing.T, e *env) {
	e.serve(t, UplinkAddr, e.nodePort())
	e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
	both := by(e.Local[0], e.Remote[0])
	e.expect(t,
		check{from: e.Client, to: FrontAddr, port: e.nodePort(), want: both.masked()},
		check{from: e.Node, to: FrontAddr, port: e.nodePort(), want: both},
		check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: by(e.Node)},
		check{from: e.Node, to: UplinkAddr, port: e.nodePort(), want: by(e.Node)},
	)
}

var localhost = Dual{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}

// testLocalhostNodePorts: IPv6 has no localhost that could be routed.
func testLocalhostNodePorts(t *testing.T, e *env) {
	if err := e.Node.Sysctl("net.ipv4.conf.all.route_localnet=1"); err != nil { // as svcproxy init does
		t.Fatal(err)
	}
	e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
	both := by(e.Local[0], e.Remote[0])
	e.expect(t,
		check{from: e.Node, to: Dual{V4: localhost.V4}, port: e.nodePort(), want: both.masked()},
		check{from: e.Node, to: Dual{V6: localhost.V6}, port: e.nodePort(), want: refused}, // by the host
		check{from: e.Node, to: UplinkAddr, port: e.nodePort(), want: both},
		check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: both},
	)
	e.neighbourAsks(t, e.Local[2], localhost.V4)
}

// neighbourAsks has a host send what is for an address of loopback to its gateway, as an attacker would: none of it
// is balanced, with or without an answer that gets back.
func (e *env) neighbourAsks(t *testing.T, host *Host, to netip.Addr) {
	t.Cleanup(func() {
		for _, state := range []string{"down", "up"} { // which brings back what is removed here
			if _, err := host.Run("ip", "link", "set", "lo", state); err != nil {
				t.Error(err)
			}
		}
	})
	gateway, err := host.Run("ip", "-4", "route", "show", "default")
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{
		"del local 127.0.0.1 dev lo table local", "del local 127.0.0.0/8 dev lo table local",
		"add " + to.String() + strings.TrimPrefix(string(gateway), "default"),
	} {
		if _, err := host.Run("ip", append([]string{"route"}, strings.Fields(words)...)...); err != nil {
			t.Fatal(err)
		}
	}
	e.expect(t, check{from: host, to: Dual{V4: to}, port: e.nodePort(), want: dropped})
	out, err := e.Node.Run("conntrack", "-L", "-s", host.Addr().V4.String(), "-d", to.String())
	if err != nil || strings.Contains(string(out), to.String()) {
		t.Errorf("a neighbour asked %s for a node port, %v:\n%s", to, err, out)
	}
}

// testLocalhostRefused: a mode that cannot have them says so. A daemon that runs goes on as before, one that starts has
// the last good settings, and none starts without these.
func testLocalhostRefused(t *testing.T, e *env) {
	const fault = "localhost_node_ports is for iptables mode, and mode is"
	e.apply(t, e.everywhere(at(e.Local[0])...))
	if err := e.daemon.Settings(e.settings + "localhost_node_ports = true\n"); err != nil {
		t.Fatal(err)
	}
	e.expectLog(t, fault)
	e.expect(t, check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: by(e.Local[0])})
	if err := errors.Join(e.daemon.Signal(unix.SIGHUP), e.daemon.Apply("alive")); err != nil {
		t.Error(err)
	}
	e.remove(t, "alive.json")
	if err := errors.Join(e.daemon.Stop(), e.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	e.expect(t, check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: by(e.Local[0])})
	if err := errors.Join(e.daemon.Stop(), e.daemon.Forget()); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if _, err := e.daemon.Command("run"); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(err.Error(), fault) {
		t.Errorf("run with refused settings: %v, want exit code 1 and %q", err, fault)
	}
	if err := errors.Join(e.daemon.Settings(e.settings), e.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	e.expect(t, check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: by(e.Local[0])})
}

// expectLog waits until the daemon has logged something.
func (e *env) expectLog(t *testing.T, want string) {
	t.Helper()
	if err := e.logs(want); err != nil {
		t.Error(err)
	}
}

// logs waits for a line among the last ones of the daemon's log.
func (e *env) logs(want string) error {
	return pace.Poll(expectPatience, func() error {
		if !strings.Contains(e.daemon.LogTail(logLines), want) {
			return fmt.Errorf("the log does not say %q", want)
		}
		return nil
	})
}

// testNodePortOnly: a service without any address serves both families.
func testNodePortOnly(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	s.VIPs, s.ExternalIPs, s.LoadBalancerIPs = nil, nil, nil
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: by(e.Local[0], e.Remote[0]).masked()})
}
