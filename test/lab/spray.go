package lab

import (
	"cmp"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// firstSpray is the first of the ports that datagrams of sprayUDP come from, each from the next.
const firstSpray = 20000

// sprayUDP sends count datagrams, at most 40,000, to one IPv4 address, each from a port of its
// own. It must run in the namespace that they come from.
func sprayUDP(to netip.AddrPort, count int) error {
	dst := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	for i := range count {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening a socket: %w", err)
		}
		err = cmp.Or(unix.Bind(fd, &unix.SockaddrInet4{Port: firstSpray + i}), unix.Sendto(fd, []byte("x"), 0, dst), unix.Close(fd))
		if err != nil {
			return fmt.Errorf("sending to %s: %w", to, err)
		}
	}
	return nil
}
