//go:build netns

package hosts

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

// A spreadMode is a mode of svcproxy that can hash clients.
type spreadMode struct {
	name      string
	held      int    // connections
	few       int    // of those that some must lose
	other     string // a scheduler that does not hash clients
	holdsBack bool   // what endpoints send in connections that it does not know
	prepare   func(*lab.Host) error
}

var spreadModes = []spreadMode{{
	name: "nftables", held: 2000, few: 400, other: "", holdsBack: true,
	prepare: func(*lab.Host) error { return nil },
}}

// Connections live on when the balancer that they pass is cut off, when another joins, and when the
// first one comes back, because each sends a client to the same endpoint; with another scheduler,
// few do.
func TestECMP(t *testing.T) {
	for _, mode := range spreadModes {
		t.Run(mode.name, func(t *testing.T) {
			s := newSpread(t, 3)
			s.start(t, mode)
			t.Run("maglev", func(t *testing.T) { s.live(t, mode) })
			if mode.holdsBack {
				t.Run("under way", func(t *testing.T) { s.underWay(t, mode) })
			}
			t.Run("random faults", func(t *testing.T) { s.random(t, mode) })
			t.Run("endpoints leave", func(t *testing.T) { s.endpointsLeave(t, mode) })
			t.Run("without a hash", func(t *testing.T) { s.die(t, mode) })
		})
	}
}

