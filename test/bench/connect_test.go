//go:build bench

package bench

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

const (
	// connectRound is how many connections are made on one node before the next has its turn.
	connectRound = 50

	connectPatience = 2 * time.Second
)

// A target is a service on a node, and how long connections to it took.
type target struct {
	what  string
	from  *lab.Host
	to    netip.AddrPort
	times []time.Duration
}

// connectAll makes count connections to each target, round by round, so that
// what else the machine does meets all of them alike. The first round warms caches up.
func connectAll(targets []*target, count int) error {
	for _, t := range targets {
		if err := t.answered(); err != nil {
			return err
		}
	}
	for range 1 + (count+connectRound-1)/connectRound {
		for _, t := range targets {
			times, err := connectTimes(t.from, t.to)
			if err != nil {
				return fmt.Errorf("%s: %w", t.what, err)
			}
			t.times = append(t.times, times...)
		}
	}
	for _, t := range targets {
		t.times = t.times[connectRound:]
	}
	return nil
}

// answered checks that an endpoint answers: without rules, connections would
// be made too, with the lab's gateway.
func (t *target) answered() error {
	q := lab.Question{From: t.from, Protocol: source.TCP, To: t.to}
	if got := lab.Ask(q); got.Outcome != lab.Answered {
		return fmt.Errorf("%s: %s: %s", t.what, q, got)
	}
	return nil
}

// connectTimes returns how long each of a round of connect(2) took.
func connectTimes(from *lab.Host, to netip.AddrPort) ([]time.Duration, error) {
	times := make([]time.Duration, 0, connectRound)
	err := from.Do(func() error {
		for len(times) < connectRound {
			took, err := connect(to)
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

// connect makes one connection and resets it, which leaves no TIME_WAIT behind.
// A blocking system call has none of the poller's time in it.
func connect(to netip.AddrPort) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(int64(connectPatience)) // for connect(2) too, socket(7)
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
