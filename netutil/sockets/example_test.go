package sockets_test

import (
	"fmt"
	"net"
	"net/netip"

	"svcproxy.dev/svcproxy/netutil/sockets"
)

func ExampleListeners() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()

	listeners, err := sockets.Listeners()
	if err != nil {
		fmt.Println(err)
	}
	for _, s := range listeners {
		if s.AddrPort == netip.MustParseAddrPort(l.Addr().String()) {
			fmt.Println("protocol", s.Protocol, "own", s.Own)
		}
	}
	// Output: protocol 6 own true
}