// start has endpoints and balancers run.
func (s *spread) start(t *testing.T, mode spreadMode) {
	t.Helper()
	for _, e := range s.endpoints {
		for _, addr := range e.Addr().Each() {
			if err := s.Serve(e, netip.AddrPortFrom(addr, lab.EndpointPorts[0])); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, b := range s.balancers {
		if err := mode.prepare(b.Host); err != nil {
			t.Fatal(err)
		}
		b.Steps = true // a large table is written in parts, and the marker may come first
		if err := b.Settings("mode = \"" + mode.name + "\"\nmasquerade = \"never\"\n"); err != nil {
			t.Fatal(err)
		}
		if err := b.Start(); err != nil {
			t.Fatal(err)
		}
		spreadSysctl(t, b.Host, "net.netfilter.nf_conntrack_tcp_be_liberal=1", "net.netfilter.nf_conntrack_tcp_loose=1") // as svcproxy init does, if told
	}
}

// serve has all balancers serve some of the endpoints by a scheduler, and waits until they do.
func (s *spread) serve(t *testing.T, scheduler string, endpoints ...*lab.Host) {
	t.Helper()
	for i, b := range s.balancers {
		b.apply(t, i, scheduler, endpoints...)
	}
	for _, b := range s.balancers { // a link that is not quite up loses packets
		s.over(t, b)
		for i := range 2 {
			q := s.question(i, 80, source.TCP)
			err := pace.Poll(heldPatience, func() error {
				if got := lab.Ask(q); got.Outcome != lab.Answered {
					return fmt.Errorf("by %s: %s: %s", b.Role, q, got)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// apply has a balancer serve endpoints, with weights 1, 2 and 7; the file of each balancer has them
// in another order.
func (b *balancer) apply(t *testing.T, order int, scheduler string, endpoints ...*lab.Host) {
	t.Helper()
	var list []lab.Endpoint
	for _, e := range endpoints {
		weight := []uint16{1, 2, 7}[e.Addr().V4.As4()[3]%3]
		for _, addr := range e.Addr().Each() {
			list = append(list, lab.Endpoint{Address: addr, Weight: &weight})
		}
	}
	list = slices.Concat(list[order:], list[:order])
	if order%2 == 1 {
		slices.Reverse(list)
	}
	err := b.Apply("web", lab.Service{
		Name: "web", VIPs: spreadVIP.Each(), Scheduler: scheduler, Endpoints: list,
		Ports: []lab.Port{
			{Name: "stream", Port: 80, TargetPort: lab.EndpointPorts[0]},
			{Name: "push", Port: 81, TargetPort: pushPort},
			{Name: "packets", Protocol: "udp", Port: 80, TargetPort: lab.EndpointPorts[0]},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// live moves all connections, and flows of UDP, of a from balancer to balancer.
func (s *spread) live(t *testing.T, mode spreadMode) {
	s.serve(t, "maglev", s.endpoints...)
	a, b, c := s.balancers[0], s.balancers[1], s.balancers[2]
	s.over(t, a, b)
	list, flows := s.hold(t, mode.held, 80), s.flows(t)
	onA, onB := s.apart(t, list)
	t.Logf("%d connections pass a, %d pass b", onA, onB)

	s.cut(t, a)
	s.over(t, b)
	s.allLive(t, "a is cut off", list, flows)
	if n := len(b.of(t, list)); n != len(list) {
		t.Errorf("%d connections pass b, want all %d", n, len(list))
	}
	s.over(t, b, c)
	s.allLive(t, "c joins", list, flows)
	t.Logf("%d connections pass c", atLeast(t, len(c.of(t, list)), len(list)/10))
	s.rejoin(t, a)
	s.over(t, a, b, c)
	s.allLive(t, "a is back", list, flows)
}

// apart returns how many connections pass a and b. Each passes one of them, both ways: else
// nobody would have translated its answers.
func (s *spread) apart(t *testing.T, list []*held) (onA, onB int) {
	t.Helper()
	a, b := s.balancers[0].of(t, list), s.balancers[1].of(t, list)
	if len(a)+len(b) != len(list) {
		t.Errorf("%d connections pass a and %d pass b, want %d together", len(a), len(b), len(list))
	}
	return atLeast(t, len(a), len(list)/4), atLeast(t, len(b), len(list)/4)
}

// atLeast returns n, which must be so many.
func atLeast(t *testing.T, n, least int) int {
	t.Helper()
	if n < least {
		t.Errorf("%d connections, want %d or more", n, least)
	}
	return n
}

func (s *spread) allLive(t *testing.T, what string, list []*held, flows []*flow) {
	t.Helper()
	start := time.Now()
	got := echo(list, heldPatience)
	t.Logf("%s: %s, after %v", what, got, time.Since(start).Round(time.Millisecond))
	if !got.all() {
		t.Errorf("%s: %s", what, got)
	}
	for _, f := range flows {
		if got := f.Ask(); got.By != f.by {
			t.Errorf("%s: UDP flow of %s: %s, before by %s", what, f.by, got, f.by)
		}
	}
}

// A flow is a flow of UDP that an endpoint has answered.
type flow struct {
	*lab.Flow
	by string
}

// flows asks an endpoint from each address of the clients.
func (s *spread) flows(t *testing.T) (list []*flow) {
	t.Helper()
	for i := range 2 * clientAddresses {
		q := s.question(i, 80, source.UDP)
		q.Patience = heldPatience
		f, err := lab.NewFlow(q, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		got := f.Ask()
		if got.Outcome != lab.Answered {
			t.Fatalf("UDP flow: %s: %s", q, got)
		}
		list = append(list, &flow{f, got.By})
	}
	return list
}

// endpointsLeave removes an endpoint after connections have moved: those that b has taken up stay
// where they are, as any of its own. When one is removed before they move, some of the others'
// are lost: the slots that are not where they were.
func (s *spread) endpointsLeave(t *testing.T, mode spreadMode) {
	s.serve(t, "maglev", s.endpoints...)
	a, b, c := s.balancers[0], s.balancers[1], s.balancers[2]
	gone, rest := s.endpoints[7], slices.Delete(slices.Clone(s.endpoints), 7, 8)
	s.over(t, a)
	list := s.hold(t, mode.few, 80)
	list = slices.DeleteFunc(list, func(c *held) bool { return c.Server.By == gone.Role })
	s.over(t, b)
	s.allLive(t, "b takes over", list, nil)
	b.apply(t, 1, "maglev", rest...)
	s.allLive(t, "an endpoint leaves b", list, nil)
	c.apply(t, 2, "maglev", rest...)
	s.over(t, c)
	got := echo(list, heldPatience)
	t.Logf("c takes over, which never had the endpoint: %s", got)
	atLeast(t, got.alive, len(list)*9/10)
}

// die moves connections that another scheduler has placed.
func (s *spread) die(t *testing.T, mode spreadMode) {
	s.serve(t, mode.other, s.endpoints...)
	a, b := s.balancers[0], s.balancers[1]
	s.over(t, a)
	list := s.hold(t, mode.few, 80)
	s.cut(t, a)
	s.over(t, b)
	got := echo(list, heldPatience)
	t.Logf("%d endpoints by scheduler %q: a is cut off: %s", endpointCount, mode.other, got)
	if got.alive > len(list)/2 {
		t.Errorf("by scheduler %q: %s, want few", mode.other, got)
	}
}

// random has something befall svcproxy on one balancer while another is cut off: no connection ends of it, wherever it
// passes.
func (s *spread) random(t *testing.T, mode spreadMode) {
	r := newRandom(t)
	s.serve(t, "maglev", s.endpoints...)
	s.over(t, s.balancers...)
	list, flows := s.hold(t, mode.few, 80), s.flows(t)
	for range randomSteps() {
		order := r.Perm(len(s.balancers))
		b, away := s.balancers[order[0]], s.balancers[order[1]]
		faults := []struct {
			name       string
			begin, end func() error
		}{
			{"nothing befalls", func() error { return nil }, func() error { return nil }},
			{"svcproxy is killed on", b.Kill, b.Start},
			{"svcproxy is ended on", b.Stop, b.Start},
			{"svcproxy is frozen on", b.Freeze, func() error { return b.Signal(unix.SIGCONT) }},
			{"files are written again on", func() error { b.apply(t, r.IntN(3), "maglev", s.endpoints...); return nil }, func() error { return nil }},
		}
		f := faults[r.IntN(len(faults))]
		what := fmt.Sprintf("%s %s, and %s is cut off", f.name, b.Role, away.Role)
		s.cut(t, away)
		s.over(t, slices.DeleteFunc(slices.Clone(s.balancers), func(x *balancer) bool { return x == away })...)
		s.do(t, what, f.begin)
		s.allLive(t, what, list, flows)
		s.do(t, what, f.end)
		s.rejoin(t, away)
		s.over(t, s.balancers...)
		s.allLive(t, what+", and is back", list, flows)
		if t.Failed() {
			return
		}
	}
}

func (s *spread) do(t *testing.T, what string, do func() error) {
	t.Helper()
	if err := do(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// underWay moves connections of which each end may be the first to send something again. What an
// endpoint sends before b has seen the client is held back, not sent on untranslated; so a client
// that is only sent to must say something now and then, as by keepalives. Answers to those who
// ask endpoints themselves are not held back by a host that saw their beginning, and for some
// 20 seconds, once, by another.
func (s *spread) underWay(t *testing.T, mode spreadMode) {
	s.push(t)
	s.serve(t, "maglev", s.endpoints...)
	a, b := s.balancers[0], s.balancers[1]
	s.over(t, a)
	asking, pushed := keepTalking(s.hold(t, mode.few/2, 80)), listen(s.hold(t, mode.few/2, 81))
	defer pushed.stop()
	direct := listen(s.holdDirect(t, mode.few/4, pushPort))
	defer direct.stop()
	s.goOn(t, "to endpoints themselves", direct)
	s.cut(t, a)
	s.over(t, b)
	b.apply(t, 2, "maglev", s.endpoints...) // a sync in the middle of it
	s.goOn(t, "that clients listen to", pushed)
	if got := asking.end(); !got.all() {
		t.Errorf("connections by which clients ask all the time: %s", got)
	}
	s.goOn(t, "to endpoints themselves, whose answers pass another host", direct)
	s.rejoin(t, a)
}

func (s *spread) goOn(t *testing.T, what string, l *listening) {
	t.Helper()
	got := l.goOn(3 * heldPatience)
	t.Logf("connections %s: %s", what, got)
	if !got.all() {
		t.Errorf("connections %s: %s", what, got)
	}
}
