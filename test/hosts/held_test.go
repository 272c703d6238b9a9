//go:build netns

package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

// heldPatience is how long a connection may take to go on: what was lost with a balancer is sent
// again after 0.2 s, twice that, and so on.
const heldPatience = 20 * time.Second

// openPatience is how long one may take to begin.
const openPatience = 4 * time.Second

// A held is a TCP connection of a client through a balancer.
type held struct {
	*lab.Conn
	from netip.AddrPort
}

// hold opens so many connections, half of each family, from all addresses of the clients.
func (s *spread) hold(t *testing.T, count int, port uint16) []*held {
	t.Helper()
	return s.holdEach(t, count, func(i int) lab.Question { return s.question(i, port, source.TCP) })
}

// holdDirect opens so many connections to endpoints themselves.
func (s *spread) holdDirect(t *testing.T, count int, port uint16) []*held {
	t.Helper()
	return s.holdEach(t, count, func(i int) lab.Question {
		q := s.question(i, port, source.TCP)
		q.To = netip.AddrPortFrom(s.endpoints[i%endpointCount].Addr().Each()[i%2], port)
		return q
	})
}

func (s *spread) holdEach(t *testing.T, count int, question func(i int) lab.Question) []*held {
	t.Helper()
	list := make([]*held, count)
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(32)
	for i := range list {
		g.Go(func() (err error) {
			if ctx.Err() != nil {
				return nil // another has failed
			}
			list[i], err = open(question(i))
			return err
		})
	}
	err := g.Wait()
	t.Cleanup(func() {
		for _, c := range list {
			if c != nil {
				c.SetLinger(0)
				c.Close()
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func open(q lab.Question) (*held, error) {
	q.Patience = openPatience
	c, answer := lab.Connect(q)
	if c == nil {
		return nil, fmt.Errorf("%s: %s", q, answer)
	}
	if answer.Source != q.Source {
		c.Close()
		return nil, fmt.Errorf("%s: the endpoint sees %s", q, answer.Source)
	}
	return &held{c, c.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()}, nil
}

// question returns the i-th question, of either family in turn.
func (s *spread) question(i int, port uint16, protocol source.Protocol) lab.Question {
	from := s.clients.Addrs[i/2%clientAddresses]
	return lab.Question{
		From: s.clients, Source: from.Each()[i%2], Protocol: protocol,
		To: netip.AddrPortFrom(spreadVIP.Each()[i%2], port),
	}
}

// A tally is what became of connections.
type tally struct {
	alive, reset, silent int
	first                error // of those that are not alive
}

func (a tally) String() string {
	text := fmt.Sprintf("%d of %d go on", a.alive, a.alive+a.reset+a.silent)
	if a.first != nil {
		text += fmt.Sprintf(" (%d reset, %d silent; the first: %v)", a.reset, a.silent, a.first)
	}
	return text
}

func (a tally) all() bool { return a.reset+a.silent == 0 && a.alive > 0 }

func (a *tally) add(err error) {
	switch {
	case err == nil:
		a.alive++
		return
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		a.reset++
	default:
		a.silent++
	}
	if a.first == nil {
		a.first = err
	}
}

// echo has each connection echo a line. Its server is of the same connection, so at the same endpoint.
func echo(list []*held, patience time.Duration) tally {
	return each(list, func(c *held) error { return c.Echo(patience) })
}

func each(list []*held, do func(*held) error) tally {
	var a tally
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(256)
	for _, c := range list {
		g.Go(func() error {
			err := do(c)
			if err != nil {
				err = fmt.Errorf("%s: %w", c.from, err)
			}
			mu.Lock()
			defer mu.Unlock()
			a.add(err)
			return nil
		})
	}
	g.Wait()
	return a
}

// of returns the connections that a balancer has translated.
func (b *balancer) of(t *testing.T, list []*held) (mine []*held) {
	t.Helper()
	passing := b.passing(t, "tcp")
	for _, c := range list {
		if passing[c.from] {
			mine = append(mine, c)
		}
	}
	return mine
}
