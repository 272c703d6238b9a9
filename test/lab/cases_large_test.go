//go:build netns

package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

var largeGroups = []group{{
	name:     "large service",
	settings: "[limits]\nfrontend_source_ranges = 100000\n[sync]\nresync_interval = \"1h\"\n", // in a resync everything comes at once
	cases:    []testCase{{name: "comes in pieces", run: testLargeService}},
	except:   soak([]string{"nftables", "iptables", "ipvs"}, nil), // its order is measured, for which a busy machine is too slow
}}

const (
	largePorts = 100  // of the large service
	largeLast  = 8082 // of these, and the last one that endpoints answer
	largeMore  = 20   // addresses that it gets later: pieces again, but one step in iptables-legacy

	largePatience = 30 * time.Second // five times what all pieces may take
)

// largeSize returns how many addresses the large service has, and how many source ranges. A port of an address is
// worth 4 elements, one for each of five endpoints, and one for each range. Many ranges take nftables long.
func (e *env) largeSize() (addrs, ranges int) {
	switch e.mode.String() {
	case "nftables":
		return 80, 1 // 17 pieces of 5,000, which are quick
	case "iptables-legacy":
		return 45, 10 // 5 pieces of 20,000
	}
	return 20, 10 // 8 pieces of 5,000
}

// writeLarge writes the large service with so many addresses. Of the client it admits the first address only.
func (e *env) writeLarge(t *testing.T, addrs, ranges int) {
	t.Helper()
	s := Service{Name: e.name(), SourceRanges: prefixes(e.Client.Addrs[0])[:1]}
	for i := range ranges - 1 {
		s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(2 * i)}), 32))
	}
	for i := range addrs {
		s.VIPs = append(s.VIPs, e.largeAddr(i).V4)
	}
	for _, h := range e.largeHosts() {
		s.Endpoints = append(s.Endpoints, Endpoint{Address: h.Addr().V4})
	}
	text, err := json.Marshal(map[string]any{"services": []any{struct {
		Service
		Ports any `json:"ports"` // in place of those of Service
	}{s, []map[string]string{{"name": "p", "port": fmt.Sprintf("%d-%d", largeLast+1-largePorts, largeLast)}}}}})
	if err == nil {
		err = e.daemon.WriteFile(e.name()+".json", string(text))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// largeHosts have the endpoints of the large service: all but the one that dies.
func (e *env) largeHosts() []*Host {
	return slices.DeleteFunc(slices.Concat(e.Local, e.Remote), func(h *Host) bool { return h == e.Remote[1] })
}

// largeAddr is an address of the large service, which has no IPv6: all of it would take twice as long.
func (e *env) largeAddr(i int) Dual { return Dual{V4: e.vip(byte(10 + i)).V4} }

// large asks a port of the large service from the client's n-th address.
func (e *env) large(n, i int, port uint16) check {
	return check{
		from: e.Client, source: e.Client.Addrs[n], to: e.largeAddr(i), port: port, protocols: []source.Protocol{source.TCP},
		want: by(e.largeHosts()...),
	}
}

// testLargeService: while a large service is written, a small one changes and an endpoint of another dies, and packets
// follow before the large one is complete. None of its ports ever serves a client that it does not admit.
func testLargeService(t *testing.T, e *env) {
	tcp := []source.Protocol{source.TCP}
	small, checked := e.named("small", 1, at(e.Remote[0])...), e.named("checked", 2, at(e.Remote[1:]...)...)
	checked.HealthCheck = tcpCheck()
	checked.HealthCheck["interval"], checked.HealthCheck["fall"] = Slow(100*time.Millisecond).String(), 1
	e.file(t, "small", small, checked)
	e.remove(t, "small.json")
	e.expect(t, check{from: e.Client, to: e.vip(2), protocols: tcp, want: by(e.Remote[1:]...)})
	addrs, ranges := e.largeSize()
	var others []check
	for _, i := range []int{0, addrs / 2, addrs - 1, addrs + largeMore - 1} { // they are written in this order
		others = append(others, e.large(1, i, largeLast-2), e.large(1, i, largeLast))
	}
	k := e.knockOutside(t, others...)

	start := time.Now()
	e.writeLarge(t, addrs, ranges)
	e.await(t, e.large(0, 0, largeLast-2))
	begun := time.Now()
	small.Endpoints = at(e.Local[1])
	if _, err := e.daemon.Write("small", small, checked); err != nil {
		t.Fatal(err)
	}
	revive := e.dies(t, e.Remote[1], refuses)
	last := e.large(0, addrs-1, largeLast)
	changed := e.before(t, last, check{from: e.Client, to: e.vip(1), protocols: tcp, want: by(e.Local[1])})
	left := e.before(t, last, check{from: e.Client, to: e.vip(2), protocols: tcp, want: by(e.Remote[2])})
	revive()
	e.await(t, last)
	t.Logf("the large service took %v, a change beside it %v, and an endpoint that died %v",
		time.Since(start), changed.Sub(begun), left.Sub(begun))

	e.writeLarge(t, addrs+largeMore, ranges)
	last = e.large(0, addrs+largeMore-1, largeLast)
	e.await(t, last)
	k.stop(t)
	e.apply(t)
	last.want = e.givenUp()
	e.await(t, last) // what is in the kernel is listed after each case
}

// await waits until packets meet what c says, if all of a large service has to be written for that.
func (e *env) await(t *testing.T, c check) {
	t.Helper()
	if err := pace.Poll(Slow(largePatience), func() error { return e.meet([]check{c}) }); err != nil {
		t.Fatal(err)
	}
}

// before waits until packets meet what c says, and checks that nobody serves the last port of the large service yet.
func (e *env) before(t *testing.T, last, c check) time.Time {
	t.Helper()
	e.expect(t, c)
	met := time.Now()
	for _, q := range last.questions() {
		if got := Ask(q); !e.isGivenUp(got) {
			t.Errorf("the large service was complete before %s:80 met %s: %s: %s", c.to.V4, c.want, q, got)
		}
	}
	return met
}
