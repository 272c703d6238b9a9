//go:build netns

package lab

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// UDP flows: every case opens flows from fixed ports, changes the service, and
// goes on sending, so that connection tracking never forgets them by itself.
var flowGroups = []group{{
	name: "flows",
	cases: []testCase{
		{name: "endpoint leaves", run: testFlowEndpointLeaves},
		{name: "endpoint is neither ready nor serving", run: testFlowNotServing},
		{name: "endpoint port changes", run: testFlowPortChanges},
		{name: "last endpoint leaves", run: testFlowLastEndpoint},
		{name: "service appears", run: testFlowServiceAppears},
		{name: "service appears while an answer is under way", run: testFlowAnswerUnderWay},
		{name: "first endpoint appears", run: testFlowFirstEndpoint},
		{name: "address is added", run: testFlowAddressAdded},
		{name: "address is removed", run: testFlowAddressRemoved},
		{name: "service is removed", run: testFlowServiceRemoved},
		{name: "node port", run: testFlowNodePort},
		{name: "node port of another service", run: testFlowNodePortOfAnother},
		{name: "policy becomes local", run: testFlowPolicyLocal},
		{name: "endpoints that stay", run: testFlowStays},
		{name: "foreign flow", run: testForeignFlow},
		{name: "changed while stopped", run: testFlowWhileStopped},
	},
}}

// flowsEach is how many flows each host has to each address: enough that not all start on one endpoint of two.
const flowsEach = 12

// flows opens flows from client and node to both addresses, and asks once on each.
func (e *env) flows(t *testing.T, to Dual, port uint16, want want) []*Flow {
	t.Helper()
	var flows []*Flow
	for _, from := range []*Host{e.Client, e.Node} {
		for _, addr := range to.Each() {
			for range flowsEach {
				q := Question{From: from, Protocol: source.UDP, To: netip.AddrPortFrom(addr, port)}
				flow, err := NewFlow(q, 0)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { flow.Close() })
				flows = append(flows, flow)
			}
		}
	}
	e.flowsMeet(t, flows, want)
	return flows
}

