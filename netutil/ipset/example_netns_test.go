//go:build netns

package ipset_test

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

func Example() {
	netnstest.Example(func() error {
		ctx := context.Background()
		c, err := ipset.Dial()
		if err != nil {
			return err
		}
		defer c.Close()

		if err := c.Create(ctx, ipset.Set{Name: "VIPS", Type: ipset.HashIPPort, MaxElem: 100}); err != nil {
			return err
		}
		web := ipset.Entry{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: unix.IPPROTO_TCP, Port: 80}
		if err := c.Add(ctx, "VIPS", []ipset.Entry{web}); err != nil {
			return err
		}
		s, err := c.List(ctx, "VIPS")
		if err != nil {
			return err
		}
		fmt.Println(s.Name, s.Type, s.Entries)
		return nil
	})
	// Output: VIPS hash:ip,port [10.96.0.10,tcp:80]
}
