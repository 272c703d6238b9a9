//go:build bench

package bench

import (
	"fmt"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

// connectRound is how many connections are made on one node before the next has its turn.
const connectRound = 50

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
	return lab.ConnectTimes(from, to, connectRound)
}