// flowsMeet waits until each flow meets what it should, for five times the second that it may take.
func (e *env) flowsMeet(t *testing.T, flows []*Flow, want want) {
	t.Helper()
	start := time.Now()
	for _, f := range flows {
		asked := 0
		err := pace.Poll(expectPatience, func() error {
			asked++
			if got := f.Ask(); e.match(f.question, got, want) != nil {
				f.question.late(got, want)
				return fmt.Errorf("flow %s: %s, want %s", f.question, got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("asked %d times: %v; node knows of it:\n%s", asked, err, e.tracked(f))
		}
	}
	t.Logf("%d flows: %s, within %v", len(flows), want, time.Since(start))
}

// tracked returns what connection tracking of node has with the flow's port.
func (e *env) tracked(f *Flow) string {
	family := "ipv6"
	if f.question.To.Addr().Is4() {
		family = "ipv4"
	}
	out, err := e.Node.Run("conntrack", "-L", "-f", family, "-p", "udp")
	if err != nil {
		return err.Error()
	}
	port := fmt.Sprintf("port=%d ", f.LocalAddr().(*net.UDPAddr).Port)
	return strings.Join(slices.DeleteFunc(strings.SplitAfter(out, "\n"), func(line string) bool { return !strings.Contains(line, port) }), "")
}

// flowsAreGone waits until no endpoint answers flows any more, and they meet what an address
// meets that a service had. In ipvs mode it goes two seconds later where it has no TCP
// connection, while flows are asked one by one.
func (e *env) flowsAreGone(t *testing.T, flows []*Flow) {
	t.Helper()
	for _, f := range flows {
		err := pace.Poll(expectPatience, func() error {
			if got := f.Ask(); !e.isGivenUp(got) && !(got.Outcome == Dropped && f.isItsOwnTarget()) {
				f.question.late(got, e.givenUp())
				return fmt.Errorf("flow %s: %s, want %s", f.question, got, e.givenUp())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// isItsOwnTarget reports whether the flow's own address is the one that it asks, as a host's is that
// has the address itself. Once that has gone nothing finds the way back to the flow.
func (f *Flow) isItsOwnTarget() bool {
	own, ok := f.LocalAddr().(*net.UDPAddr)
	return ok && own.AddrPort().Addr().Unmap() == f.question.To.Addr()
}

// edit writes the service and does not wait: the flows tell.
func (e *env) edit(t *testing.T, s ...Service) {
	t.Helper()
	if _, err := e.daemon.Write(e.name(), s...); err != nil {
		t.Fatal(err)
	}
}

func testFlowEndpointLeaves(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	both := by(e.Local[0], e.Remote[0])
	flows := append(e.flows(t, e.vip(1), 80, both), e.flows(t, e.external(1), 80, both)...)
	s.Endpoints = at(e.Remote[0])
	e.edit(t, s)
	e.flowsMeet(t, flows, by(e.Remote[0]))
	s.Endpoints = at(e.Local[1])
	e.edit(t, s)
	e.flowsMeet(t, flows, by(e.Local[1]))
}

func testFlowNotServing(t *testing.T, e *env) {
	s := e.service(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	flows := e.flows(t, e.vip(1), 80, by(e.Local[0], e.Remote[0]))
	s.Endpoints = append(with(notReady, e.Local[0]), at(e.Remote[0])...)
	e.edit(t, s)
	e.flowsMeet(t, flows, by(e.Remote[0]))
}

func testFlowPortChanges(t *testing.T, e *env) {
	s := e.service(at(e.Local[0])...)
	e.apply(t, s)
	flows := e.flows(t, e.vip(1), 80, by(e.Local[0]))
	s.Ports[1].TargetPort = 8081
	e.edit(t, s)
	for _, f := range flows {
		err := pace.Poll(expectPatience, func() error {
			if got := f.Ask(); got.Port != 8081 {
				return fmt.Errorf("flow %s: %s, want port 8081", f.question, got)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func testFlowLastEndpoint(t *testing.T, e *env) {
	s := e.service(at(e.Local[0])...)
	e.apply(t, s)
	flows := e.flows(t, e.vip(1), 80, by(e.Local[0]))
	s.Endpoints = nil
	e.edit(t, s)
	e.flowsMeet(t, flows, refused)
	s.Endpoints = at(e.Remote[0])
	e.edit(t, s)
	e.flowsMeet(t, flows, by(e.Remote[0]))
}

func testFlowServiceAppears(t *testing.T, e *env) {
	e.apply(t)
	flows := e.flows(t, e.vip(1), 80, untouched)
	e.edit(t, e.service(at(e.Local[0])...))
	e.flowsMeet(t, flows, by(e.Local[0]))
}

// testFlowAnswerUnderWay: an answer that comes when its flow was just removed
// looks to conntrack like a new flow, from the service to the client, and takes
// the client's later packets for its answers.
func testFlowAnswerUnderWay(t *testing.T, e *env) {
	e.apply(t)
	flows := e.flows(t, e.vip(1), 80, untouched)
	e.edit(t, e.service(at(e.Local[0])...))
	var wg sync.WaitGroup
	for _, f := range flows {
		wg.Go(func() { f.AskLate(200 * time.Millisecond) })
	}
	wg.Wait()
	e.flowsMeet(t, flows, by(e.Local[0]))
}

func testFlowFirstEndpoint(t *testing.T, e *env) {
	s := e.service()
	e.apply(t, s)
	flows := e.flows(t, e.vip(1), 80, refused)
	s.Endpoints = at(e.Local[0])
	e.edit(t, s)
	e.flowsMeet(t, flows, by(e.Local[0]))
}

func testFlowAddressAdded(t *testing.T, e *env) {
	s := e.service(at(e.Local[0])...)
	e.apply(t, s)
	added := e.flows(t, e.external(1), 80, untouched)
	added = append(added, e.flows(t, e.vip(2), 80, untouched)...)
	s.ExternalIPs = e.external(1).Each()
	s.VIPs = append(s.VIPs, e.vip(2).Each()...)
	e.edit(t, s)
	e.flowsMeet(t, added, by(e.Local[0]))
}

func testFlowAddressRemoved(t *testing.T, e *env) {
	s := e.service(at(e.Local[0])...)
	s.ExternalIPs = e.external(1).Each()
	e.apply(t, s)
	removed := e.flows(t, e.external(1), 80, by(e.Local[0]))
	staying := e.flows(t, e.vip(1), 80, by(e.Local[0]))
	s.ExternalIPs = nil
	e.edit(t, s)
	e.flowsAreGone(t, removed)
	e.flowsMeet(t, staying, by(e.Local[0]))
}

func testFlowServiceRemoved(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	flows := e.flows(t, e.vip(1), 80, by(e.Local[0]))
	e.edit(t)
	e.flowsAreGone(t, flows)
}

func testFlowNodePort(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	flows := e.flows(t, UplinkAddr, e.nodePort(), by(e.Local[0], e.Remote[0]))
	s.Endpoints = at(e.Remote[0])
	e.edit(t, s)
	e.flowsMeet(t, flows, by(e.Remote[0]))
}

// stay checks that each flow is where it was when this was called.
func (e *env) stay(t *testing.T, flows []*Flow) func(when string) {
	t.Helper()
	at := make([]string, len(flows))
	for i, f := range flows {
		at[i] = f.Ask().By
	}
	return func(when string) {
		t.Helper()
		for i, f := range flows {
			// The answer to one datagram may be lost; a flow that was cut is cut for good.
			if got := f.Ask(); got.By != at[i] && f.Ask().By != at[i] {
				t.Fatalf("%s: flow %s: %s, want an answer by %s", when, f.question, got, at[i])
			}
		}
	}
}

// lookAtAllFlows has svcproxy look at all flows, and waits until it has: it then
// removes what goes from an address of the case to nowhere.
func (e *env) lookAtAllFlows(t *testing.T) {
	t.Helper()
	strays := map[string][]string{
		"ipv4": {"-s", "203.0.113.9", "-d", e.vip(1).V4.String(), "-r", "203.0.113.10", "-q", "203.0.113.9"},
		"ipv6": {"-s", "2001:db8:9::9", "-d", e.vip(1).V6.String(), "-r", "2001:db8:9::10", "-q", "2001:db8:9::9"},
	}
	for _, addrs := range strays {
		args := append([]string{"-I", "-p", "udp", "--sport", "9", "--dport", "80",
			"--reply-port-src", "9", "--reply-port-dst", "9", "-t", "600"}, addrs...)
		if _, err := e.Node.Run("conntrack", args...); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.daemon.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for family, addrs := range strays {
		err := pace.Poll(expectPatience, func() error {
			out, err := e.Node.Run("conntrack", append([]string{"-L", "-f", family, "-p", "udp"}, addrs[:2]...)...)
			if err == nil && strings.Contains(out, addrs[1]) {
				return fmt.Errorf("a stray flow stays: %s", out)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// testFlowNodePortOfAnother: an address of node and the node port of another
// service have the same number. The flows of neither are cut.
func testFlowNodePortOfAnother(t *testing.T, e *env) {
	ported := e.everywhere(at(e.Local[1])...)
	addressed := e.service(at(e.Local[0], e.Remote[0])...)
	addressed.Name, addressed.VIPs = e.name()+"-addressed", UplinkAddr.Each()
	addressed.Ports = []Port{{Protocol: "udp", Port: e.nodePort(), TargetPort: 8080}}
	e.apply(t, addressed, ported)
	flows := e.flows(t, UplinkAddr, e.nodePort(), by(e.Local[0], e.Remote[0]))
	stay := e.stay(t, flows)
	for range 4 {
		e.lookAtAllFlows(t)
		stay("after a look at all flows")
	}
	ported.Endpoints = at(e.Local[2])
	moved := e.flows(t, e.vip(1), 80, by(e.Local[1]))
	e.edit(t, addressed, ported)
	e.flowsMeet(t, moved, by(e.Local[2]))
	stay("after a change of the node port")

	e.edit(t, ported)
	e.flowsMeet(t, flows, by(e.Local[2]))
	e.edit(t, addressed, ported)
	e.flowsMeet(t, flows, by(e.Local[0], e.Remote[0]))
}

// testFlowPolicyLocal: flows from outside go to an endpoint of node, those of node stay.
func testFlowPolicyLocal(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	both := by(e.Local[0], e.Remote[0])
	flows := append(e.flows(t, UplinkAddr, e.nodePort(), both), e.flows(t, e.external(1), 80, both)...)
	var outside, own []*Flow
	for _, f := range flows {
		if f.question.From == e.Client {
			outside = append(outside, f)
		} else {
			own = append(own, f)
		}
	}
	stay := e.stay(t, own)
	s.ExternalTrafficPolicy = "local"
	e.edit(t, s)
	e.flowsMeet(t, outside, by(e.Local[0]))
	if e.mode.name != "ipvs" { // there it is rules, no longer IPVS, that balance what node sends
		stay("after policy local")
	}
	e.flowsMeet(t, own, both)
}

// testFlowStays: an endpoint with weight 0, one that is terminating but still
// serves, and one that is no longer near have not left.
func testFlowStays(t *testing.T, e *env) {
	s := e.service(at(e.Local[0])...)
	e.apply(t, s)
	flows := e.flows(t, e.vip(1), 80, by(e.Local[0]))
	for _, endpoints := range [][]Endpoint{
		at(e.Local[0], e.Remote[0]),
		append(with(weight(0), e.Local[0]), at(e.Remote[0])...),
		append(with(terminating, e.Local[0]), at(e.Remote[0])...),
	} {
		s.Endpoints = endpoints
		e.apply(t, s)
		e.flowsMeet(t, flows, by(e.Local[0]))
	}
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[0])})
	e.flowsMeet(t, flows, by(e.Local[0]))
}

// testForeignFlow: a flow that another program translates, on the same port
// number, stays in conntrack. Its rule is gone meanwhile, so that a flow that was
// deleted could not come back; nor does conntrack forget one by itself on a busy
// machine, where the flows that move take longer than the 30 seconds of an idle one.
func testForeignFlow(t *testing.T, e *env) {
	e.sysctl(t, "net.netfilter.nf_conntrack_udp_timeout=600", "net.netfilter.nf_conntrack_udp_timeout=30")
	s := e.service(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	foreign := e.flows(t, foreignAddr, 80, by(e.Local[2]))
	ours := e.flows(t, e.vip(1), 80, by(e.Local[0], e.Remote[0]))
	if err := e.mode.translateForeign(e.Node, false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.mode.translateForeign(e.Node, true); err != nil {
			t.Error(err)
		}
	})

	s.Endpoints = at(e.Remote[0])
	e.edit(t, s)
	e.flowsMeet(t, ours, by(e.Remote[0]))
	e.flowsMeet(t, foreign, by(e.Local[2]))
	e.edit(t)
	e.flowsAreGone(t, ours)
	e.flowsMeet(t, foreign, by(e.Local[2]))
}

// testFlowWhileStopped: what changed while svcproxy did not run is made good when it starts.
func testFlowWhileStopped(t *testing.T, e *env) {
	s := e.service(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	flows := e.flows(t, e.vip(1), 80, by(e.Local[0], e.Remote[0]))
	appearing := e.flows(t, e.vip(2), 80, untouched)
	if err := e.daemon.Stop(); err != nil {
		t.Fatal(err)
	}
	s.Endpoints = at(e.Remote[0])
	s.VIPs = append(s.VIPs, e.vip(2).Each()...)
	e.edit(t, s)
	if err := e.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	e.flowsMeet(t, flows, by(e.Remote[0]))
	e.flowsMeet(t, appearing, by(e.Remote[0]))
}
