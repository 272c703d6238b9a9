//go:build netns

package conntrack_test

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"

	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// Flows to a frontend whose endpoint is gone are removed, so that the next packet
// of each client is balanced again.
func ExamplePrune() {
	netnstest.Example(func() error {
		flow := "-I -p udp -t 60 -s 192.0.2.7 --sport 5000 -d 10.96.0.53 --dport 53 -r 10.244.0.1 --reply-port-src 53 -q 192.0.2.7 --reply-port-dst 5000"
		if out, err := exec.Command("sh", "-c", "conntrack "+flow).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		gone := netip.MustParseAddr("10.244.0.1")
		dns := conntrack.Query{To: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.53:53")}}
		n, err := conntrack.Prune(context.Background(), false, dns, func(f conntrack.Flow) conntrack.Verdict {
			if f.Reply.Addr() == gone {
				return conntrack.Remove
			}
			return conntrack.Keep
		})
		fmt.Println("removed", n)
		return err
	})
	// Output: removed 1
}
