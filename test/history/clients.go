package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

// patience lets a SYN be sent twice.
const patience = 1500 * time.Millisecond

// A kind of client does something once. It asks what it is given, from a port of its own if it needs one.
type clientKind struct {
	name  string
	count int
	once  func(c *client) time.Duration // and how long it waits then
}

var clientKinds = []clientKind{
	{"short TCP", 12, func(c *client) time.Duration { c.ask(c.question(source.TCP)); return 60 * time.Millisecond }},
	{"UDP", 10, func(c *client) time.Duration { c.ask(c.question(source.UDP)); return 60 * time.Millisecond }},
	{"one source port", 8, (*client).samePort},
	{"UDP flow", 6, func(c *client) time.Duration { return c.flow((*lab.Flow).Ask) }},
	{"one-way UDP", 4, func(c *client) time.Duration {
		return c.flow(func(f *lab.Flow) lab.Answer { return f.Tell(c.Network) })
	}},
	{"held TCP", 8, (*client).held},
	{"held TCP, one source port", 6, (*client).heldSamePort},
	{"half-closed TCP", 3, (*client).halfClosed},
	{"affinity", 4, (*client).returning},
}

// A client is one of them.
type client struct {
	*Site
	r     *rand.Rand
	ctx   context.Context
	kind  string
	index int
}

// clients run until stop is called.
func (s *Site) clients(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	n := 0
	for _, k := range clientKinds {
		for range k.count {
			c := &client{Site: s, r: rand.New(rand.NewPCG(uint64(n), 1)), ctx: ctx, kind: k.name, index: n}
			n++
			wg.Go(func() {
				for ctx.Err() == nil {
					c.wait(k.once(c))
				}
			})
		}
	}
	return func() { cancel(); wg.Wait() }
}

// wait waits for some d, and longer where processors are emulated: to them, clients are what keeps a machine busy.
func (c *client) wait(d time.Duration) {
	d = lab.Slow(d)
	select {
	case <-c.ctx.Done():
	case <-time.After(d/2 + time.Duration(c.r.Int64N(int64(d)))):
	}
}

// question is to one of the addresses of a service, from some host.
func (c *client) question(protocol source.Protocol) lab.Question {
	i := c.r.IntN(len(c.Kinds))
	return c.questionTo(i, protocol)
}

func (c *client) questionTo(i int, protocol source.Protocol) lab.Question {
	to, port := address(10, 96, 0x96, byte(i)), uint16(80)
	switch {
	case i == 3:
		to = pick(c.r, to, address(198, 18, 0x98, 3), address(198, 19, 0x99, 3), lab.FrontAddr, lab.UplinkAddr, lab.Dual{V4: extraAddr, V6: lab.UplinkAddr.V6})
		if to.V4.As4()[0] == 203 || to == lab.FrontAddr || to == lab.UplinkAddr {
			port = nodePort
		}
	case i == 4:
		to = pick(c.r, to, address(198, 18, 0x98, 4))
	}
	k := c.r.IntN(2)
	from := pick(c.r, c.Client, c.Client, c.Client, c.Node, c.Local[0], c.Remote[1])
	q := lab.Question{From: from, Protocol: protocol, To: netip.AddrPortFrom(to.Each()[k], port), Patience: patience}
	if from == c.Client {
		q.Source = from.Addrs[c.r.IntN(lab.ClientAddresses/2)].Each()[k]
	}
	return q
}

// service returns the name of the service that has an address.
func (s *Site) service(to netip.AddrPort) string {
	if to.Port() == nodePort {
		return serviceName(3)
	}
	b := to.Addr().AsSlice()
	return serviceName(int(b[len(b)-1]))
}

// attempt begins to write down an attempt; done ends it.
func (c *client) attempt(q lab.Question) *Attempt {
	p, err := c.Packet(q)
	if err != nil {
		return nil // the way to the node's own addresses is being changed
	}
	return &Attempt{Kind: c.kind, Service: c.service(q.To), Packet: p, Port: q.Port, Start: time.Now()}
}

func (c *client) done(a *Attempt, got lab.Answer) {
	if a == nil || errors.Is(got.Err, unix.EADDRINUSE) || errors.Is(got.Err, unix.ENETUNREACH) {
		return // its port is in use by its own last connection, or the host has lost its address
	}
	a.End, a.Got, a.Port = time.Now(), got, cmp.Or(a.Port, got.Local)
	a.By, a.Own = c.EndpointOf(got, a.Packet), got.Source == a.Packet.From
	c.Add(*a)
}

func (c *client) ask(q lab.Question) {
	a := c.attempt(q)
	c.done(a, lab.Ask(q))
}

