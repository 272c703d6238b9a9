//go:build netns

package lab

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

var affinityGroups = []group{{
	name:     "affinity",
	settings: "masquerade = \"never\"\n",
	cases: []testCase{
		{name: "kept", run: testAffinity},
		{name: "over addresses", run: testAffinityOverAddresses, except: []string{"ipvs"}},
		// IPVS knows a client as long as one of its connections, of which a UDP one lasts for 5 minutes.
		{name: "expires and is renewed", run: testAffinityExpiry, except: []string{"ipvs"}},
		{name: "endpoint leaves", run: testAffinityLeaves},
		{name: "forgotten at weight zero", run: testAffinityWeightZero, except: []string{"ipvs"}},
		{name: "policy local", run: testAffinityLocal},
	},
}}

// sticky returns a service with affinity, on three endpoints.
func (e *env) sticky(timeout string) Service {
	s := e.everywhere(at(e.Local[0], e.Local[1], e.Remote[0])...)
	s.SessionAffinity, s.SessionAffinityTimeout = "client_ip", timeout
	return s
}

// choices asks once from every address of the client, TCP and UDP over both
// families, and returns who answered, by protocol and source.
func (e *env) choices(t *testing.T, to Dual, port uint16) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, client := range e.Client.Addrs {
		for _, q := range (check{from: e.Client, source: client, to: to, port: port}).questions() {
			all[fmt.Sprint(q.Protocol, " ", q.Source)] = mustAnswer(t, q).By
		}
	}
	return all
}

// sameChoices asks again and wants the same answers.
func (e *env) sameChoices(t *testing.T, want map[string]string, to Dual, port uint16) {
	t.Helper()
	got := e.choices(t, to, port)
	for key, role := range want {
		if got[key] != role {
			t.Errorf("%s to %s got %s, want %s as before", key, to.V4, got[key], role)
		}
	}
}

// changed tells how many choices differ.
func changed(a, b map[string]string) int {
	n := 0
	for key := range a {
		if a[key] != b[key] {
			n++
		}
	}
	return n
}

// spread checks that not all clients chose the same of several endpoints. By
// chance 96 do once in 10^28 runs.
func spread(t *testing.T, choices map[string]string) {
	t.Helper()
	roles := make(map[string]bool)
	for role := range maps.Values(choices) {
		roles[role] = true
	}
	if len(roles) < 2 {
		t.Errorf("all clients chose one endpoint: %v", roles)
	}
}

func testAffinity(t *testing.T, e *env) {
	e.apply(t, e.sticky("10m"))
	first := e.choices(t, e.vip(1), 80)
	spread(t, first)
	e.sameChoices(t, first, e.vip(1), 80)
	alike := 0
	for _, client := range e.Client.Addrs {
		if first["tcp "+client.V4.String()] == first["udp "+client.V4.String()] {
			alike++
		}
	}
	if alike == len(e.Client.Addrs) && !e.takesTurns() {
		t.Error("every client has one endpoint for both ports of the service, want a choice for each port")
	}

	// An endpoint more, and an unrelated change, leave everybody where he is.
	s := e.sticky("10m")
	s.Endpoints = append(s.Endpoints, at(e.Remote[1])...)
	e.apply(t, s)
	e.sameChoices(t, first, e.vip(1), 80)
	if err := e.daemon.Apply("unrelated"); err != nil {
		t.Error(err)
	}
	e.sameChoices(t, first, e.vip(1), 80)

	s.SessionAffinity, s.SessionAffinityTimeout = "none", ""
	e.apply(t, s)
	if changed(first, e.choices(t, e.vip(1), 80)) == 0 {
		t.Error("without affinity every client still has its endpoint")
	}
}

// takesTurns reports whether endpoints get new connections in turn, not at random.
func (e *env) takesTurns() bool { return e.mode.name == "ipvs" }

