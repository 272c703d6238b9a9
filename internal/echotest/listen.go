package echotest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
)

// The kernel holds a socket that was closed until the programs that were being started meanwhile run: until then they have copies
// of all files of the test.
const heldByOthers = 5 * time.Second

// Listen listens at a TCP address, at which the test itself may have listened a moment ago. It waits some seconds until
// the address is free.
func Listen(addr string) (l net.Listener, err error) {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	err = whenFree(func() error {
		l, err = lc.Listen(context.Background(), "tcp", addr)
		return err
	})
	return l, err
}

func listenUDP(at netip.AddrPort) (c *net.UDPConn, err error) {
	err = whenFree(func() error {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	return c, err
}

func whenFree(listen func() error) (err error) {
	pace.Within(heldByOthers, func() bool {
		err = listen()
		return !errors.Is(err, syscall.EADDRINUSE)
	})
	return err
}
