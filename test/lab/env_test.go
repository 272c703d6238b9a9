//go:build netns

package lab

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// An env is what a case works with: a lab in which svcproxy runs, and addresses and a file for this case alone.
type env struct {
	*Lab
	mode     mode
	daemon   *Daemon
	settings string // the text of svcproxy.toml
	number   byte   // of the case

	foreignStays func(t *testing.T) // checks that the kernel objects of others are as they were
}

// foreignAddr is translated by a rule that is not ours.
var foreignAddr = Dual{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}

// Addresses of the case. i tells several apart.
func (e *env) vip(i byte) Dual          { return e.address([4]byte{10, 96}, 0x96, i) }
func (e *env) external(i byte) Dual     { return e.address([4]byte{198, 18}, 0x98, i) }
func (e *env) loadBalancer(i byte) Dual { return e.address([4]byte{198, 19}, 0x99, i) }

func (e *env) address(v4 [4]byte, network, i byte) Dual {
	v4[2], v4[3] = e.number, i
	v6 := [16]byte{0: 0xfd, 3: network, 13: e.number, 15: i}
	return Dual{netip.AddrFrom4(v4), netip.AddrFrom16(v6)}
}

// nodePort is a node port of the case.
func (e *env) nodePort() uint16 { return 30000 + uint16(e.number) }

// name is the name of the case's service and file.
func (e *env) name() string { return fmt.Sprint("case-", e.number) }

// service returns a service of the case with a VIP, and port 80 for TCP and UDP.
func (e *env) service(endpoints ...Endpoint) Service {
	return Service{
		Name: e.name(),
		VIPs: e.vip(1).Each(),
		Ports: []Port{
			{Name: "stream", Protocol: "tcp", Port: 80, TargetPort: 8080},
			{Name: "packets", Protocol: "udp", Port: 80, TargetPort: 8080},
		},
		Endpoints: endpoints,
	}
}

// everywhere returns a service with every kind of address: VIP, external, load balancer, node port.
func (e *env) everywhere(endpoints ...Endpoint) Service {
	s := e.service(endpoints...)
	s.ExternalIPs, s.LoadBalancerIPs = e.external(1).Each(), e.loadBalancer(1).Each()
	for i := range s.Ports {
		s.Ports[i].NodePort = e.nodePort()
	}
	return s
}

// at returns endpoints on hosts, in both families, with the node they are on.
func at(hosts ...*Host) []Endpoint {
	var endpoints []Endpoint
	for _, h := range hosts {
		node := "elsewhere"
		if strings.HasPrefix(h.Role, "local") {
			node = "node"
		}
		for _, addr := range h.Addr().Each() {
			endpoints = append(endpoints, Endpoint{Address: addr, Node: node})
		}
	}
	return endpoints
}

// with returns endpoints on hosts, each changed by change.
func with(change func(*Endpoint), hosts ...*Host) []Endpoint {
	endpoints := at(hosts...)
	for i := range endpoints {
		change(&endpoints[i])
	}
	return endpoints
}

func notReady(ep *Endpoint)    { ep.Ready, ep.Serving = new(false), new(false) }
func terminating(ep *Endpoint) { ep.Ready, ep.Terminating = new(false), new(true) }

func weight(n uint16) func(*Endpoint)  { return func(ep *Endpoint) { ep.Weight = &n } }
func zone(name string) func(*Endpoint) { return func(ep *Endpoint) { ep.Zone = name } }

// apply makes s the only service of the case and waits until the kernel has it.
func (e *env) apply(t *testing.T, s ...Service) {
	t.Helper()
	e.file(t, e.name(), s...)
}

// file writes a further file of the case and waits until the kernel has it.
func (e *env) file(t *testing.T, name string, s ...Service) {
	t.Helper()
	if err := e.daemon.Apply(name, s...); err != nil {
		t.Fatalf("%v\n%s\n%s", err, e.daemon.LogTail(logLines), e.daemon.Stacks())
	}
}

// A check is what packets to one address and port, over both families, must meet.
type check struct {
	from      *Host
	source    Dual // one of from's addresses; zero: the kernel's choice
	to        Dual
	port      uint16            // 0: 80
	protocols []source.Protocol // nil: TCP and UDP
	want      want
}

// A want is the outcome of a question.
type want struct {
	outcome Outcome
	by      []*Host // each of these, and nobody else
	source  string  // whose address they see: "own", "node" or "": either
}

func by(hosts ...*Host) want { return want{by: hosts} }

// keeping is w where the server sees the client's own address, masked where it sees one of node's.
func (w want) keeping() want { w.source = "own"; return w }
func (w want) masked() want  { w.source = "node"; return w }

var (
	untouched = want{outcome: Untouched}
	refused   = want{outcome: Refused}
	dropped   = want{outcome: Dropped}
)

// unserved is what packets meet at an external address on a port that no service has.
func (e *env) unserved() want {
	if e.mode.name == "ipvs" { // the address is one of node
		return refused
	}
	return untouched
}

// givenUp is what new connections meet at an address that a service had.
func (e *env) givenUp() want {
	// There an address is one of node until the last connection there has ended, or its time is over.
	if e.mode.name == "ipvs" && !strings.Contains(e.settings, giveUpSoon) {
		return refused
	}
	return untouched
}

// isGivenUp reports whether that is what an address meets that a service has no more, or never had.
func (e *env) isGivenUp(a Answer) bool {
	return a.Outcome == Untouched || a.Outcome == Refused && e.mode.name == "ipvs" // until its connections have ended
}

// expectPatience is five times what a change may take at most.
var expectPatience = Slow(5 * time.Second)