func testAffinityOverAddresses(t *testing.T, e *env) {
	e.apply(t, e.sticky("10m"))
	first := e.choices(t, e.vip(1), 80)
	e.sameChoices(t, first, e.external(1), 80)
	e.sameChoices(t, first, e.loadBalancer(1), 80)
	e.sameChoices(t, first, UplinkAddr, e.nodePort())
	e.sameChoices(t, first, e.vip(1), 80)
}

// testAffinityExpiry: the kernel counts whole seconds, some of its parts in ticks of one.
func testAffinityExpiry(t *testing.T, e *env) {
	const timeout = 8 * time.Second // nftables mode rounds it up, by a fifth at most
	e.apply(t, e.sticky(timeout.String()))
	used := time.Now()
	first := e.choices(t, e.vip(1), 80)
	for range 3 { // longer than the timeout in all, but never as long without use
		time.Sleep(3 * time.Second)
		began := time.Now()
		got := e.choices(t, e.vip(1), 80)
		if time.Since(used) > timeout-2*time.Second { // on a busy machine some may have been forgotten
			first = got
		} else if n := changed(first, got); n > 0 {
			t.Errorf("%d clients have another endpoint although they came within the timeout", n)
		}
		used = began
	}
	time.Sleep(timeout + 3*time.Second)
	if changed(first, e.choices(t, e.vip(1), 80)) == 0 {
		t.Error("every client still has its endpoint after the timeout")
	}
}

func testAffinityLeaves(t *testing.T, e *env) {
	s := e.sticky("10m")
	e.apply(t, s)
	first := e.choices(t, e.vip(1), 80)
	s.Endpoints = at(e.Local[0], e.Remote[0])
	e.apply(t, s)
	second := e.choices(t, e.vip(1), 80)
	for key, role := range first {
		if role == e.Local[1].Role {
			if second[key] == role {
				t.Errorf("%s still gets %s, which left", key, role)
			}
		} else if second[key] != role {
			t.Errorf("%s got %s, want %s, which did not leave", key, second[key], role)
		}
	}
	e.sameChoices(t, second, e.vip(1), 80)
}

// testAffinityWeightZero: an endpoint that got weight 0 and back is one of
// three again for those who had it.
func testAffinityWeightZero(t *testing.T, e *env) {
	s := e.sticky("10m")
	e.apply(t, s)
	first := e.choices(t, e.vip(1), 80)
	resting := s
	resting.Endpoints = append(with(weight(0), e.Local[1]), at(e.Local[0], e.Remote[0])...)
	e.apply(t, resting)
	e.apply(t, s)
	second := e.choices(t, e.vip(1), 80)
	stayed, left := 0, 0
	for key, role := range first {
		switch {
		case role != e.Local[1].Role && second[key] != role:
			t.Errorf("%s got %s, want %s, which always had weight", key, second[key], role)
		case role == e.Local[1].Role && second[key] == role:
			stayed++
		case role == e.Local[1].Role:
			left++
		}
	}
	if left == 0 {
		t.Errorf("all %d clients of the endpoint with weight 0 found it again", stayed)
	}
}

// testAffinityLocal: a client that host-wide traffic stored on a remote endpoint does not take it along to policy local.
func testAffinityLocal(t *testing.T, e *env) {
	s := e.sticky("10m")
	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	e.choices(t, e.vip(1), 80)
	outside := e.choices(t, e.external(1), 80)
	for key, role := range outside {
		if role == e.Remote[0].Role {
			t.Errorf("%s got %s under policy local", key, role)
		}
	}
	e.sameChoices(t, outside, e.external(1), 80)
	if e.mode.name != "ipvs" {
		e.sameChoices(t, outside, e.loadBalancer(1), 80)
	}

	// The node's own connections are kept too, over all endpoints.
	for i, addr := range e.external(1).Each() {
		q := Question{From: e.Node, Source: UplinkAddr.Each()[i], Protocol: source.TCP, To: netip.AddrPortFrom(addr, 80)}
		first := mustAnswer(t, q)
		for range 20 {
			if got := mustAnswer(t, q); got.By != first.By {
				t.Errorf("%s: %s, first %s", q, got, first)
			}
		}
	}
}
