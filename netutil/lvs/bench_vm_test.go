//go:build vm

package lvs

import (
	"net/netip"
	"os/exec"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// manyServers is how many virtual servers a listing has, each with a destination.
const manyServers = 10_000

func fill(b *testing.B) *Conn {
	b.Helper()
	netnstest.Enter(b)
	fatal.If(b, exec.Command("ip", "link", "set", "lo", "up").Run())
	c, err := Dial(b.Context())
	fatal.If(b, err)
	b.Cleanup(func() { c.Close() })
	for i := range manyServers {
		fatal.If(b, c.AddServer(b.Context(), Server{Key: someKey(i), Scheduler: "wrr"}))
		fatal.If(b, c.AddDestination(b.Context(), someKey(i), Destination{AddrPort: first, Weight: 1}))
	}
	return c
}

// What it takes to read all, and to change one, of 10,000 virtual servers.
func BenchmarkManyServers(b *testing.B) {
	c := fill(b)
	b.Run("servers", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			list, err := c.Servers(b.Context(), false, noKeys)
			fatal.If(b, err)
			if len(list) != manyServers {
				b.Fatal(len(list))
			}
		}
	})
	b.Run("list", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			list, err := c.Servers(b.Context(), false, noKeys)
			fatal.If(b, err)
			for key := range list {
				_, err := c.Destinations(b.Context(), key)
				fatal.If(b, err)
			}
		}
	})
	b.Run("change", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			fatal.If(b, c.UpdateDestination(b.Context(), someKey(i%manyServers), Destination{AddrPort: first, Weight: uint32(1 + i%7)}))
		}
	})
	b.Run("add and remove", func(b *testing.B) {
		b.ReportAllocs()
		d := Destination{AddrPort: netip.AddrPortFrom(first.Addr().Next(), first.Port()), Weight: 1}
		for n := range b.N {
			fatal.If(b, c.AddDestination(b.Context(), someKey(n%manyServers), d))
			fatal.If(b, c.DeleteDestination(b.Context(), someKey(n%manyServers), d.AddrPort))
		}
	})
}
