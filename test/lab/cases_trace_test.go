//go:build netns

package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source"
)

var traceGroups = []group{{
	name: "trace",
	cases: []testCase{
		{name: "verdicts", run: testTraceVerdicts},
		{name: "ends", run: testTraceEnds, except: []string{"ipvs"}}, // the same in every mode, and a guest is slow
		{name: "flood", run: testTraceFlood, except: []string{"ipvs"}},
		{name: "killed", run: testTraceKilled, except: []string{"ipvs"}},
	},
}}

// A tracing is svcproxy trace on node.
type tracing struct {
	e      *env
	cmd    *exec.Cmd
	exited chan error

	mu          sync.Mutex
	out, stderr bytes.Buffer
}

func (r *tracing) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(b)
}

// launchTrace starts svcproxy trace --json.
func (e *env) launchTrace(t *testing.T, args ...string) *tracing {
	t.Helper()
	all := append(append([]string{"trace", "--json"}, e.daemon.directories()...), args...)
	r := &tracing{e: e, cmd: exec.Command(e.daemon.binary, all...), exited: make(chan error, 1)}
	r.cmd.Stdout, r.cmd.Stderr = r, &r.stderr
	if err := e.Node.Start(r.cmd); err != nil {
		t.Fatal(err)
	}
	go func() { r.exited <- r.cmd.Wait() }()
	t.Cleanup(func() { r.cmd.Process.Kill() })
	return r
}

