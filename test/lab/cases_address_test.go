//go:build netns

package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

var addressGroups = []group{
	{
		name: "addresses",
		cases: []testCase{
			{name: "vip", run: testVIP},
			{name: "target ports", run: testTargetPorts},
			{name: "one family without endpoints", run: testOneFamily},
			{name: "external and load balancer addresses", run: testExternal},
			{name: "no endpoints", run: testNoEndpoints},
			{name: "unserved ports of a vip", run: testUnservedPorts},
			{name: "unserved ports of external addresses", run: testUnservedExternal, except: []string{"ipvs"}},
			{name: "vip that the host carries", run: testCarriedVIP},
			{name: "established connections", run: testEstablished},
			{name: "many endpoints", run: testManyEndpoints},
			{name: "sctp", run: testSCTP},
			{name: "vip of two services", run: testSharedVIP},
			{name: "external address of the host", run: testHostExternal},
		},
	},
	{
		name:     "one family",
		settings: "families = [\"ipv4\"]\n",
		cases:    []testCase{{name: "the other is untouched", run: testFamilies}},
	},
	{
		name:     "service ranges",
		settings: "service_cidrs = [\"10.96.0.0/16\", \"fd00:96::/64\"]\n",
		cases:    []testCase{{name: "addresses that no service has", run: testServiceRanges}},
	},
}

func testVIP(t *testing.T, e *env) {
	local, remote := e.Local[0], e.Remote[0]
	e.expect(t, check{from: e.Client, to: e.vip(1), want: untouched})

	s := e.service(at(local, remote)...)
	s.VIPs = append(s.VIPs, e.vip(2).Each()...)
	e.apply(t, s)
	both := by(local, remote)
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: both},
		check{from: e.Client, to: e.vip(2), want: both},
		check{from: e.Node, to: e.vip(1), want: both},
		check{from: e.Local[2], to: e.vip(1), want: both},
		check{from: e.Remote[2], to: e.vip(1), want: both},
	)

	s.Endpoints = at(e.Local[1])
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[1])},
		check{from: e.Node, to: e.vip(2), want: by(e.Local[1])},
	)

	s.VIPs = e.vip(1).Each()
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[1])},
		check{from: e.Client, to: e.vip(2), want: e.givenUp()},
	)
}

func testTargetPorts(t *testing.T, e *env) {
	s := e.service(at(e.Local[0], e.Remote[0])...)
	s.Ports = []Port{
		{Name: "a", Protocol: "tcp", Port: 80, TargetPort: 8081},
		{Name: "b", Protocol: "tcp", Port: 8082},
		{Name: "c", Protocol: "udp", Port: 80, TargetPort: 8082},
	}
	for i := range s.Endpoints[:2] { // those of local1
		s.Endpoints[i].Ports = map[string]uint16{"a": 8080}
	}
	e.apply(t, s)
	tests := []struct {
		protocol source.Protocol
		port     uint16
		want     map[string]uint16 // by host
	}{
		{source.TCP, 80, map[string]uint16{"local1": 8080, "remote1": 8081}},
		{source.TCP, 8082, map[string]uint16{"local1": 8082, "remote1": 8082}},
		{source.UDP, 80, map[string]uint16{"local1": 8082, "remote1": 8082}},
	}
	for _, tt := range tests {
		for _, addr := range e.vip(1).Each() {
			q := Question{From: e.Client, Protocol: tt.protocol, To: netip.AddrPortFrom(addr, tt.port)}
			for range 2 * triesEach {
				if got := mustAnswer(t, q); got.Port != tt.want[got.By] || got.Port == 0 {
					t.Errorf("%s: %s, want ports %v", q, got, tt.want)
				}
			}
		}
	}
}

func testOneFamily(t *testing.T, e *env) {
	s := e.service(Endpoint{Address: e.Local[0].Addr().V4})
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, to: Dual{V4: e.vip(1).V4}, want: by(e.Local[0])},
		check{from: e.Client, to: Dual{V6: e.vip(1).V6}, want: refused},
	)
}

func testExternal(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	both := by(e.Local[0], e.Remote[0])
	for _, to := range []Dual{e.external(1), e.loadBalancer(1)} {
		e.expect(t,
			check{from: e.Client, to: to, want: both.masked()},
			check{from: e.Remote[2], to: to, want: both.masked()},
			check{from: e.Local[2], to: to, want: both.masked()},
			check{from: e.Node, to: to, want: both},
		)
	}
}

func testNoEndpoints(t *testing.T, e *env) {
	e.apply(t, e.everywhere())
	e.expect(t, e.everyAddress(e.Client, refused)...)
	e.expect(t, e.everyAddress(e.Node, refused)...)
	e.expect(t, check{from: e.Local[0], to: e.vip(1), want: refused})

	e.apply(t, e.everywhere(at(e.Remote[0])...))
	e.expect(t, e.everyAddress(e.Client, by(e.Remote[0]))...)
	e.expect(t, e.everyAddress(e.Node, by(e.Remote[0]))...)

	e.apply(t, e.everywhere())
	e.expect(t, e.everyAddress(e.Client, refused)...)
	e.expect(t, e.everyAddress(e.Node, refused)...)
}

