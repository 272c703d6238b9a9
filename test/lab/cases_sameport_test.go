//go:build netns

package lab

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// Clients that connect again from the source port that they had before: connection tracking may still know
// the connection of before, whose endpoint has reset it.
var samePortGroups = []group{{
	name: "same source port",
	cases: []testCase{
		{name: "endpoint is removed", run: leavesAfter(removeVictim)},
		{name: "weight 0", run: testSamePort(sameChange{datagramsStay: true, do: endpointBecomes(weight(0))})},
		{name: "disabled", run: testSamePort(sameChange{datagramsStay: true, do: endpointBecomes(disabled)})},
		{name: "not ready", run: leavesAfter(endpointBecomes(notReady))},
		{name: "drained", run: testSamePort(sameChange{datagramsStay: true, do: drainVictim})},
		{name: "drained for too long", run: testSamePort(sameChange{closes: true, do: drainVictimBriefly})},
		{name: "down", run: testSamePort(sameChange{dead: true, do: func(t *testing.T, e *env, _ Service) {
			e.expectTargets(t, "one is down", 1)
		}})},
		{name: "sources", run: testSamePort(sameChange{want: &dropped, do: func(t *testing.T, e *env, s Service) {
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:77::/64")}
			e.apply(t, s)
		}})},
		{name: "all endpoints are removed", run: testSamePort(sameChange{want: &refused, do: func(t *testing.T, e *env, s Service) {
			s.Endpoints = nil
			e.apply(t, s)
		}})},
		{name: "file is deleted and comes back", run: testSamePort(sameChange{gone: true, do: deleteFile})},
		{name: "file is deleted while nothing runs", run: testSamePort(sameChange{gone: true, do: deleteFileWhileStopped})},
		{name: "queries under way", run: testQueriesUnderWay},
		{name: "half-closed and removed", run: testHalfClosed(removeVictim)},
		{name: "half-closed and drained", run: testHalfClosed(drainVictim)},
		{name: "unanswered", run: testUnansweredOfRemoved},
		{name: "sent before the service", run: testSentBeforeService},
		{name: "rolling replacement", run: testRollingSamePorts},
	},
}}

func disabled(ep *Endpoint) { ep.Enabled = new(false) }

// A sameChange is a change after which clients with a connection to the first remote endpoint, the
// victim, must not come to it again.
type sameChange struct {
	do            func(t *testing.T, e *env, s Service)
	dead          bool  // the victim resets connections before the change, and answers nothing after it
	closes        bool  // connections are closed
	datagramsStay bool  // UDP flows stay with the victim
	want          *want // nil: an answer by the second remote endpoint
	gone          bool  // there is no service afterwards, until it comes back
	leaves        bool  // the victim is none of the service's endpoints any more, and lives
}

func leavesAfter(do func(*testing.T, *env, Service)) func(*testing.T, *env) {
	return testSamePort(sameChange{do: do, leaves: true})
}

// endpointBecomes changes the victim.
func endpointBecomes(change func(*Endpoint)) func(*testing.T, *env, Service) {
	return func(t *testing.T, e *env, s Service) {
		s.Endpoints = append(with(change, e.Remote[0]), at(e.Remote[1])...)
		e.apply(t, s)
	}
}

func removeVictim(t *testing.T, e *env, s Service) {
	s.Endpoints = at(e.Remote[1])
	e.apply(t, s)
}

func drainVictim(t *testing.T, e *env, _ Service) { e.drain(t) }

func drainVictimBriefly(t *testing.T, e *env, _ Service) { e.drain(t, "--wait", "--timeout", "1s") }

// deleteFile deletes the file of the case, and waits until its service has gone everywhere.
func deleteFile(t *testing.T, e *env, _ Service) {
	if err := e.daemon.RemoveFile(e.name() + ".json"); err != nil {
		t.Fatal(err)
	}
	e.hasGone(t)
}

// deleteFileWhileStopped does so while no daemon runs.
func deleteFileWhileStopped(t *testing.T, e *env, _ Service) {
	if err := errors.Join(e.daemon.Stop(), e.daemon.RemoveFile(e.name()+".json"), e.daemon.Start()); err != nil {
		t.Fatal(err)
	}
	e.hasGone(t)
}

// hasGone waits until the service of the case has gone everywhere.
func (e *env) hasGone(t *testing.T) {
	t.Helper()
	gone := e.sameAddresses()
	for i := range gone {
		if gone[i].want = e.givenUp(); gone[i].port == e.nodePort() {
			gone[i].want = refused
		}
	}
	e.expect(t, gone...)
}

