//go:build bench

package bench

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

const (
	// talkInterval is how often each held connection that talks says something.
	talkInterval = time.Second

	// talkPatience is how long an answer may take: TCP sends again after up to twice
	// as long as nothing came through.
	talkPatience = 3 * time.Minute
)

// held are connections through VIPs.
type held struct {
	talkers, silent []*lab.Conn // all the time, or only before and after

	end  func() // of the talk
	talk sync.WaitGroup
	lost chan error // one of each connection, and room for all
}

// connections makes some from the client to some of the services.
func connections(n *node, all []lab.Service, count int) (*held, error) {
	ctx, cancel := context.WithCancel(context.Background())
	h := &held{end: cancel, lost: make(chan error, count)}
	for i := range count {
		to := netip.AddrPortFrom(all[i*len(all)/count].VIPs[0], vipPort)
		c, answer := lab.Connect(lab.Question{From: n.Client, Protocol: source.TCP, To: to, Patience: lab.ConnectPatience})
		if c == nil {
			h.close()
			return nil, fmt.Errorf("holding a connection to %s: %s", to, answer)
		}
		if i%2 == 0 {
			h.talkers = append(h.talkers, c)
		} else {
			h.silent = append(h.silent, c)
		}
	}
	h.echo(h.silent)
	for i, c := range h.talkers {
		h.talk.Go(func() { h.chat(ctx, c, talkInterval*time.Duration(i)/time.Duration(count)) })
	}
	return h, nil
}

// chat talks on one connection, from some time on.
func (h *held) chat(ctx context.Context, c *lab.Conn, from time.Duration) {
	for wait := from; ; wait = talkInterval {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err := c.Echo(talkPatience); err != nil {
			h.lost <- err
			return
		}
	}
}

// echo has connections answer once.
func (h *held) echo(conns []*lab.Conn) {
	for _, c := range conns {
		if err := c.Echo(talkPatience); err != nil {
			h.lost <- err
		}
	}
}

// count has the silent ones answer once more, and returns how many of both are lost.
func (h *held) count() (talkers, silent int, err error) {
	h.end()
	h.talk.Wait() // each has its answer, or an error
	talkers = len(h.lost)
	h.echo(h.silent)
	silent = len(h.lost) - talkers
	if talkers+silent > 0 {
		err = fmt.Errorf("of %d connections %d are lost, the first: %w", len(h.talkers)+len(h.silent), talkers+silent, <-h.lost)
	}
	return talkers, silent, err
}

// close ends all connections.
func (h *held) close() {
	h.end()
	for _, c := range slices.Concat(h.talkers, h.silent) {
		c.SetLinger(0)
		c.Close()
	}
	h.talk.Wait()
}

const (
	// askInterval is how often a new connection is tried, to one service after the other.
	askInterval = 5 * time.Millisecond

	// calm is how long all must be answered before the outage counts as over.
	calm = 2 * time.Second
)

// An outage is what new connections met.
type outage struct {
	asked, failed int
	long          time.Duration // from the first that failed to after the last one
}

// A poll makes new connections all the time.
type poll struct {
	mu                          sync.Mutex
	asked, failed               int
	firstFailed, lastFailed, ok time.Time // when such a connection was begun
	end                         func()
}

// pollAll polls services of which some are repaired first and some last, until the test ends.
func pollAll(t *testing.T, n *node, all []lab.Service) *poll {
	p := &poll{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(askInterval)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			const places = 7
			to := netip.AddrPortFrom(all[i%places*(len(all)-1)/(places-1)].VIPs[0], vipPort)
			wg.Go(func() { p.ask(lab.Question{From: n.Client, Protocol: source.TCP, To: to}) })
		}
	})
	p.end = func() { cancel(); wg.Wait() }
	t.Cleanup(p.end)
	time.Sleep(calm / 4) // some in peace
	return p
}

// ask makes one new connection.
func (p *poll) ask(q lab.Question) {
	start := time.Now()
	got := lab.Ask(q)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if got.Outcome == lab.Answered {
		p.ok = times.Later(p.ok, start)
		return
	}
	p.failed++
	if p.firstFailed.IsZero() || start.Before(p.firstFailed) {
		p.firstFailed = start
	}
	p.lastFailed = times.Later(p.lastFailed, start)
}

// over waits until new connections have been answered for a while.
func (p *poll) over(patience time.Duration) (outage, error) {
	time.Sleep(calm)
	err := pace.Poll(patience, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ok.Sub(p.lastFailed) < calm {
			return fmt.Errorf("%d of %d new connections fail, for %v now", p.failed, p.asked, time.Since(p.firstFailed))
		}
		return nil
	})
	p.end()
	o := outage{asked: p.asked, failed: p.failed}
	if p.failed > 0 {
		o.long = p.lastFailed.Sub(p.firstFailed) + askInterval
	}
	return o, err
}
