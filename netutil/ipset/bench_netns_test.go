//go:build netns

package ipset

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// BenchmarkAdd adds 2,000 members to an empty set, by messages of our own and by vishvananda/netlink, which
// docs/dependencies.md compares.
func BenchmarkAdd(b *testing.B) {
	const name, count = "SVCP-B", 2000
	protocol, port := uint8(unix.IPPROTO_TCP), uint16(80)
	entries := make([]Entry, count)
	for i := range entries {
		entries[i] = Entry{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Protocol: protocol, Port: port}
	}
	for way, add := range map[string]func(c *Conn, b *testing.B) error{
		"ours": func(c *Conn, b *testing.B) error { return c.Add(b.Context(), name, entries) },
		"library": func(*Conn, *testing.B) error {
			for i := range entries {
				if err := netlink.IpsetAdd(name, &netlink.IPSetEntry{IP: entries[i].Addr.AsSlice(), Protocol: &protocol, Port: &port}); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		b.Run(way, func(b *testing.B) {
			netnstest.Enter(b)
			c, err := Dial()
			fatal.If(b, err)
			defer c.Close()
			fatal.If(b, c.Create(b.Context(), Set{name, HashIPPort, false, count}))
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				fatal.If(b, c.Flush(b.Context(), name))
				b.StartTimer()
				fatal.If(b, add(c, b))
			}
		})
	}
}
