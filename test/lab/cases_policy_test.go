//go:build netns

package lab

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/internal/pace"
)

var policyGroups = []group{
	{
		name:     "policy",
		settings: "zone = \"here\"\n",
		cases: []testCase{
			{name: "internal local", run: testInternalLocal},
			{name: "external local", run: testExternalLocal},
			{name: "both local", run: testBothLocal},
			{name: "local by address", run: testLocalByAddress},
			{name: "terminating", run: testTerminating},
			{name: "terminating under policy local", run: testTerminatingLocal},
			{name: "publish not ready", run: testPublishNotReady},
			{name: "weight zero", run: testWeightZero},
			{name: "weights", run: testWeights},
			{name: "same zone", run: testSameZone},
			{name: "same node", run: testSameNode},
			{name: "preference and policy local", run: testPreferenceLocal},
			{name: "health check node port", run: testHealthCheck},
		},
	},
	{
		name:     "local sources by address",
		settings: "local_cidrs = [\"10.4.0.0/16\", \"fd00:4::/64\"]\n",
		cases:    []testCase{{name: "short circuit", run: testShortCircuit}},
	},
	{
		name:     "local sources by interface",
		settings: "local_interfaces = [\"local*\"]\n",
		cases:    []testCase{{name: "short circuit", run: testShortCircuit}},
	},
}

// fromEach returns a check for each of some sources. Checks that are made together wait together for what is dropped.
func fromEach(c check, sources ...*Host) (checks []check) {
	for _, c.from = range sources {
		checks = append(checks, c)
	}
	return checks
}

func testInternalLocal(t *testing.T, e *env) {
	s := e.everywhere(at(e.Remote[0])...)
	s.InternalTrafficPolicy = "local"
	e.apply(t, s)
	e.expect(t, slices.Concat(
		fromEach(check{to: e.vip(1), want: dropped}, e.Client, e.Node, e.Local[0]),
		fromEach(check{to: e.external(1), want: by(e.Remote[0])}, e.Client, e.Node, e.Local[0]))...)

	s.Endpoints = at(e.Local[0], e.Remote[0])
	e.apply(t, s)
	e.expect(t, slices.Concat(
		fromEach(check{to: e.vip(1), want: by(e.Local[0])}, e.Client, e.Node, e.Local[1]),
		fromEach(check{to: e.external(1), want: by(e.Local[0], e.Remote[0])}, e.Client, e.Node, e.Local[1]))...)

	s.Endpoints = at(e.Local[0], e.Local[1], e.Remote[0])
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0], e.Local[1])})

	s.Endpoints = append(with(weight(0), e.Local[0]), at(e.Remote[0])...) // which keeps its connections
	e.apply(t, s)
	e.expect(t, fromEach(check{to: e.vip(1), want: dropped}, e.Client, e.Node)...)

	s.Endpoints = nil
	e.apply(t, s)
	e.expect(t, e.everyAddress(e.Client, refused)...)
}

func testExternalLocal(t *testing.T, e *env) {
	s := e.everywhere(at(e.Remote[0], e.Remote[1])...)
	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	remote := by(e.Remote[0], e.Remote[1])
	e.expect(t, slices.Concat(
		e.outsideAddresses(e.Client, dropped),
		e.outsideAddresses(e.Local[0], dropped), // no local source: nothing says so
		e.outsideAddresses(e.Node, remote),
		fromEach(check{to: e.vip(1), want: remote}, e.Client))...)

	s.Endpoints = at(e.Local[0], e.Remote[0])
	e.apply(t, s)
	e.expect(t, e.outsideAddresses(e.Client, by(e.Local[0]).keeping())...)
	e.expect(t, e.outsideAddresses(e.Node, by(e.Local[0], e.Remote[0]))...)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0], e.Remote[0])})

	s.Endpoints = at(e.Local[0], e.Local[1], e.Local[2], e.Remote[0])
	e.apply(t, s)
	e.expect(t, e.outsideAddresses(e.Client, by(e.Local...).keeping())...)

	s.Endpoints = nil
	e.apply(t, s)
	e.expect(t, e.everyAddress(e.Client, refused)...)
	e.expect(t, e.everyAddress(e.Node, refused)...)
}

