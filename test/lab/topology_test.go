//go:build netns

package lab

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source"
)

// newLab builds a lab that is removed with the test.
func newLab(t *testing.T) *Lab {
	t.Helper()
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Without svcproxy every host reaches every other, and addresses that nobody
// has are answered by gateway, and the source address stays.
func TestTopology(t *testing.T) {
	start := time.Now()
	l := newLab(t)
	t.Logf("built in %v", time.Since(start))

	nowhere := Dual{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")}
	for _, from := range slices.Concat([]*Host{l.Client, l.Node}, l.Local, l.Remote) {
		for _, protocol := range []source.Protocol{source.TCP, source.UDP, source.SCTP} {
			for _, addr := range nowhere.Each() {
				q := Question{From: from, Protocol: protocol, To: netip.AddrPortFrom(addr, 80)}
				if got := Ask(q); got.Outcome != Untouched || !from.Owns(got.Source) {
					t.Errorf("%s: %s", q, got)
				}
			}
			for _, to := range slices.Concat(l.Local, l.Remote) {
				for i, addr := range to.Addr().Each() {
					q := Question{From: from, Protocol: protocol, To: netip.AddrPortFrom(addr, EndpointPorts[i])}
					if got := Ask(q); got.Outcome != Answered || got.By != to.Role || got.Port != q.To.Port() || !from.Owns(got.Source) {
						t.Errorf("%s: %s", q, got)
					}
				}
			}
		}
		for _, to := range append(slices.Concat([]*Host{l.Node, l.Gateway}, l.Local, l.Remote), &Host{Addrs: []Dual{nowhere}}) {
			for _, addr := range to.Addr().Each() {
				if got := Ping(from, addr); got.Outcome != Answered {
					t.Errorf("ping from %s to %s: %s", from.Role, addr, got)
				}
			}
		}
	}
}

// Every address of the client is one that servers see.
func TestClientAddresses(t *testing.T) {
	l := newLab(t)
	for _, d := range l.Client.Addrs {
		for i, addr := range d.Each() {
			to := l.Local[0].Addr().Each()[i]
			q := Question{From: l.Client, Source: addr, Protocol: source.TCP, To: netip.AddrPortFrom(to, 8080)}
			if got := Ask(q); got.Source != addr {
				t.Errorf("%s: %s", q, got)
			}
		}
	}
}

// Refused, dropped and untouched packets can be told apart: rules made by hand stand for those of svcproxy.
func TestOutcomes(t *testing.T) {
	l := newLab(t)
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, rule := range []string{
			"FORWARD -p tcp --dport 81 -j REJECT --reject-with tcp-reset",
			"FORWARD -p udp --dport 81 -j REJECT",
			"FORWARD -p sctp --dport 81 -j REJECT",
			"FORWARD -p tcp --dport 83 -j DROP",
			"FORWARD -p udp --dport 83 -j DROP",
			"FORWARD -p sctp --dport 83 -j DROP",
		} {
			if _, err := l.Node.Run(tool, append([]string{"-w", "-A"}, strings.Fields(rule)...)...); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := []struct {
		protocol source.Protocol
		port     uint16
		want     Outcome
	}{
		{source.TCP, 80, Untouched}, {source.UDP, 80, Untouched}, {source.SCTP, 80, Untouched},
		{source.TCP, 81, Refused}, {source.UDP, 81, Refused}, {source.SCTP, 81, Refused},
		{source.TCP, 83, Dropped}, {source.UDP, 83, Dropped}, {source.SCTP, 83, Dropped},
	}
	for _, tt := range tests {
		for _, addr := range []string{"10.96.0.1", "fd00:96::1"} {
			for range 5 { // refusals after the first few would show a rate limit
				to := netip.AddrPortFrom(netip.MustParseAddr(addr), tt.port)
				q := Question{From: l.Client, Protocol: tt.protocol, To: to, Patience: 100 * time.Millisecond}
				if got := Ask(q); got.Outcome != tt.want {
					t.Errorf("%s: %s, want %s", q, got, tt.want)
				}
			}
		}
	}
	rejectPings(t, l)
}

func rejectPings(t *testing.T, l *Lab) {
	for tool, protocol := range map[string]string{"iptables": "icmp", "ip6tables": "icmpv6"} {
		if _, err := l.Node.Run(tool, "-w", "-A", "FORWARD", "-p", protocol, "-j", "REJECT"); err != nil {
			t.Fatal(err)
		}
	}
	for _, addr := range []string{"10.96.0.1", "fd00:96::1"} {
		if got := Ping(l.Client, netip.MustParseAddr(addr)); got.Outcome != Refused {
			t.Errorf("ping %s: %s, want refused", addr, got)
		}
	}
}

// Close leaves no namespace behind, and Sweep removes those of dead processes only.
func TestCloseAndSweep(t *testing.T) {
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	// The largest process id is 4194304 (PID_MAX_LIMIT), so this process is dead.
	dead, err := netnstest.New("svcp-4194305-1-node")
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(os.TempDir(), "svcp-4194305-x")
	if err := os.Mkdir(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := netnstest.Sweep(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of a dead process: %v, want it gone", err)
	}
	if _, err := os.Stat(filepath.Join(netnstest.Dir, dead.Name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("namespace of a dead process: %v, want it gone", err)
	}
	_ = dead.Close() // its name has gone
	if left, _ := filepath.Glob(filepath.Join(netnstest.Dir, l.name+"-*")); len(left) != 10 {
		t.Errorf("living namespaces after Sweep: %v, want 10", left)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(netnstest.Dir, l.name+"-*")); len(left) != 0 {
		t.Errorf("after Close: %v", left)
	}
}