// drain drains the victim.
func (e *env) drain(t *testing.T, args ...string) {
	t.Helper()
	for _, a := range e.Remote[0].Addr().Each() {
		t.Cleanup(func() {
			if out, err := e.daemon.Command("undrain", a.String()); err != nil {
				t.Errorf("undrain: %v: %s", err, out)
			}
		})
		if out, err := e.daemon.Command("drain", append([]string{a.String()}, args...)...); err != nil {
			t.Fatalf("drain: %v: %s", err, out)
		}
	}
}

// A samePort is a client that always has the same port.
type samePort struct {
	question Question
	conn     *Conn // nil: none
	flow     *Flow // of UDP
}

// samePorts returns clients of every kind of address of a service, TCP and UDP, with a connection to the victim.
func (e *env) samePorts(t *testing.T) (all []*samePort) {
	t.Helper()
	for _, c := range e.sameAddresses() {
		for _, q := range c.questions() {
			all = append(all, e.samePort(t, q))
		}
	}
	return all
}

// sameAddresses returns what reaches a service that is everywhere.
func (e *env) sameAddresses() []check {
	return []check{
		{from: e.Client, to: e.vip(1)}, {from: e.Client, to: e.external(1)}, {from: e.Client, to: UplinkAddr, port: e.nodePort()},
	}
}

// samePort returns a client whose connection leads to the victim.
func (e *env) samePort(t *testing.T, q Question) *samePort {
	t.Helper()
	q.Patience = expectPatience
	for range 200 {
		q.Port = freshPort()
		c := &samePort{question: q}
		got := c.ask()
		if got.By == e.Remote[0].Role {
			t.Cleanup(c.close)
			return c
		}
		if c.close(); got.Outcome != Answered {
			t.Fatalf("%s: %s", q, got)
		}
	}
	t.Fatalf("%s: %s never answers", q, e.Remote[0].Role)
	return nil
}

// resetTime is how long a reset may take to be everywhere: a packet that another processor sends may overtake it.
const resetTime = 5 * time.Millisecond

// ask connects, or sends a datagram, from the port of the client.
func (c *samePort) ask() (got Answer) {
	if c.question.Protocol == source.TCP {
		if c.conn != nil {
			c.close()
			time.Sleep(resetTime)
		}
		c.conn, got = connectAgain(c.question)
		return got
	}
	if c.flow == nil {
		var err error
		if c.flow, err = NewFlow(c.question, c.question.Port); err != nil {
			return failed(err)
		}
	}
	c.flow.question.Patience = c.question.Patience
	return c.flow.Ask()
}

// connectAgain connects from a port whose last connection was closed. A process that another test starts at that
// moment keeps the port for a little longer.
func connectAgain(q Question) (c *Conn, got Answer) {
	pace.Poll(expectPatience, func() error {
		if c, got = Connect(q); errors.Is(got.Err, unix.EADDRINUSE) {
			return got.Err
		}
		return nil
	})
	return c, got
}

func (c *samePort) close() {
	if c.conn != nil {
		c.conn.SetLinger(0)
		c.conn.Close()
		c.conn = nil
	}
	if c.flow != nil {
		c.flow.Close()
		c.flow = nil
	}
}

// isReset waits until the server resets the connection.
func (c *samePort) isReset() error {
	if c.conn == nil {
		return nil
	}
	defer c.close()
	c.conn.SetDeadline(time.Now().Add(pace.Scale(expectPatience)))
	for {
		if _, err := io.WriteString(c.conn, "x\n"); err != nil {
			if isRefusal(err) || errors.Is(err, io.ErrClosedPipe) {
				return nil
			}
			return fmt.Errorf("%s: %w, want a reset", c.question, err)
		}
		if _, err := c.conn.reader.ReadString('\n'); err != nil {
			if isRefusal(err) {
				return nil
			}
			return fmt.Errorf("%s: %w, want a reset", c.question, err)
		}
	}
}

// areReset has the victim reset the connections of all clients, and any that come. UDP goes on.
func (e *env) areReset(t *testing.T, all []*samePort) (revive func()) {
	t.Helper()
	revive = e.dies(t, e.Remote[0], refuses, EndpointPorts[0])
	e.meetReset(t, all)
	return revive
}

func (e *env) meetReset(t *testing.T, all []*samePort) {
	t.Helper()
	errs := make([]error, len(all))
	each(all, func(i int, c *samePort) { errs[i] = c.isReset() })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func each(all []*samePort, do func(int, *samePort)) {
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() { do(i, c) })
	}
	wg.Wait()
}

