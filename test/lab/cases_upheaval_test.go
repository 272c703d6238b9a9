//go:build netns

package lab

import (
	"context"
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

var upheavalGroups = []group{
	{
		name:  "traffic goes on",
		cases: []testCase{{name: "edits, signals, restarts", run: testTrafficGoesOn}},
	},
	{
		name:     "damage",
		settings: "[sync]\nresync_interval = \"1s\"\n",
		cases: []testCase{
			{name: "repaired", run: testRepaired},
			{name: "flows of the meantime", run: testMeantimeFlows, except: []string{"ipvs"}}, // there the address stays one of node
		},
		damaging: true,
	},
	{
		name:  "cleanup",
		cases: []testCase{{name: "from the kernel alone", run: testCleanup}},
	},
}

// establishedConns is how many connections must live through everything, in each family.
var establishedConns = Fewer(500)

// testTrafficGoesOn: established connections and new ones see nothing of what svcproxy goes through.
func testTrafficGoesOn(t *testing.T, e *env) {
	s := e.everywhere(at(slices.Concat(e.Local, e.Remote)...)...)
	e.apply(t, s)
	conns := e.establish(t)
	flow, err := NewFlow(Question{From: e.Client, Protocol: source.UDP, To: netip.AddrPortFrom(e.vip(1).V4, 80)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer flow.Close()
	flowEndpoint := flow.Ask().By

	unrelated := e.everywhere(at(e.Local[1])...)
	unrelated.Name = "unrelated"
	unrelated.VIPs, unrelated.ExternalIPs, unrelated.LoadBalancerIPs = e.vip(2).Each(), nil, nil
	for i := range unrelated.Ports {
		unrelated.Ports[i].NodePort++
	}
	upheavals := []struct {
		name string
		do   func() error
	}{
		{"unrelated service", func() error { return e.editOften(unrelated) }},
		{"SIGHUP", func() error {
			return errors.Join(e.daemon.Signal(unix.SIGHUP), e.daemon.Apply("unrelated", unrelated))
		}},
		{"SIGTERM and start", func() error { return errors.Join(e.daemon.Stop(), echo(conns), e.daemon.Start()) }},
		{"SIGKILL and start", func() error { return errors.Join(e.daemon.Kill(), echo(conns), e.daemon.Start()) }},
		{"unrelated service again", func() error { return e.editOften(unrelated) }},
		{"unrelated service removed", func() error { return e.daemon.Apply("unrelated") }},
		{"other endpoints", func() error { return e.replaceEndpoints(s) }},
	}
	stop := e.stream(t)
	defer stop()
	for _, u := range upheavals {
		if err := errors.Join(u.do(), echo(conns)); err != nil {
			t.Errorf("%s: %v", u.name, err)
		}
		if got := flow.Ask(); got.By != flowEndpoint && u.name != "other endpoints" {
			t.Errorf("%s: UDP flow %s, want an answer by %s as before", u.name, got, flowEndpoint)
		}
	}
	if err := e.daemon.RemoveFile("unrelated.json"); err != nil {
		t.Error(err)
	}
}

// editOften changes a service several times.
func (e *env) editOften(s Service) error {
	for i := range 5 {
		s.Endpoints = at(e.Local[i%2], e.Remote[i%3])
		if err := e.daemon.Apply("unrelated", s); err != nil {
			return err
		}
	}
	return nil
}

// replaceEndpoints gives the service one set of endpoints after the other, none of which it had before.
func (e *env) replaceEndpoints(s Service) error {
	for i := range 6 {
		s.Endpoints = at(e.Local[i%3], e.Remote[i%3])
		if err := e.daemon.Apply(e.name(), s); err != nil {
			return err
		}
	}
	return nil
}

// establish makes connections to the service's addresses from the client.
func (e *env) establish(t *testing.T) []*Conn {
	t.Helper()
	var conns []*Conn
	for range establishedConns / 2 {
		conns = append(conns, e.connections(t, e.Client, e.vip(1), 80)...)
		conns = append(conns, e.connections(t, e.Client, e.external(1), 80)...)
	}
	return conns
}

// streamPatience lets a SYN be sent twice. One that was lost shows: it was sent again,
// after lateTime, which where the processor is emulated may pass without a loss.
var streamPatience, lateTime = Slow(3 * time.Second), Slow(time.Second)

// streamPause is how long a stream to one address asks nothing, and one to several the longer: connections must not
// take the processor from what is tested, least of all where it is emulated.
var streamPause = Slow(Slow(2 * time.Millisecond))

// isLate reports whether a packet of a new connection was lost.
func isLate(got Answer, took time.Duration) bool { return got.Resent && took > lateTime }

// stream makes new connections and flows to every kind of address all the time,
// until the function it returns is called, which judges them.
func (e *env) stream(t *testing.T) (stop func()) {
	return e.streamTo(t, append(e.everyAddress(e.Client, want{}), check{from: e.Node, to: e.vip(1)})...)
}

// streamTo is stream to what is checked, which an endpoint must answer at once. An emulated processor
// stands still for seconds, which do not count.
func (e *env) streamTo(t *testing.T, checks ...check) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var asked, again atomic.Int64
	var clock *stalls
	if slowness > 1 {
		clock = new(stalls)
		wg.Go(func() { clock.run(ctx) })
	}
	for _, c := range checks {
		wg.Go(func() {
			for ctx.Err() == nil {
				for _, q := range c.questions() {
					if e.askAtOnce(t, q, clock) {
						again.Add(1)
					}
					asked.Add(1)
				}
				time.Sleep(streamPause * time.Duration(len(checks)))
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
		t.Logf("%d new connections", asked.Load())
		if asked.Load() < int64(len(checks)) { // how many there are is up to the machine
			t.Error("hardly any new connection was made")
		}
		if n := again.Load(); e.mode.name != "ipvs" && n > 3+asked.Load()/100 {
			t.Errorf("%d datagrams were lost: more than a busy machine does", n)
		}
	}
}

// busy is the load, of package pace, beside which an answer may be under way for longer than svcproxy
// lets a flow wait for it whose endpoint has left: 300 ms, and none in ipvs mode.
const busy = 1.5

// askAtOnce asks what an endpoint must answer at once, and reports whether a datagram was lost and asked again.
// clock, which may be nil, tells when this process itself stood still.
func (e *env) askAtOnce(t *testing.T, q Question, clock *stalls) (again bool) {
	q.Patience = streamPatience
	load := pace.Load()
	start, stalled := time.Now(), clock.total()
	got := Ask(q)
	if got.Outcome == Dropped && q.Protocol == source.UDP && (e.mode.name == "ipvs" || load > busy) {
		start, again = time.Now(), true // an answer under way is lost when its endpoint leaves
		got = Ask(q)
	}
	took := time.Since(start)
	switch {
	case got.Outcome == Answered && !isLate(got, took-(clock.total()-stalled)):
	case writerWasLate(e.daemon.ConfigDir(), start):
		t.Logf("not counted, for a writer was kept waiting in the middle of a file: %s: %s", q, got)
	default:
		t.Errorf("new connection %s: %s after %v, begun at %s", q, got, took, start.UTC().Format(time.StampMilli))
	}
	return again
}

// testRepaired damages our objects in every way that the mode knows and waits for packets to meet what they should.
func testRepaired(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0])...)
	s.LoadBalancerSourceRanges = prefixes(e.Client.Addrs[0])
	empty := e.service()
	empty.Name, empty.VIPs = e.name()+"-empty", e.vip(2).Each()
	e.apply(t, s, empty)
	checks := append(
		e.everyAddress(e.Local[0], by(e.Local[0]).masked())[3:], // hairpin, by the VIP
		check{from: e.Client, to: e.vip(1), want: by(e.Local[0]).masked()},
		check{from: e.Node, to: e.vip(1), want: by(e.Local[0])},
		check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: by(e.Local[0]).masked()},
		check{from: e.Client, source: e.Client.Addrs[0], to: e.loadBalancer(1), want: by(e.Local[0])},
		check{from: e.Client, source: e.Client.Addrs[1], to: e.loadBalancer(1), want: dropped},
		check{from: e.Client, to: e.vip(1), port: 81, want: refused},
		check{from: e.Client, to: e.vip(2), want: refused},
	)
	e.expect(t, checks...)
	_, whole, err := Snapshot(e.Node)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range e.mode.damages {
		t.Run(d.name, func(t *testing.T) {
			if err := e.damage(d); err != nil {
				t.Fatal(err)
			}
			if err := pace.Poll(expectPatience, func() error { return e.whole(whole) }); err != nil {
				t.Errorf("our objects are not repaired: %v", err)
			}
			e.expect(t, checks...)
		})
	}
}

// testMeantimeFlows: a UDP flow that began while nothing led to our rules went where
// no service is. It comes to one when they are there again.
func testMeantimeFlows(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	time.Sleep(time.Second) // the looks for flows that follow a change must not find these
	i := slices.IndexFunc(e.mode.damages, func(d damage) bool { return d.name == "tables deleted" || d.name == "jumps deleted" })
	if err := errors.Join(e.daemon.Freeze(), e.mode.damages[i].do(e.Node)); err != nil {
		t.Fatal(err)
	}
	flows := e.flows(t, e.vip(1), 80, untouched)
	if err := e.daemon.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	e.flowsMeet(t, flows, by(e.Local[0]))
}

func (e *env) damage(d damage) error {
	if !d.frozen {
		return d.do(e.Node)
	}
	if err := e.daemon.Freeze(); err != nil {
		return err
	}
	return errors.Join(d.do(e.Node), e.daemon.Signal(unix.SIGCONT))
}

// whole reports whether our kernel objects are as they were.
func (e *env) whole(want []string) error {
	_, now, err := Snapshot(e.Node)
	if err != nil {
		return err
	}
	return Difference(want, now)
}

// removed is what cleanup says of what the mode has made.
func (m mode) removed() *regexp.Regexp {
	if m.name == "nftables" {
		return regexp.MustCompile(`^removed table ip svcproxy\nremoved table ip6 svcproxy\n$`)
	}
	const rules = `removed chains SVCP-\* of ip(6?)tables-\w+: \d+\n(removed table inet SVCP-KEEP-\d\n)?removed ipsets SVCP-\* of ip6?tables: \d+\n`
	if m.name == "ipvs" {
		return regexp.MustCompile(`(?s)^removed virtual servers, ipv4: \d+\n.*removed device svcproxy0\nremoved chains SVCP-.*`)
	}
	return regexp.MustCompile("^(" + rules + "){2}$")
}

// testCleanup: the command needs neither a daemon nor its state, and can be repeated; the daemon then starts from nothing.
func testCleanup(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0])...))
	if err := e.daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []*regexp.Regexp{e.mode.removed(), regexp.MustCompile(`^nothing of svcproxy was there\n$`)} {
		said, err := e.daemon.Command("cleanup")
		if err != nil || !want.MatchString(said) {
			t.Errorf("%v; it said %q, want %s", err, said, want)
		}
		_, own, err := Snapshot(e.Node)
		if err != nil || len(own) > 0 {
			t.Errorf("after cleanup: error %v, left %q", err, own)
		}
	}
	e.expect(t, check{from: e.Client, to: e.vip(1), want: untouched})
	if err := e.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0])})
}
