//go:build netns

package lab

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
)

// Traffic: what svcproxy top and metrics say is what clients did.
var trafficGroups = []group{{
	name: "counts", settings: countsAlways,
	cases: []testCase{
		{name: "connections are counted", run: testTrafficCounts},
		{name: "counted while a command asks", run: testTrafficOnDemand},
	},
}}

const countsAlways = "[metrics]\ntraffic = true\n"

// An endpointTraffic is what a service or endpoint should have.
type endpointTraffic struct{ Active, Connections uint64 }

// top returns what the program says of the case's service and its endpoints, and whether
// packets and bytes of all endpoints with connections are counted.
func (e *env) top() (sum endpointTraffic, each map[netip.AddrPort]endpointTraffic, bytes bool, err error) {
	out, err := e.daemon.Command("top", "--count", "1", "-o", "json", e.name())
	if err != nil {
		return sum, nil, false, err
	}
	var r traffic.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Services) != 1 {
		return sum, nil, false, fmt.Errorf("%d services, error %w: %s", len(r.Services), err, out)
	}
	s := &r.Services[0]
	each, bytes = make(map[netip.AddrPort]endpointTraffic), s.Bytes > 0
	for _, at := range s.Endpoints {
		each[at.Address] = endpointTraffic{at.Active, at.Connections}
		bytes = bytes && (at.Packets > 0 && at.Bytes > at.Packets) == (at.Connections > 0)
	}
	return endpointTraffic{s.Active, s.Connections}, each, bytes, nil
}

// topPatience is for a reading that a busy machine has made slow: the next one comes ten times as long after it.
var topPatience = Slow(30 * time.Second)

// expectTop waits until the program says what a service and its endpoints should have.
func (e *env) expectTop(t *testing.T, when string, want map[netip.AddrPort]endpointTraffic, bytes bool) {
	t.Helper()
	var all endpointTraffic
	for _, w := range want {
		all.Active, all.Connections = all.Active+w.Active, all.Connections+w.Connections
	}
	compare := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	err := pace.Poll(topPatience, func() error {
		sum, each, counted, err := e.top()
		if diff := cmp.Diff(want, each, compare); err == nil && (diff != "" || sum != all || counted != bytes) {
			err = fmt.Errorf("%+v, want %+v; bytes %t, want %t; endpoints (-want +got):\n%s", sum, all, counted, bytes, diff)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
}

// endpointOf returns where a host answers connections to a VIP, in the family of the VIP.
func (e *env) endpointOf(role string, vip netip.Addr) netip.AddrPort {
	for _, h := range append(e.Local[:], e.Remote[:]...) {
		if h.Role == role {
			addr := h.Addr().V4
			if vip.Is6() {
				addr = h.Addr().V6
			}
			return netip.AddrPortFrom(addr, 8080)
		}
	}
	return netip.AddrPort{}
}

// idle returns what endpoints should have at first.
func (e *env) idle(hosts ...*Host) map[netip.AddrPort]endpointTraffic {
	want := make(map[netip.AddrPort]endpointTraffic)
	for _, h := range hosts {
		for _, vip := range e.vip(1).Each() {
			want[e.endpointOf(h.Role, vip)] = endpointTraffic{}
		}
	}
	return want
}

// hold makes connections to either VIP of the case, and adds them to want.
func (e *env) hold(t *testing.T, count int, want map[netip.AddrPort]endpointTraffic) (conns []*Conn) {
	t.Helper()
	for range count {
		conns = append(conns, e.connections(t, e.Client, e.vip(1), 80)...)
	}
	for _, c := range conns {
		at := e.endpointOf(c.Server.By, netip.MustParseAddrPort(c.RemoteAddr().String()).Addr())
		want[at] = endpointTraffic{want[at].Active + 1, want[at].Connections + 1}
	}
	return conns
}

func testTrafficCounts(t *testing.T, e *env) {
	if _, err := e.Node.Run("sysctl", "-qw", "net.netfilter.nf_conntrack_acct=1"); err != nil {
		t.Fatal(err)
	}
	hosts := []*Host{e.Local[0], e.Local[1], e.Remote[0]}
	e.apply(t, e.service(at(hosts...)...))
	want := e.idle(hosts...)
	e.expectTop(t, "before any connection", want, false)

	conns := e.hold(t, 15, want)
	e.expectTop(t, "30 connections", want, true)

	for _, c := range conns[:20] {
		at := e.endpointOf(c.Server.By, netip.MustParseAddrPort(c.RemoteAddr().String()).Addr())
		want[at] = endpointTraffic{want[at].Active - 1, want[at].Connections}
		c.Close()
	}
	e.expectTop(t, "20 of them closed", want, true)

	for _, vip := range e.vip(1).Each() {
		for range 6 {
			q := Question{From: e.Client, Protocol: source.UDP, To: netip.AddrPortFrom(vip, 80)}
			at := e.endpointOf(mustAnswer(t, q).By, vip)
			want[at] = endpointTraffic{want[at].Active + 1, want[at].Connections + 1}
		}
	}
	e.expectTop(t, "12 UDP flows", want, true)
	e.expectTrafficMetrics(t, want)
}

// expectTrafficMetrics checks that /metrics tells the same.
func (e *env) expectTrafficMetrics(t *testing.T, want map[netip.AddrPort]endpointTraffic) {
	t.Helper()
	labels := fmt.Sprintf(`namespace="default",service="%s"`, e.name())
	var lines []string
	var all endpointTraffic
	for at, w := range want {
		all.Active, all.Connections = all.Active+w.Active, all.Connections+w.Connections
		lines = append(lines, fmt.Sprintf(`svcproxy_endpoint_connections_total{endpoint="%s",%s} %d`, at, labels, w.Connections))
	}
	lines = append(lines, fmt.Sprintf("svcproxy_service_connections_total{%s} %d", labels, all.Connections),
		fmt.Sprintf("svcproxy_service_connections{%s} %d", labels, all.Active), "svcproxy_traffic_lost_total 0")
	err := pace.Poll(expectPatience, func() error {
		text, err := e.metrics()
		for _, line := range lines {
			if err == nil && !strings.Contains(text, line+"\n") {
				err = fmt.Errorf("metrics without %s", line)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func (e *env) metrics() (string, error) {
	status, text, err := e.Node.Get("http://127.0.0.1:10349/metrics")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("/metrics answers %d", status)
	}
	return text, err
}

// testTrafficOnDemand: without the setting there are no metrics, and nothing is counted
// until a command asks.
func testTrafficOnDemand(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	if err := e.daemon.Settings(strings.ReplaceAll(e.settings, "traffic = true", "traffic = false")); err != nil {
		t.Fatal(err)
	}
	err := pace.Poll(expectPatience, func() error {
		text, err := e.metrics()
		if err == nil && strings.Contains(text, "svcproxy_service_connections") {
			err = fmt.Errorf("there are metrics of services still")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := e.idle(e.Local[0])
	e.expectTop(t, "asked for the first time", want, false)
	e.hold(t, 3, want)
	e.expectTop(t, "asked again", want, true)
}
