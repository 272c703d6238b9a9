//go:build netns

package nft_test

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/nft"
)

func Example() {
	netnstest.Example(func() error {
		c, err := nft.Dial()
		if err != nil {
			return err
		}
		defer c.Close()

		table := nft.Table{Family: unix.NFPROTO_IPV4, Name: "example"}
		b := nft.NewBatch(table) // all of it happens, or nothing
		b.AddTable("")
		b.AddSet(&nft.Set{Name: "vips", Key: nft.IPv4Addr})
		b.AddElement("vips", nft.Element{Key: netip.MustParseAddr("10.96.0.10").AsSlice()})
		if err := c.Commit(b); err != nil {
			return err
		}
		return c.Scan(table, "vips", func(e *nft.Element) error {
			addr, _ := netip.AddrFromSlice(e.Key)
			fmt.Println(addr)
			return nil
		})
	})
	// Output: 10.96.0.10
}