// expect checks all at once, each until it holds.
func (e *env) expect(t *testing.T, checks ...check) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make(chan error, 4*len(checks))
	for _, c := range checks {
		for _, q := range c.questions() {
			wg.Go(func() {
				errs <- pace.Poll(expectPatience, func() error { return e.verify(&q, c.want) })
			})
		}
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// questions returns the check's question in both families and all protocols.
func (c check) questions() []Question {
	port, protocols := c.port, c.protocols
	if port == 0 {
		port = 80
	}
	if protocols == nil {
		protocols = []source.Protocol{source.TCP, source.UDP}
	}
	var questions []Question
	for i, to := range c.to.Each() {
		if !to.IsValid() {
			continue // one family only
		}
		for _, protocol := range protocols {
			questions = append(questions, Question{
				From: c.from, Source: c.source.Each()[i], Protocol: protocol, To: netip.AddrPortFrom(to, port),
			})
		}
	}
	return questions
}

// triesEach is how often a question is asked for each endpoint that must answer
// it: one of three stays unseen once in 10^12 runs, and one that must not answer
// hardly ever stays unseen, however often a check is repeated. Where the
// processor is emulated it is a third of that: a check that misses an endpoint is repeated.
var triesEach = 24 / min(3, int(slowness))

// verify asks as often as it takes to know everybody who answers. Where an answer is late
// the question has more patience when it is asked again.
func (e *env) verify(q *Question, w want) error {
	seen := make(map[string]bool)
	for range max(1, triesEach*len(w.by)) {
		got := Ask(*q)
		if err := e.match(*q, got, w); err != nil {
			q.late(got, w)
			return fmt.Errorf("%s: %w", q, err)
		}
		seen[got.By] = true
	}
	if len(seen) < len(w.by) {
		return fmt.Errorf("%s: only %v answered, want %s", q, seen, w)
	}
	return nil
}

// mustAnswer asks once what an endpoint must answer: how long that takes a busy machine is not what is tested.
func mustAnswer(t *testing.T, q Question) Answer {
	t.Helper()
	q.Patience = max(q.Patience, expectPatience)
	got := Ask(q)
	if got.Outcome != Answered {
		t.Fatalf("%s: %s", q, got)
	}
	return got
}

// late doubles the patience of a question whose answer did not come. A busy machine delays
// packets by more than a measure of its processors tells.
func (q *Question) late(got Answer, w want) {
	if got.Outcome == Dropped && w.outcome != Dropped {
		q.Patience = min(2*cmp.Or(q.Patience, Patience), expectPatience/2)
	}
}

func (e *env) match(q Question, got Answer, w want) error {
	own := got.Source == q.Source || !q.Source.IsValid() && q.From.Owns(got.Source)
	switch {
	case got.Outcome != w.outcome,
		got.Outcome == Answered && !w.has(got.By),
		w.source == "own" && !own,
		w.source == "node" && !e.Node.Owns(got.Source):
		return fmt.Errorf("%s, want %s", got, w)
	}
	return nil
}

func (w want) has(role string) bool {
	for _, h := range w.by {
		if h.Role == role {
			return true
		}
	}
	return false
}

func (w want) String() string {
	if w.outcome != Answered {
		return w.outcome.String()
	}
	var roles []string
	for _, h := range w.by {
		roles = append(roles, h.Role)
	}
	text := "an answer by " + strings.Join(roles, " and ")
	if w.source != "" {
		text += ", which sees the address of " + w.source
	}
	return text
}

// expectPing checks what becomes of a ping to either address.
func (e *env) expectPing(t *testing.T, from *Host, to Dual, want Outcome) {
	t.Helper()
	for _, addr := range to.Each() {
		err := pace.Poll(expectPatience, func() error {
			if got := Ping(from, addr); got.Outcome != want {
				return fmt.Errorf("ping from %s to %s: %s, want %s", from.Role, addr, got, want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// carry gives an interface of node more addresses while the case lasts.
func (e *env) carry(t *testing.T, device string, addrs Dual) {
	t.Helper()
	for _, addr := range addrs.Each() {
		if err := e.Node.AddAddr(device, addr); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, addr := range addrs.Each() {
			if err := e.Node.RemoveAddr(device, addr); err != nil {
				t.Error(err)
			}
		}
	})
}

// serve starts a server of node itself on both addresses.
func (e *env) serve(t *testing.T, at Dual, port uint16) {
	t.Helper()
	var err error
	for _, addr := range at.Each() {
		err = errors.Join(err, e.Serve(e.Node, netip.AddrPortFrom(addr, port)))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// connections makes a TCP connection to either address, which ends with the case. How long that takes is
// not what is tested, and one of many hundreds may meet a moment in which the machine does other things.
func (e *env) connections(t *testing.T, from *Host, to Dual, port uint16) []*Conn {
	t.Helper()
	var conns []*Conn
	for _, addr := range to.Each() {
		q := Question{From: from, Protocol: source.TCP, To: netip.AddrPortFrom(addr, port), Patience: expectPatience}
		conn, got := Connect(q)
		if conn == nil {
			t.Fatalf("%s: %s", q, got)
		}
		t.Cleanup(func() { conn.Close() })
		conns = append(conns, conn)
	}
	return conns
}

// goOn checks that connections still work.
func (e *env) goOn(t *testing.T, when string, conns []*Conn) {
	t.Helper()
	if err := echo(conns); err != nil {
		t.Errorf("established connections %s: %v", when, err)
	}
}

// echo sends something over every connection and waits for it to come back.
func echo(conns []*Conn) error {
	const workers = 20
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(conns); i += workers {
				if err := conns[i].Echo(expectPatience); err != nil {
					errs[w] = fmt.Errorf("connection %d to %s: %w", i, conns[i].RemoteAddr(), err)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
