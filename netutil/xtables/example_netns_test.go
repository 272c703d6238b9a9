//go:build netns

package xtables_test

import (
	"context"
	"fmt"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/xtables"
)

func Example() {
	netnstest.Example(func() error {
		ctx := context.Background()
		tools, err := xtables.Installed(ctx, false)
		if err != nil {
			return err
		}
		iptables := tools[0] // what plain iptables means on this host

		var s xtables.Script
		s.Set("nat", "EXAMPLE-MASQ", []byte("-A EXAMPLE-MASQ -s 10.0.0.0/8 -j MASQUERADE\n"))
		s.InsertJump("nat", "POSTROUTING", "-j EXAMPLE-MASQ", 0)
		if err := iptables.Restore(ctx, &s); err != nil {
			return err
		}
		nat, err := iptables.Read(ctx, "nat", "EXAMPLE-")
		if err != nil {
			return err
		}
		fmt.Println(len(nat.Chains), nat.Jumps)
		return nil
	})
	// Output: 1 map[POSTROUTING:[-j EXAMPLE-MASQ]]
}
