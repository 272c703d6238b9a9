//go:build netns

package conntrack_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"svcproxy/netutil/conntrack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// namespace moves the test into a network namespace of its own, which ends with
// the test's thread, and runs commands there.
func namespace(t *testing.T, commands string) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(commands) {
		args := strings.Fields(line)
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}

// dial sends one datagram and returns where from and a function that sends another.
func dial(t *testing.T, network, to string) netip.AddrPort {
	t.Helper()
	c, err := net.Dial(network, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if network[:3] == "udp" {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	return netip.MustParseAddrPort(c.LocalAddr().String())
}

// flows lists all UDP flows, without removing any.
func flows(t *testing.T, ipv6 bool) []string {
	t.Helper()
	var all []string
	n, err := conntrack.PruneUDP(t.Context(), ipv6, func(f conntrack.Flow) bool {
		all = append(all, fmt.Sprint(f.Src, " ", f.Dst, " ", f.Reply))
		return false
	})
	if n != 0 || err != nil {
		t.Fatalf("PruneUDP of nothing = %d, %v; want 0, nil", n, err)
	}
	slices.Sort(all)
	return all
}

func expect(t *testing.T, when string, got []string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: flows\n got: %q\nwant: %q", when, got, want)
	}
}

func TestPruneUDP(t *testing.T) {
	namespace(t, `ip link set lo up
ip route add 10.96.0.0/24 dev lo src 127.0.0.1
iptables -w -t raw -A OUTPUT -p udp --dport 55 -j CT --zone 7
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p udp --dport 53 -j DNAT --to-destination 127.0.0.1:5353
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p udp --dport 54 -j DNAT --to-destination 127.0.0.1:5454
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p udp --dport 55 -j DNAT --to-destination 127.0.0.1:5555
ip6tables -w -t nat -A OUTPUT -p udp --dport 53 -j DNAT --to-destination [::1]:5353
`)
	tcp, err := net.Listen("tcp", "127.0.0.1:5353") // same address and port, another protocol
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	dial(t, "tcp", "127.0.0.1:5353")

	a := dial(t, "udp", "10.96.0.1:53")
	b := dial(t, "udp", "10.96.0.1:54")
	z := dial(t, "udp", "10.96.0.1:55") // in zone 7
	plain := dial(t, "udp", "127.0.0.1:9")
	six := dial(t, "udp6", "[::1]:53")

	flowA := fmt.Sprint(a, " 10.96.0.1:53 127.0.0.1:5353")
	flowB := fmt.Sprint(b, " 10.96.0.1:54 127.0.0.1:5454")
	flowZ := fmt.Sprint(z, " 10.96.0.1:55 127.0.0.1:5555")
	flowPlain := fmt.Sprint(plain, " 127.0.0.1:9 127.0.0.1:9")
	flow6 := fmt.Sprint(six, " [::1]:53 [::1]:5353")
	expect(t, "at first", flows(t, false), flowA, flowB, flowZ, flowPlain)
	expect(t, "at first, IPv6", flows(t, true), flow6)

	gone := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:5353"), netip.MustParseAddrPort("127.0.0.1:5555")}
	stale := func(f conntrack.Flow) bool { return slices.Contains(gone, f.Reply) }
	if n, err := conntrack.PruneUDP(t.Context(), false, stale); n != 2 || err != nil {
		t.Errorf("PruneUDP = %d, %v; want 2, nil", n, err)
	}
	expect(t, "after", flows(t, false), flowB, flowPlain)
	expect(t, "after, IPv6", flows(t, true), flow6)
	if out, err := exec.Command("conntrack", "-L", "-p", "tcp").Output(); err != nil || !strings.Contains(string(out), "dport=5353") {
		t.Errorf("the TCP flow is gone: %v\n%s", err, out)
	}

	if n, err := conntrack.PruneUDP(t.Context(), true, func(conntrack.Flow) bool { return true }); n != 1 || err != nil {
		t.Errorf("PruneUDP of IPv6 = %d, %v; want 1, nil", n, err)
	}
	expect(t, "after all of IPv6", flows(t, true))
}

// A flow that somebody else removes between the listing and us is no error and not counted.
func TestPruneUDPGone(t *testing.T) {
	namespace(t, `ip link set lo up
iptables -w -t nat -A OUTPUT -p udp --dport 53 -j DNAT --to-destination 127.0.0.1:5353
`)
	dial(t, "udp", "127.0.0.1:53")
	n, err := conntrack.PruneUDP(t.Context(), false, func(conntrack.Flow) bool {
		if out, err := exec.Command("conntrack", "-F").CombinedOutput(); err != nil {
			t.Fatalf("conntrack -F: %v\n%s", err, out)
		}
		return true
	})
	if n != 0 || err != nil {
		t.Errorf("PruneUDP = %d, %v; want 0, nil", n, err)
	}
}

func TestPruneUDPContext(t *testing.T) {
	namespace(t, `ip link set lo up
iptables -w -t nat -A OUTPUT -p udp --dport 53 -j DNAT --to-destination 127.0.0.1:5353
`)
	dial(t, "udp", "127.0.0.1:53")
	dial(t, "udp", "127.0.0.1:53")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	n, err := conntrack.PruneUDP(ctx, false, func(conntrack.Flow) bool {
		cancel()
		time.Sleep(50 * time.Millisecond) // until the socket is closed
		return true
	})
	if n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("PruneUDP that is cancelled between two flows = %d, %v; want 0, context canceled", n, err)
	}
	if n, err := conntrack.PruneUDP(ctx, false, nil); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("PruneUDP after cancel = %d, %v; want 0, context canceled", n, err)
	}
	expect(t, "after", flows(t, false), flows(t, false)...)
	if len(flows(t, false)) != 2 {
		t.Errorf("after: %d flows; want 2", len(flows(t, false)))
	}
}