// everyAddress asks every kind of address that e.everywhere has.
func (e *env) everyAddress(from *Host, want want) []check {
	return append(e.outsideAddresses(from, want), check{from: from, to: e.vip(1), want: want})
}

// outsideAddresses asks those addresses that external_traffic_policy is for.
func (e *env) outsideAddresses(from *Host, want want) []check {
	return []check{
		{from: from, to: e.external(1), want: want},
		{from: from, to: e.loadBalancer(1), want: want},
		{from: from, to: UplinkAddr, port: e.nodePort(), want: want},
	}
}

func testUnservedPorts(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[0])},
		check{from: e.Client, to: e.vip(1), port: 81, want: refused},
		check{from: e.Local[0], to: e.vip(1), port: 81, want: refused},
		check{from: e.Node, to: e.vip(1), port: 81, want: refused},
		check{from: e.Client, to: e.vip(1), port: 8080, want: refused},
	)
	e.expectPing(t, e.Client, e.vip(1), Refused)
	e.expectPing(t, e.Client, e.vip(2), Answered) // no service has it

	s := e.service(at(e.Local[0])...)
	s.Ports = s.Ports[:1]
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, to: e.vip(1), protocols: []source.Protocol{source.TCP}, want: by(e.Local[0])},
		check{from: e.Client, to: e.vip(1), protocols: []source.Protocol{source.UDP, source.SCTP}, want: refused},
	)
}

func testUnservedExternal(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0])...))
	e.expect(t,
		check{from: e.Client, to: e.external(1), want: by(e.Local[0])},
		check{from: e.Client, to: e.external(1), port: 81, want: e.unserved()},
		check{from: e.Client, to: e.loadBalancer(1), port: 81, want: untouched},
		check{from: e.Node, to: e.external(1), port: 81, want: untouched},
	)
	e.expectPing(t, e.Client, e.external(1), Answered)
	e.expectPing(t, e.Client, e.loadBalancer(1), Answered)
}

func testCarriedVIP(t *testing.T, e *env) {
	e.apply(t, e.service(at(e.Local[0])...))
	e.expect(t, check{from: e.Client, to: e.vip(1), port: 9999, want: refused})

	t.Run("while it does", func(t *testing.T) {
		e.carry(t, "front", e.vip(1))
		e.serve(t, e.vip(1), 9999)
		e.expect(t,
			check{from: e.Client, to: e.vip(1), want: by(e.Local[0])},
			check{from: e.Node, to: e.vip(1), want: by(e.Local[0])},
			check{from: e.Client, to: e.vip(1), port: 9999, want: by(e.Node)},
			check{from: e.Node, to: e.vip(1), port: 9999, want: by(e.Node)},
		)
		e.expectPing(t, e.Client, e.vip(1), Answered)
	})
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[0])},
		check{from: e.Client, to: e.vip(1), port: 9999, want: refused},
	)
}

// testEstablished: refusals and drops are for new connections, and endpoints that leave keep those they have.
func testEstablished(t *testing.T, e *env) {
	var elsewhere []*Conn
	if e.mode.name != "ipvs" { // there the address becomes one of node, and its packets stay here
		elsewhere = append(e.connections(t, e.Client, e.vip(1), 81), e.connections(t, e.Node, e.vip(1), 81)...)
	}
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), port: 81, want: refused})
	e.goOn(t, "to gateway, since the service appeared", elsewhere)

	var conns []*Conn
	for _, to := range []Dual{e.vip(1), e.external(1), e.loadBalancer(1)} {
		conns = append(conns, e.connections(t, e.Client, to, 80)...)
		conns = append(conns, e.connections(t, e.Node, to, 80)...)
	}
	s.Endpoints = at(e.Remote[1])
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.external(1), want: dropped})
	e.goOn(t, "with other endpoints", conns)

	s.Endpoints = nil
	e.apply(t, s)
	e.expect(t, e.everyAddress(e.Client, refused)...)
	e.goOn(t, "without endpoints", conns)

	e.apply(t)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: e.givenUp()})
	e.goOn(t, "without the service", conns)
}

// testManyEndpoints has more endpoints than hosts: their ports differ.
func testManyEndpoints(t *testing.T, e *env) {
	s := e.service()
	s.Ports = s.Ports[:1]
	for _, h := range slices.Concat(e.Local, e.Remote) {
		for i, port := range EndpointPorts {
			s.Endpoints = append(s.Endpoints, with(func(ep *Endpoint) {
				ep.Ports, ep.Weight = map[string]uint16{"stream": port}, new(uint16(1+i))
			}, h)...)
		}
	}
	e.apply(t, s)
	for _, addr := range e.vip(1).Each() {
		q := Question{From: e.Client, Protocol: source.TCP, To: netip.AddrPortFrom(addr, 80)}
		seen := make(map[string]bool)
		for range Fewer(1000) { // the lightest get 1 of 36, in guests by turns
			got := mustAnswer(t, q)
			seen[fmt.Sprint(got.By, ":", got.Port)] = true
		}
		if want := 2 * EndpointHosts * len(EndpointPorts); len(seen) != want {
			t.Errorf("%s: %d endpoints answered, want %d", q, len(seen), want)
		}
	}
}

