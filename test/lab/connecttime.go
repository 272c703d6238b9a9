package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// ConnectPatience is how long one connection of a measurement may take.
const ConnectPatience = 2 * time.Second

// ConnectTimes makes count connections, one after the other, and returns how long each
// connect(2) took. It fails with the first that is not made.
func ConnectTimes(from *Host, to netip.AddrPort, count int) ([]time.Duration, error) {
	times := make([]time.Duration, 0, count)
	err := from.Do(func() error {
		for len(times) < count {
			took, err := ConnectTime(to)
			if errors.Is(err, unix.EINTR) {
				continue // a signal of the Go runtime: there is no time to tell
			}
			if err != nil {
				return fmt.Errorf("connecting to %s: %w", to, err)
			}
			times = append(times, took)
		}
		return nil
	})
	return times, err
}

// ConnectTime makes one connection from the namespace of the thread, within
// ConnectPatience, and resets it, which leaves no TIME_WAIT behind. EINTR: it is not known
// how long it took. A blocking system call has none of the poller's time in it.
func ConnectTime(to netip.AddrPort) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(int64(ConnectPatience)) // for connect(2) too, socket(7)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
		return 0, err
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, err
	}
	start := time.Now()
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	return time.Since(start), err
}