func testBothLocal(t *testing.T, e *env) {
	s := e.everywhere(at(e.Remote[0])...)
	s.InternalTrafficPolicy, s.ExternalTrafficPolicy = "local", "local"
	e.apply(t, s)
	e.expect(t, slices.Concat(
		e.everyAddress(e.Client, dropped),
		fromEach(check{to: e.vip(1), want: dropped}, e.Node),
		e.outsideAddresses(e.Node, by(e.Remote[0])))...)

	s.Endpoints = at(e.Local[0], e.Remote[0])
	e.apply(t, s)
	e.expect(t, e.everyAddress(e.Client, by(e.Local[0]))...)
}

// testLocalByAddress: an endpoint without node is on the node that carries its address.
func testLocalByAddress(t *testing.T, e *env) {
	e.serve(t, FrontAddr, 8085)
	s := e.service(at(e.Remote[0])...)
	s.InternalTrafficPolicy = "local"
	for i := range s.Ports {
		s.Ports[i].TargetPort = 8085
	}
	for _, addr := range FrontAddr.Each() {
		s.Endpoints = append(s.Endpoints, Endpoint{Address: addr})
	}
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Node)},
		check{from: e.Node, to: e.vip(1), want: by(e.Node)},
	)
}

func testTerminating(t *testing.T, e *env) {
	gone := with(notReady, e.Local[2])
	s := e.service(append(with(terminating, e.Local[0], e.Remote[0]), gone...)...)
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0], e.Remote[0])})

	s.Endpoints = append(with(terminating, e.Local[0], e.Remote[0]), at(e.Remote[1])...)
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[1])})

	s.Endpoints = gone
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: refused})

	// Serving alone is not enough: the fallback is for those that are terminating.
	s.Endpoints = with(func(ep *Endpoint) { ep.Ready = new(false) }, e.Local[0])
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: refused})
}

func testTerminatingLocal(t *testing.T, e *env) {
	s := e.everywhere(append(with(terminating, e.Local[0]), at(e.Remote[0])...)...)
	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	e.expect(t, e.outsideAddresses(e.Client, by(e.Local[0]).keeping())...)
	e.expect(t, e.outsideAddresses(e.Node, by(e.Remote[0]))...)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[0])})

	s.Endpoints = append(s.Endpoints, at(e.Local[1])...)
	e.apply(t, s)
	e.expect(t, e.outsideAddresses(e.Client, by(e.Local[1]))...)
}

func testPublishNotReady(t *testing.T, e *env) {
	s := e.service(append(with(notReady, e.Local[0]), at(e.Remote[0])...)...)
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[0])})
	s.PublishNotReady = true
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0], e.Remote[0])})
}

func testWeightZero(t *testing.T, e *env) {
	s := e.service(append(with(weight(0), e.Local[0]), at(e.Remote[0])...)...)
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[0])})
	s.Endpoints = with(weight(0), e.Local[0], e.Remote[0])
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: refused})
}

// weightTolerance is how far a share may be off, of itself.
const weightTolerance = 0.10

// testWeights counts 2,000 connections at a time, 20,000 at most. By chance alone the least share
// of 2,000 is off by more than a tenth in 9 of 100; of 20,000, in 1 of 10 million. In guests the scheduler goes by turns.
func testWeights(t *testing.T, e *env) {
	s := e.service(with(weight(1), e.Local[0])...)
	s.Endpoints = append(s.Endpoints, with(weight(2), e.Remote[0])...)
	s.Endpoints = append(s.Endpoints, with(weight(5), e.Local[1])...)
	e.apply(t, s)
	shares := map[string]float64{e.Local[0].Role: 1. / 8, e.Remote[0].Role: 2. / 8, e.Local[1].Role: 5. / 8}
	for _, q := range (check{from: e.Client, to: e.vip(1)}).questions() {
		counts := make(map[string]int)
		var err error
		for each, total := Fewer(2000), 0; total < 20_000; {
			for range each {
				counts[mustAnswer(t, q).By]++
			}
			total += each
			if err = compareShares(counts, total, shares); err == nil {
				break
			}
		}
		if err != nil {
			t.Errorf("%s: %v", q, err)
		}
	}
}

