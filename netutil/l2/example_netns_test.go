//go:build netns

package l2_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/netutil/l2"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

func ExampleAnnouncer() {
	netnstest.Example(func() error {
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader("link add eth0 type veth peer name port0\nlink set port0 up\nlink set eth0 up\naddress add 192.0.2.10/24 dev eth0\n")
		if err := cmd.Run(); err != nil {
			return err
		}
		a := l2.New(slog.Default())
		a.Set([]netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.11")})
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			for list := a.Results(); list[0].Sent == 0; list = a.Results() {
				time.Sleep(10 * time.Millisecond)
			}
			cancel()
		}()
		a.Run(ctx)
		for _, r := range a.Results() {
			if r.Err == nil {
				fmt.Printf("%s is announced on %s\n", r.Addr, r.Link)
			} else {
				fmt.Printf("%s is not: %v\n", r.Addr, r.Err)
			}
		}
		return nil
	})
	// Output:
	// 192.0.2.10 is announced on eth0
	// 192.0.2.11 is not: no link of this host has it, so this host does not answer for it; ip address add 192.0.2.11/32 dev eth0
}