// trace starts svcproxy trace --json and waits until it sees packets.
func (e *env) trace(t *testing.T, args ...string) *tracing {
	t.Helper()
	r := e.launchTrace(t, args...)
	err := pace.Poll(startPatience, func() error {
		if len(e.traceTables(t)) == 0 {
			return fmt.Errorf("no table of a trace: %s", r.stderr.String())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// traceTables lists the tables of traces on node.
func (e *env) traceTables(t *testing.T) []string {
	t.Helper()
	out, err := e.Node.Run("nft", "list", "tables")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool { return !strings.Contains(line, "svcproxy-trace-") })
}

// A traceLine is a line of svcproxy trace --json.
type traceLine struct {
	Source, Destination, Service, Port, Verdict, Endpoint, Node, Why string

	Masquerade string `json:"masqueraded_as"`
	Chains     []string
}

// lines returns what has been told so far.
func (r *tracing) lines(t *testing.T) (list []traceLine) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for text := range strings.Lines(r.out.String()) {
		var l traceLine
		if !strings.HasSuffix(text, "\n") {
			continue // not complete yet
		}
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		list = append(list, l)
	}
	return list
}

// end waits until the trace has ended, and checks that nothing is left of it.
func (r *tracing) end(t *testing.T) {
	t.Helper()
	if err := <-r.exited; err != nil {
		t.Errorf("trace: %v: %s", err, r.stderr.String())
	}
	if left := r.e.traceTables(t); len(left) > 0 {
		t.Errorf("left in the kernel: %q", left)
	}
}

func (r *tracing) interrupt(t *testing.T) {
	t.Helper()
	if err := r.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	r.end(t)
}

// tracedServices are one service of each kind of outcome.
func (e *env) tracedServices() []Service {
	service := func(i byte, endpoints ...Endpoint) Service {
		s := e.service(endpoints...)
		s.Name, s.VIPs = fmt.Sprint(e.name(), "-", i), nil
		return s
	}
	balanced, empty := service(1, at(e.Remote[0])...), service(2)
	ranges, local := service(3, at(e.Remote[0])...), service(4, at(e.Remote[0])...)
	balanced.VIPs, empty.VIPs = e.vip(1).Each(), e.vip(2).Each()
	ranges.LoadBalancerIPs = e.loadBalancer(3).Each()
	ranges.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:ffff::/48")}
	local.ExternalIPs, local.ExternalTrafficPolicy = e.external(4).Each(), "local"
	return []Service{balanced, empty, ranges, local}
}

// testTraceVerdicts: what trace says of a packet is what its sender meets.
func testTraceVerdicts(t *testing.T, e *env) {
	e.apply(t, e.tracedServices()...)
	r := e.trace(t, "-v")
	var all sync.WaitGroup
	for _, c := range []tracedOutcome{
		{e.vip(1), 80, 1, Answered, "balanced", ""},
		{e.vip(2), 80, 2, Refused, "refused", "no endpoints"},
		{e.vip(1), 81, 0, Refused, "refused", "port not served"},
		{e.loadBalancer(3), 80, 3, Dropped, "dropped", "not in the source ranges"},
		{e.external(4), 80, 4, Dropped, "dropped", "policy local, no endpoint on this node"},
	} {
		for _, q := range (check{from: e.Client, to: c.to, port: c.port}).questions() {
			all.Go(func() {
				got := Ask(q)
				if got.Outcome != c.outcome {
					t.Errorf("%s: %s", q, got)
				}
				r.expect(t, c.line(e, q, got))
			})
		}
	}
	all.Wait()
	r.interrupt(t)
	if log := e.daemon.LogTail(math.MaxInt); strings.Contains(log, "another program") || strings.Contains(log, "another program changed our table; repairing it") {
		t.Errorf("svcproxy took the trace for a change of its own objects:\n%s", log)
	}
}

// A tracedOutcome is what packets to an address and port meet, and what trace says of them.
type tracedOutcome struct {
	to           Dual
	port         uint16
	service      int // of the case; 0: none
	outcome      Outcome
	verdict, why string
}

// line returns what trace must say of a question that was answered so.
func (c tracedOutcome) line(e *env, q Question, got Answer) traceLine {
	l := traceLine{Destination: fmt.Sprintf("%s/%s", q.To, q.Protocol), Verdict: c.verdict, Why: c.why}
	if c.service > 0 {
		l.Service = fmt.Sprint("default/", e.name(), "-", c.service)
		l.Port = map[source.Protocol]string{source.TCP: "stream", source.UDP: "packets"}[q.Protocol]
	}
	if got.Outcome == Answered {
		addr := e.Remote[0].Addr().V4
		if q.To.Addr().Is6() {
			addr = e.Remote[0].Addr().V6
		}
		l.Endpoint, l.Node, l.Masquerade = netip.AddrPortFrom(addr, 8080).String(), "elsewhere", got.Source.String()
	}
	return l
}

// expect waits for a line of the client. Where the mode has chains that can be shown, it shows some.
func (r *tracing) expect(t *testing.T, want traceLine) {
	t.Helper()
	err := pace.Poll(expectPatience, func() error {
		for _, l := range r.lines(t) {
			src, _ := netip.ParseAddrPort(l.Source)
			chains := strings.Join(l.Chains, "; ")
			if !r.e.Client.Owns(src.Addr()) || l.Destination != want.Destination {
				continue
			}
			if shown := strings.Contains(chains, "svcproxy: ") || strings.Contains(chains, "SVCP-"); shown != (r.e.mode.variant != "legacy") {
				return fmt.Errorf("chains %q", chains)
			}
			l.Source, l.Chains = "", nil
			if fmt.Sprint(l) != fmt.Sprint(want) {
				return fmt.Errorf("got  %+v\nwant %+v", l, want)
			}
			return nil
		}
		return fmt.Errorf("no line of %s", want.Destination)
	})
	if err != nil {
		t.Error(err)
	}
}

// testTraceEnds: by its bounds, and only for what it was asked to show.
func testTraceEnds(t *testing.T, e *env) {
	e.apply(t, e.tracedServices()...)
	e.launchTrace(t, "--for", "300ms").end(t)
	client := e.Client.Addr().V4
	r := e.trace(t, "--count", "2", client.String(), e.vip(1).V4.String()+":80/tcp")
	questions := check{from: e.Client, to: e.vip(1)}.questions()
	for range 2 {
		for _, q := range questions {
			Ask(q)
			q.From = e.Node
			Ask(q)
		}
	}
	r.end(t)
	for _, l := range r.lines(t) {
		if !strings.HasPrefix(l.Source, client.String()+":") || l.Destination != e.vip(1).V4.String()+":80/tcp" {
			t.Errorf("not asked for: %+v", l)
		}
	}
	if n := len(r.lines(t)); n != 2 {
		t.Errorf("%d lines, want 2", n)
	}
}

// testTraceFlood: of many connections some are shown, and the rest is counted.
func testTraceFlood(t *testing.T, e *env) {
	e.apply(t, e.tracedServices()...)
	r := e.trace(t)
	_, before, err := netnstest.Memory(r.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	const sent = 20000
	to := netip.AddrPortFrom(e.external(4).V4, 80)
	err = e.Client.Do(func() error { return sprayUDP(to, sent) })
	if err != nil {
		t.Fatal(err)
	}
	var left int
	err = pace.Poll(expectPatience, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		left = 0
		for line := range strings.Lines(r.stderr.String()) {
			var n int
			if _, err := fmt.Sscanf(line, "svcproxy trace: %d packets were left out", &n); err == nil {
				left += n
			}
		}
		if n := strings.Count(r.out.String(), "\n"); n+left < sent {
			return fmt.Errorf("%d lines and %d left out of %d: %s", n, left, sent, r.stderr.String())
		}
		return nil
	})
	if err != nil || left == 0 {
		t.Errorf("%d left out: %v", left, err)
	}
	if _, after, err := netnstest.Memory(r.cmd.Process.Pid); err != nil || after-before > 32<<20 {
		t.Errorf("memory grew from %d to %d KiB: %v", before, after, err)
	}
	r.interrupt(t)
}

// testTraceKilled: what a killed trace has in the kernel goes at once, or with the next
// start, which takes away what an older kernel left, and nothing of others.
func testTraceKilled(t *testing.T, e *env) {
	e.apply(t, e.tracedServices()...)
	r := e.trace(t)
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-r.exited
	if left := e.traceTables(t); len(left) > 0 {
		t.Errorf("left in the kernel: %q", left)
	}
	if err := e.daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	e.traceWithoutDaemon(t)
	if err := nft(e.Node, "add table ip svcproxy-trace-4711\nadd chain ip svcproxy-trace-4711 c { type filter hook input priority 0; }"); err != nil {
		t.Fatal(err)
	}
	if err := e.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	if left := e.traceTables(t); len(left) > 0 {
		t.Errorf("left in the kernel after a start: %q", left)
	}
}

// traceWithoutDaemon: names come from the files then.
func (e *env) traceWithoutDaemon(t *testing.T) {
	t.Helper()
	vip := e.vip(1).V4
	r := e.trace(t, "--count", "1", e.Client.Addr().V4.String(), vip.String())
	Ask(Question{From: e.Client, Protocol: source.TCP, To: netip.AddrPortFrom(vip, 80)})
	r.end(t)
	if l := r.lines(t); len(l) != 1 || l[0].Service != "default/"+e.name()+"-1" || l[0].Verdict != "balanced" {
		t.Errorf("trace without a daemon: %+v", l)
	}
}