func compareShares(counts map[string]int, total int, shares map[string]float64) error {
	for role, share := range shares {
		want := share * float64(total)
		if math.Abs(float64(counts[role])-want) > weightTolerance*want {
			return fmt.Errorf("%s answered %d of %d, want %.0f", role, counts[role], total, want)
		}
	}
	return nil
}

func testSameZone(t *testing.T, e *env) {
	near := with(zone("here"), e.Local[0], e.Remote[0])
	far := append(with(zone("there"), e.Local[1]), at(e.Remote[1])...) // without zone: not near
	s := e.service(append(near, far...)...)
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0], e.Local[1], e.Remote[0], e.Remote[1])})

	s.TrafficDistribution = "prefer_same_zone"
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0], e.Remote[0])})

	s.Endpoints = append(with(func(ep *Endpoint) { zone("here")(ep); notReady(ep) }, e.Local[0], e.Remote[0]), far...)
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[1], e.Remote[1])})
}

func testSameNode(t *testing.T, e *env) {
	zoned := with(zone("here"), e.Remote[0])
	far := at(e.Remote[1])
	s := e.service(append(append(at(e.Local[0]), zoned...), far...)...)
	s.TrafficDistribution = "prefer_same_node"
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0])})

	s.Endpoints = append(zoned, far...)
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[0])})

	s.Endpoints = far
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[1])})
}

// testPreferenceLocal: a preference does not limit what a local policy may use.
func testPreferenceLocal(t *testing.T, e *env) {
	s := e.everywhere(append(with(zone("there"), e.Local[0]), with(zone("here"), e.Local[1], e.Remote[0])...)...)
	s.ExternalTrafficPolicy, s.TrafficDistribution = "local", "prefer_same_zone"
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[1], e.Remote[0])})
	e.expect(t, check{from: e.Client, to: e.external(1), want: by(e.Local[0], e.Local[1]).keeping()})
}

// testShortCircuit: host processes and local sources reach all endpoints of a service whose external policy is local.
func testShortCircuit(t *testing.T, e *env) {
	s := e.everywhere(at(e.Remote[0], e.Remote[1])...)
	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	remote := by(e.Remote[0], e.Remote[1])
	e.expect(t, e.outsideAddresses(e.Client, dropped)...)
	e.expect(t, e.outsideAddresses(e.Node, remote)...)
	e.expect(t, e.outsideAddresses(e.Local[0], remote)...)

	s.Endpoints = at(e.Local[0], e.Remote[0])
	e.apply(t, s)
	both := by(e.Local[0], e.Remote[0])
	e.expect(t, e.outsideAddresses(e.Client, by(e.Local[0]).keeping())...)
	e.expect(t, e.outsideAddresses(e.Node, both)...)
	e.expect(t, e.outsideAddresses(e.Local[2], both)...)
	e.expect(t, e.everyAddress(e.Local[0], both)...) // itself among them
}

func testHealthCheck(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	s.ExternalTrafficPolicy = "local"
	s.HealthCheckNodePort = e.nodePort() + 1000
	e.apply(t, s)
	e.expectHealth(t, s.HealthCheckNodePort, 200)
	for name, endpoints := range map[string][]Endpoint{
		"remote only": at(e.Remote[0]),
		"terminating": append(with(terminating, e.Local[0]), at(e.Remote[0])...),
		"weight zero": append(with(weight(0), e.Local[0]), at(e.Remote[0])...),
		"none":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			s.Endpoints = endpoints
			e.apply(t, s)
			e.expectHealth(t, s.HealthCheckNodePort, 503)
			s.Endpoints = at(e.Local[0], e.Local[1])
			e.apply(t, s)
			e.expectHealth(t, s.HealthCheckNodePort, 200)
		})
	}

	s.HealthCheckNodePort = 0
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: UplinkAddr, port: e.nodePort() + 1000, want: refused}) // nobody listens
}

// expectHealth asks the health check of the node's primary addresses from the client.
func (e *env) expectHealth(t *testing.T, port uint16, want int) {
	t.Helper()
	for _, addr := range UplinkAddr.Each() {
		url := fmt.Sprintf("http://%s/any/path", netip.AddrPortFrom(addr, port))
		err := pace.Poll(expectPatience, func() error {
			status, body, err := e.Client.Get(url)
			if err == nil && status != want {
				err = fmt.Errorf("%s answers %d %q, want %d", url, status, body, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