// samePort connects from one port again and again, and resets each connection.
func (c *client) samePort() time.Duration {
	q := c.questionTo(c.r.IntN(len(c.Kinds)), source.TCP)
	q.From, q.Port = c.Client, uint16(20000+c.index)
	q.Source = ofFamily(c.Client.Addrs[lab.ClientAddresses/2+c.index%8], q.To.Addr())
	end := time.Now().Add(5 * time.Second)
	for time.Now().Before(end) && c.ctx.Err() == nil {
		c.ask(q)
		c.wait(50 * time.Millisecond)
	}
	return 10 * time.Millisecond
}

func ofFamily(d lab.Dual, a netip.Addr) netip.Addr {
	if a.Is4() {
		return d.V4
	}
	return d.V6
}

// flow sends datagrams from one port for some seconds in a way.
func (c *client) flow(send func(*lab.Flow) lab.Answer) time.Duration {
	q := c.question(source.UDP)
	f, err := lab.NewFlow(q, 0)
	if err != nil {
		return 100 * time.Millisecond
	}
	defer f.Close()
	end := time.Now().Add(8 * time.Second)
	for first := true; time.Now().Before(end) && c.ctx.Err() == nil; first = false {
		a := c.attempt(q)
		if a != nil {
			a.Flow = !first
		}
		c.done(a, send(f))
		c.wait(80 * time.Millisecond)
	}
	return 10 * time.Millisecond
}

// held makes a connection and uses it for some seconds.
func (c *client) held() time.Duration {
	return c.hold(c.question(source.TCP), time.Duration(1+c.r.IntN(8))*time.Second)
}

// heldSamePort does it from the same port each time, at once after its endpoint has reset the connection.
func (c *client) heldSamePort() time.Duration {
	q := c.questionTo(c.r.IntN(len(c.Kinds)), source.TCP)
	q.From, q.Port = c.Client, uint16(20000+c.index)
	q.Source = ofFamily(c.Client.Addrs[lab.ClientAddresses/2+c.index%8], q.To.Addr())
	end := time.Now().Add(12 * time.Second)
	for time.Now().Before(end) && c.ctx.Err() == nil {
		c.wait(c.hold(q, time.Until(end)))
	}
	return 10 * time.Millisecond
}

// hold makes a connection and uses it for a while.
func (c *client) hold(q lab.Question, d time.Duration) time.Duration {
	a := c.attempt(q)
	conn, got := lab.Connect(q)
	c.done(a, got)
	if conn == nil {
		return 100 * time.Millisecond
	}
	defer conn.Close()
	if q.Port != 0 || c.r.IntN(2) == 0 {
		conn.SetLinger(0)
	}
	for end := time.Now().Add(d); time.Now().Before(end) && c.ctx.Err() == nil; c.wait(150 * time.Millisecond) {
		if err := conn.Echo(2 * patience); err != nil {
			c.died(a, got, err)
			return 20 * time.Millisecond
		}
	}
	return 10 * time.Millisecond
}

// died writes down that an established connection ended.
func (c *client) died(a *Attempt, got lab.Answer, err error) {
	if a == nil || got.Outcome != lab.Answered {
		return
	}
	died := *a
	died.Died, died.End, died.Got = true, time.Now(), lab.Answer{Outcome: lab.Broken, Err: err}
	died.By = c.EndpointOf(got, a.Packet)
	c.Add(died)
}

// halfClosed sends a line, closes its side, and reads to the end.
func (c *client) halfClosed() time.Duration {
	q := c.question(source.TCP)
	a := c.attempt(q)
	conn, got := lab.Connect(q)
	c.done(a, got)
	if conn == nil || got.Outcome != lab.Answered {
		if conn != nil {
			conn.Close()
		}
		return 100 * time.Millisecond
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * patience))
	const line = "the last line\n"
	_, err := io.WriteString(conn, line)
	err = errors.Join(err, conn.CloseWrite())
	c.wait(400 * time.Millisecond)
	text, readErr := io.ReadAll(conn)
	if err = errors.Join(err, readErr); err == nil && string(text) != line {
		err = fmt.Errorf("read %q after half of the connection was closed", text)
	}
	if err != nil {
		c.died(a, got, err)
	}
	return 50 * time.Millisecond
}

// returning comes back to the service with affinity from the same address.
func (c *client) returning() time.Duration {
	q := c.questionTo(1, pick(c.r, source.TCP, source.UDP))
	q.From, q.Source = c.Client, ofFamily(c.Client.Addrs[c.index%8], q.To.Addr())
	c.ask(q)
	return 100 * time.Millisecond
}

// probes asks many questions at once, of all kinds, and judges what they meet.
func (s *Site) probes(ctx context.Context, count int) {
	workers := lab.Fewer(200) // of which most wait
	var wg sync.WaitGroup
	for w := range workers {
		c := &client{Site: s, r: rand.New(rand.NewPCG(uint64(w), 2)), ctx: ctx, kind: "after quiet", index: w}
		wg.Go(func() {
			for range count / workers {
				if ctx.Err() == nil {
					c.ask(c.question(pick(c.r, source.TCP, source.UDP)))
				}
			}
		})
	}
	wg.Wait()
}