func testSCTP(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	s.Ports = []Port{{Protocol: "sctp", Port: 80, TargetPort: 8080, NodePort: e.nodePort()}}
	e.apply(t, s)
	both := by(e.Local[0], e.Remote[0])
	e.expectSCTP(t, append(e.everyAddress(e.Client, both.masked()),
		check{from: e.Node, to: e.vip(1), want: both},
		check{from: e.Local[0], to: e.vip(1), want: both.masked()}, // itself among them
		check{from: e.Client, to: e.vip(1), port: 81, want: refused},
		check{from: e.Client, to: e.external(1), port: 81, want: e.unserved()},
	)...)

	s.ExternalTrafficPolicy, s.Endpoints = "local", at(e.Local[0], e.Remote[0])
	e.apply(t, s)
	e.expectSCTP(t, e.outsideAddresses(e.Client, by(e.Local[0]).keeping())...)
	s.Endpoints = at(e.Remote[0])
	e.apply(t, s)
	e.expectSCTP(t, e.outsideAddresses(e.Client, dropped)...)
	s.Endpoints = nil
	e.apply(t, s)
	e.expectSCTP(t, e.everyAddress(e.Client, refused)...)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: refused}) // TCP and UDP
}

// expectSCTP is expect for SCTP alone.
func (e *env) expectSCTP(t *testing.T, checks ...check) {
	t.Helper()
	for i := range checks {
		checks[i].protocols = []source.Protocol{source.SCTP}
	}
	e.expect(t, checks...)
}

func testServiceRanges(t *testing.T, e *env) {
	s := e.service(at(e.Local[0])...)
	s.ExternalIPs = e.vip(9).Each() // refused on other ports, too
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[0])},
		check{from: e.Client, to: e.vip(2), want: refused},
		check{from: e.Node, to: e.vip(2), want: refused},
		check{from: e.Local[0], to: e.vip(2), want: refused},
		check{from: e.Client, to: e.external(1), want: untouched},
		check{from: e.Client, to: e.vip(9), want: by(e.Local[0])},
	)
	e.expectPing(t, e.Client, e.vip(2), Refused)
	e.expectPing(t, e.Client, e.external(1), Answered)
	e.expect(t, check{from: e.Client, to: e.vip(9), port: 81, want: refused})

	t.Run("with an address of the host", func(t *testing.T) {
		e.carry(t, "front", e.vip(3))
		e.serve(t, e.vip(3), 9999)
		e.expect(t, check{from: e.Client, to: e.vip(3), port: 9999, want: by(e.Node)})
	})
	e.expect(t, check{from: e.Client, to: e.vip(3), port: 9999, want: refused})
}

// testSharedVIP: ports of one address belong to two services. When one goes, the other stays and refuses the rest.
func testSharedVIP(t *testing.T, e *env) {
	a, b := e.service(at(e.Local[0])...), e.service(at(e.Remote[0])...)
	a.Name, b.Name = e.name()+"-a", e.name()+"-b"
	for i := range b.Ports {
		b.Ports[i].Port = 81
	}
	e.apply(t, a, b)
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[0])},
		check{from: e.Client, to: e.vip(1), port: 81, want: by(e.Remote[0])},
		check{from: e.Client, to: e.vip(1), port: 82, want: refused},
	)
	e.apply(t, b)
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: refused},
		check{from: e.Client, to: e.vip(1), port: 81, want: by(e.Remote[0])},
	)
}

// testHostExternal: an external address may be one of the host's own.
func testHostExternal(t *testing.T, e *env) {
	s := e.service(at(e.Local[0], e.Remote[0])...)
	s.VIPs, s.ExternalIPs = nil, FrontAddr.Each()
	e.serve(t, FrontAddr, 9998)
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, to: FrontAddr, want: by(e.Local[0], e.Remote[0]).masked()},
		check{from: e.Node, to: FrontAddr, want: by(e.Local[0], e.Remote[0])},
		check{from: e.Client, to: FrontAddr, port: 9998, want: by(e.Node).keeping()},
	)
	e.expectPing(t, e.Client, FrontAddr, Answered)
}

func testFamilies(t *testing.T, e *env) {
	e.edit(t, e.everywhere(at(e.Local[0])...))
	e.expect(t,
		check{from: e.Client, to: Dual{V4: e.vip(1).V4}, want: by(e.Local[0])},
		check{from: e.Client, to: Dual{V4: e.vip(1).V4}, port: 81, want: refused},
		check{from: e.Client, to: Dual{V6: e.vip(1).V6}, want: untouched},
		check{from: e.Client, to: Dual{V6: e.external(1).V6}, want: untouched},
	)
}
