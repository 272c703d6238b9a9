package bgp_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/netutil/bgp"
)

func ExampleSpeaker() {
	s, err := bgp.New(bgp.Config{
		AS: 64512, RouterID: netip.MustParseAddr("192.0.2.1"), ListenPort: -1, GracefulRestart: 2 * time.Minute,
		Peers: []bgp.Peer{{Address: netip.MustParseAddr("127.0.0.1"), AS: 64500, Port: 1}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan error)
	go func() { ended <- s.Run(context.Background()) }()

	// Once the kernel serves the address, and again at each change, all that is to be announced:
	if err := s.SetRoutes([]bgp.Route{{Prefix: netip.MustParsePrefix("203.0.113.9/32")}}); err != nil {
		fmt.Println(err)
	}
	for _, p := range s.State() {
		fmt.Println(p.Address, p.State == bgp.Established, p.IPv4.Announced)
	}

	s.Stop(true) // the process starts again soon: peers keep the routes
	fmt.Println(<-ended)
	// Output:
	// 127.0.0.1 false 0
	// <nil>
}
