//go:build vm

package lvs_test

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

func Example() {
	netnstest.Example(func() error {
		ctx := context.Background()
		c, err := lvs.Dial(ctx)
		if err != nil {
			return err
		}
		defer c.Close()

		web := lvs.Key{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: unix.IPPROTO_TCP, Port: 80}
		if err := c.AddServer(ctx, lvs.Server{Key: web, Scheduler: "wrr"}); err != nil {
			return err
		}
		s, err := c.Server(ctx, web)
		fmt.Println(s.Key, s.Scheduler)
		return err
	})
	// Output: -t 10.96.0.10:80 wrr
}
