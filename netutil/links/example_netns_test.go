//go:build netns

package links_test

import (
	"fmt"
	"os/exec"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

func ExampleAddrs() {
	netnstest.Example(func() error {
		if err := exec.Command("ip", "link", "set", "lo", "up").Run(); err != nil {
			return err
		}
		addrs, err := links.Addrs()
		for _, a := range addrs {
			fmt.Println(a.Interface, a.Addr, a.Up, a.Loopback)
		}
		return err
	})
	// Output:
	// lo 127.0.0.1 true true
	// lo ::1 true true
}