// movesWithin is how long after a change a client may still come to a former endpoint: some milliseconds, and more on a
// machine that stands still for a moment. In ipvs mode a UDP flow does for a second while the endpoint lives.
const (
	movesWithin = 400 * time.Millisecond
	graceOfIPVS = time.Second
)

// movesWithin returns how long after a change a client may still come to the victim.
func (e *env) movesWithin(change sameChange, proto source.Protocol) time.Duration {
	if change.leaves && proto == source.UDP && e.mode.name == "ipvs" {
		return graceOfIPVS + movesWithin
	}
	return movesWithin
}

// testSamePort: from shortly after a change on no client comes to the victim again.
func testSamePort(change sameChange) func(*testing.T, *env) {
	return func(t *testing.T, e *env) {
		s := e.everywhere(at(e.Remote[:2]...)...)
		if change.closes {
			s.CloseConnections = "always"
		}
		if change.dead {
			s.HealthCheck = tcpCheck()
		}
		e.apply(t, s)
		if change.dead {
			e.expectTargets(t, "at first", 2)
		}
		all, isSilent := e.samePorts(t), false
		if change.dead {
			e.dies(t, e.Remote[0], refuses)
			e.meetReset(t, all)
			change.do(t, e, s)
		} else {
			change.do(t, e, s)
			revive := e.areReset(t, all)
			if isSilent = change.gone || change.want == &refused; isSilent { // so that a refusal is none of the victim
				revive()
				e.dies(t, e.Remote[0], silent, EndpointPorts[0])
			}
		}
		each(all, func(_ int, c *samePort) {
			time.Sleep(pace.Scale(e.movesWithin(change, c.question.Protocol)))
			for range 3 {
				e.mayNotReturn(t, change, c)
			}
		})
		if isSilent {
			e.isLeftAlone(t, e.Remote[0])
		}
		if change.gone {
			s.Endpoints = at(e.Remote[1])
			e.apply(t, s)
			time.Sleep(pace.Scale(movesWithin))
			each(all, func(_ int, c *samePort) { e.mayNotReturn(t, sameChange{}, c) })
		}
	}
}

// mayNotReturn checks where a client comes after a change.
func (e *env) mayNotReturn(t *testing.T, change sameChange, c *samePort) {
	w := by(e.Remote[1])
	switch {
	case change.datagramsStay && c.question.Protocol == source.UDP:
		w = by(e.Remote[0])
	case change.want != nil:
		w = *change.want
	}
	if c.question.Patience = expectPatience; w.outcome == Dropped {
		c.question.Patience = Patience
	}
	if change.gone {
		if c.question.Patience = Patience; c.question.To.Port() == e.nodePort() {
			w = refused
		}
		got := c.ask()
		if silence := got.Outcome == Dropped && c.question.Protocol == source.TCP; silence || got.By == e.Remote[0].Role || got.By == e.Remote[1].Role {
			t.Errorf("%s from port %d: %s after its service has gone", c.question, c.question.Port, got)
		}
		return
	}
	got := c.ask()
	if c.question.Protocol == source.UDP && got.Outcome == Dropped {
		got = c.ask() // nobody sends a datagram again that an endpoint which is dead has not answered
	}
	if e.match(c.question, got, w) != nil {
		t.Errorf("%s from port %d: %s, want %s", c.question, c.question.Port, got, w)
	}
}

// testQueriesUnderWay: an endpoint that is removed answers what it was asked before, and nothing else.
func testQueriesUnderWay(t *testing.T, e *env) {
	s := e.everywhere(at(e.Remote[:2]...)...)
	e.apply(t, s)
	all := slices.DeleteFunc(e.samePorts(t), func(c *samePort) bool { return c.flow == nil })
	const late, after = 2 * time.Second, 500 * time.Millisecond // ipvs mode has a second, the others five
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		time.Sleep(late - after) // all have asked
		s.Endpoints = at(e.Remote[1])
		if err := e.daemon.Apply(e.name(), s); err != nil {
			t.Error(err)
		}
	}()
	each(all, func(_ int, c *samePort) {
		if got := c.flow.AskLate(late); got.By != e.Remote[0].Role {
			t.Errorf("%s: %s, want %s to answer what it was asked before it was removed", c.question, got, e.Remote[0].Role)
		}
		<-removed
		time.Sleep(pace.Scale(e.movesWithin(sameChange{leaves: true}, source.UDP)))
		if got := c.ask(); got.By != e.Remote[1].Role {
			t.Errorf("%s: %s, want %s", c.question, got, e.Remote[1].Role)
		}
	})
}

