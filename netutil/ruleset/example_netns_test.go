//go:build netns

package ruleset_test

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/ruleset"
)

// A rule of another program drops what clients send to an endpoint.
func Example() {
	netnstest.Example(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader("table ip firewall { chain forward { type filter hook forward priority 0; ip daddr 10.244.0.7 tcp dport 8080 drop; }; }\n")
		if err := cmd.Run(); err != nil {
			return err
		}
		rules := ruleset.Read(context.Background(), ruleset.Options{MaxRules: 1000})
		packet := ruleset.Packet{
			Src: netip.MustParseAddr("192.0.2.9"), SrcPort: 40000, Dst: netip.MustParseAddr("10.244.0.7"), DstPort: 8080,
			Protocol: unix.IPPROTO_TCP, In: "eth0", Out: "eth1",
		}
		for _, b := range rules.Bases {
			hits, _ := b.Walk(packet, nil)
			for _, h := range hits {
				fmt.Printf("%s: %s: it %s\n", b.Origin, h.Rule, h.Verdict.Kind)
			}
		}
		return nil
	})
	// Output: ip firewall forward: ip daddr 10.244.0.7 tcp dport 8080 drop: it drops
}