// testUnansweredOfRemoved: clients whose endpoint is silent, and then removed, are served when they ask again.
func testUnansweredOfRemoved(t *testing.T, e *env) {
	s := e.everywhere(at(e.Remote[0])...)
	e.apply(t, s)
	e.dies(t, e.Remote[0], silent)
	err := e.areServed(e.sameAddresses(), func() {
		s.Endpoints = at(e.Remote[1])
		e.apply(t, s)
	})
	if err != nil {
		t.Error(err)
	}
}

// testSentBeforeService: clients that asked before there was a service are served when they ask again. One that asks between
// the first rule and the end of its entry is refused, as docs/packets.md says, which may happen on a busy machine.
func testSentBeforeService(t *testing.T, e *env) {
	e.dies(t, e.Gateway, silent)
	var err error
	for range 3 {
		e.apply(t)
		err = e.areServed(e.sameAddresses()[:2], func() { e.apply(t, e.everywhere(at(e.Remote[1])...)) })
		if err == nil {
			return
		}
		t.Log(err)
	}
	t.Error(err)
}

// areServed has clients connect before something is done, and checks that the second remote endpoint
// answers them, as soon as they have asked again.
func (e *env) areServed(checks []check, do func()) error {
	var questions []Question
	for _, c := range checks {
		c.protocols = []source.Protocol{source.TCP}
		questions = slices.Concat(questions, c.questions(), c.questions())
	}
	errs := make([]error, len(questions))
	var wg sync.WaitGroup
	for i, q := range questions {
		q.Patience, q.Port = retryPatience, freshPort()
		wg.Go(func() {
			if got := Ask(q); got.By != e.Remote[1].Role || !got.Resent {
				errs[i] = fmt.Errorf("%s: %s, want %s to answer what is sent again", q, got, e.Remote[1].Role)
			}
		})
	}
	time.Sleep(300 * time.Millisecond) // they have asked, and ask again after a second
	do()
	wg.Wait()
	return errors.Join(errs...)
}

// testRollingSamePorts: while endpoints are replaced one after the other, and end shortly after they have left, no
// client of few source ports is refused, whether it has closed its last connection by a reset or its endpoint has.
func testRollingSamePorts(t *testing.T, e *env) {
	hosts := slices.Concat(e.Remote, e.Local)
	e.apply(t, e.everywhere(at(hosts...)...))
	stop := e.connectFrom(t, check{from: e.Client, to: e.vip(1), protocols: []source.Protocol{source.TCP}})
	for i := range soak(4, 120) {
		left := hosts[i%len(hosts)]
		e.apply(t, e.everywhere(at(slices.DeleteFunc(slices.Clone(hosts), func(h *Host) bool { return h == left })...)...))
		time.Sleep(pace.Scale(movesWithin))
		revive := e.dies(t, left, refuses)
		time.Sleep(pace.Scale(200 * time.Millisecond))
		revive()
		e.apply(t, e.everywhere(at(hosts...)...))
	}
	stop()
}

// connectFrom connects from few source ports, in turn, until the function that it returns is called. None may fail.
func (e *env) connectFrom(t *testing.T, c check) (stop func()) {
	const workers, ports, held = 16, 2, 20 * time.Millisecond
	done := make(chan struct{})
	var wg sync.WaitGroup
	counts := make([]int, workers)
	questions := c.questions()
	for w := range workers {
		wg.Go(func() {
			own := make([]uint16, ports)
			for i := range own {
				own[i] = freshPort()
			}
			for ; ; counts[w]++ {
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond):
				}
				q := questions[counts[w]/ports%len(questions)]
				q.Port, q.Patience = own[counts[w]%ports], streamPatience
				conn, got := connectAgain(q)
				if got.Outcome == Refused {
					t.Errorf("%s from port %d: %s", q, q.Port, got)
				}
				if conn == nil {
					continue // a busy machine
				}
				time.Sleep(held)
				conn.Echo(streamPatience) // the endpoint may have ended
				conn.SetLinger(0)
				conn.Close()
			}
		})
	}
	return func() {
		close(done)
		wg.Wait()
		sum := 0
		for _, n := range counts {
			sum += n
		}
		t.Logf("%d connections from %d ports", sum, workers*ports)
	}
}
