//go:build netns

package lab

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

var healthGroups = []group{{
	name: "health",
	cases: []testCase{
		{name: "endpoints die and come back", run: testEndpointsDie},
		{name: "unanswered connections", run: testUnanswered, except: []string{"ipvs"}},            // they stay with their server
		{name: "by each type of check", run: testCheckTypes, except: []string{"iptables", "ipvs"}}, // no mode has a part in it
		{name: "all die", run: testAllDie},
		{name: "backup tier", run: testBackupTier},
		{name: "affinity", run: testDeadAffinity},
		{name: "connections of the failed", run: testCloseFailed},
		{name: "disabled", run: testDisabled},
	},
}, {
	name: "health and restarts",
	cases: []testCase{
		{name: "killed while endpoints are dead", run: testKilledWhileDead},
		{name: "drain", run: testDrain},
	},
}, {
	name:  "uplink",
	cases: []testCase{{name: "lost with all endpoints", run: testUplinkLost}},
}}

// testEndpointsDie: while endpoints die and come back, new connections fail only until the
// check has found it, and none after.
func testEndpointsDie(t *testing.T, e *env) {
	hosts := slices.Concat(e.Remote[:2], e.Local[:1])
	e.apply(t, e.checked(at(hosts...)...))
	e.expectTargets(t, "at first", len(hosts))
	k := e.knockOften(t, check{from: e.Client, to: e.vip(1), protocols: []source.Protocol{source.TCP}})
	for n := range soak(3, 20) {
		victim, how := hosts[n%len(hosts)], refuses
		if n%3 == 2 {
			how = silent
		}
		died := time.Now()
		revive := e.dies(t, victim, how)
		e.expectTargets(t, "one died", len(hosts)-1)
		k.mayFail(died, time.Now())
		e.expect(t, check{from: e.Client, to: e.vip(1), want: by(slices.DeleteFunc(slices.Clone(hosts), func(h *Host) bool { return h == victim })...)})
		revive()
		e.expectTargets(t, "all are back", len(hosts))
		e.expect(t, check{from: e.Client, to: e.vip(1), want: by(hosts...)})
	}
	k.stop(t)
}

// testUnanswered: connections that an endpoint has not answered when its check fails are made
// with another one as soon as their client asks again.
func testUnanswered(t *testing.T, e *env) {
	s := e.checked(at(e.Remote[:2]...)...)
	s.HealthCheck["timeout"] = Slow(time.Second).String()
	e.apply(t, s)
	e.expectTargets(t, "at first", 2)
	e.dies(t, e.Remote[0], silent)
	var wg sync.WaitGroup
	for i := range 16 {
		q := Question{From: e.Client, Protocol: source.TCP, To: netip.AddrPortFrom(e.vip(1).Each()[i%2], 80), Patience: retryPatience, Port: freshPort()}
		wg.Go(func() {
			if got := Ask(q); got.By != e.Remote[1].Role {
				t.Errorf("%s: %s, want %s", q, got, e.Remote[1].Role)
			}
		})
	}
	wg.Wait()
}

// retryPatience lets a client send its SYN for the fourth time, 7 s after the first.
var retryPatience = Slow(12 * time.Second)

// testAllDie: with all endpoints down the service goes on as if none were, or refuses.
func testAllDie(t *testing.T, e *env) {
	s := e.checked(at(e.Remote[:2]...)...)
	e.apply(t, s)
	e.expectTargets(t, "at first", 2)
	var revive []func()
	for _, h := range e.Remote[:2] {
		revive = append(revive, e.dies(t, h, refuses, EndpointPorts[0])) // UDP goes on
	}
	err := pace.Poll(checkPatience, func() error {
		states, targets, err := e.endpointStates()
		for _, state := range states {
			if err == nil && !strings.EqualFold(state, "down") {
				err = fmt.Errorf("endpoints %v, targets %v", states, targets)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	udp := []source.Protocol{source.UDP}
	e.expectTargets(t, "all are down, and used", 2)
	e.expect(t, check{from: e.Client, to: e.vip(1), protocols: udp, want: by(e.Remote[:2]...)})
	s.HealthCheck["all_failed"] = "refuse"
	e.apply(t, s)
	e.expectTargets(t, "all are down, and refused", 0)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: refused})
	for _, f := range revive {
		f()
	}
	e.expectTargets(t, "all are back", 2)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[:2]...)})
}

// testBackupTier: the backup is used when the first tier has too few, and its connections
// outlive the way back.
func testBackupTier(t *testing.T, e *env) {
	backup := with(func(ep *Endpoint) { ep.Tier = 1 }, e.Remote[1:2]...)
	e.apply(t, e.checked(append(at(e.Remote[0]), backup...)...))
	e.expectTargets(t, "at first", 1)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[0])})
	revive := e.dies(t, e.Remote[0], refuses)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[1])})
	held := e.connections(t, e.Client, e.vip(1), 80)
	revive()
	err := pace.Poll(checkPatience, func() error {
		for _, q := range (check{from: e.Client, to: e.vip(1)}).questions() {
			if err := e.verify(&q, by(e.Remote[0])); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	e.goOn(t, "of the backup", held)
}

// testDeadAffinity: a client whose endpoint is down moves at once, the others stay.
func testDeadAffinity(t *testing.T, e *env) {
	s := e.checked(at(e.Remote[:2]...)...)
	s.SessionAffinity = "client_ip"
	e.apply(t, s)
	e.expectTargets(t, "at first", 2)
	before := e.choices(t, e.vip(1), 80)
	e.dies(t, e.Remote[0], refuses)
	e.expectTargets(t, "one died", 1)
	for client, role := range e.choices(t, e.vip(1), 80) {
		if role != e.Remote[1].Role {
			t.Errorf("client %s is sent to %s, which is dead; before to %s", client, role, before[client])
		}
	}
}

// testCloseFailed: connections of an endpoint whose check fails go on, or are reset.
func testCloseFailed(t *testing.T, e *env) {
	s := e.checked(at(e.Remote[:2]...)...)
	s.HealthCheck["port"] = EndpointPorts[2]
	e.apply(t, s)
	e.expectTargets(t, "at first", 2)
	var conns []*Conn
	for range 4 {
		conns = append(conns, e.connections(t, e.Client, e.vip(1), 80)...)
	}
	revive := e.dies(t, e.Remote[0], refuses, EndpointPorts[2])
	e.expectTargets(t, "a check fails", 1)
	e.goOn(t, "of an endpoint that is down", conns)
	revive()
	e.expectTargets(t, "it is back", 2)
	s.CloseConnections = "failed"
	e.apply(t, s)
	for len(of(conns, e.Remote[0])) < 2 || len(of(conns, e.Remote[1])) < 2 {
		conns = append(conns, e.connections(t, e.Client, e.vip(1), 80)...)
	}
	e.dies(t, e.Remote[0], refuses, EndpointPorts[2])
	e.expectTargets(t, "a check fails again", 1)
	for _, c := range of(conns, e.Remote[0]) {
		if err := pace.Poll(checkPatience, func() error { return stillOpen(c) }); err != nil {
			t.Error(err)
		}
	}
	e.goOn(t, "of the other endpoint", of(conns, e.Remote[1]))
}

// of returns the connections that a host serves.
func of(conns []*Conn, h *Host) (list []*Conn) {
	for _, c := range conns {
		if c.Server.By == h.Role {
			list = append(list, c)
		}
	}
	return list
}

// stillOpen returns an error as long as a connection has not been reset.
func stillOpen(c *Conn) error {
	err := c.Echo(Patience)
	if got := failed(err); err != nil && got.Outcome == Refused {
		return nil
	}
	return fmt.Errorf("a connection to %s was not reset: %v", c.Server.By, err)
}

// testDisabled: an endpoint and a service that are disabled get nothing.
func testDisabled(t *testing.T, e *env) {
	s := e.service(append(at(e.Remote[0]), with(func(ep *Endpoint) { ep.Enabled = new(false) }, e.Remote[1])...)...)
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Remote[0])})
}

// testKilledWhileDead: however often the daemon is killed, what was down before and after
// gets no connection.
func testKilledWhileDead(t *testing.T, e *env) {
	e.apply(t, e.checked(at(e.Remote...)...))
	e.expectTargets(t, "at first", len(e.Remote))
	e.dies(t, e.Remote[0], refuses)
	e.expectTargets(t, "one died", len(e.Remote)-1)
	e.awaitKeptDown(t, e.Remote[0])
	k := e.knockOften(t, check{from: e.Client, to: e.vip(1), protocols: []source.Protocol{source.TCP}})
	for range soak(4, 50) {
		if err := e.daemon.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := e.daemon.Launch(); err != nil {
			t.Fatal(err)
		}
		if rand.IntN(3) > 0 {
			if err := e.daemon.Await(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(rand.N(2 * checkInterval))
	}
	if err := e.daemon.Await(); err != nil {
		t.Fatal(err)
	}
	e.expectTargets(t, "at last", len(e.Remote)-1)
	k.stop(t)
}

// awaitKeptDown waits until the state directory says that a host's endpoints are down. A slow disk is written to less often
// than once a second.
func (e *env) awaitKeptDown(t *testing.T, h *Host) {
	t.Helper()
	err := pace.Poll(Slow(15*time.Second), func() error {
		text, err := os.ReadFile(filepath.Join(e.daemon.StateDir(), "conditions.json"))
		if err != nil {
			return err
		}
		var kept struct {
			Services map[string]map[string]struct{ State string }
		}
		if err := json.Unmarshal(text, &kept); err != nil {
			return err
		}
		for _, a := range h.Addr().Each() {
			if s := kept.Services["default/"+e.name()][netip.AddrPortFrom(a, 8080).String()].State; s != "down" {
				return fmt.Errorf("%s is %q in %s", a, s, text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testDrain: an endpoint that is drained gets no new connection from the moment it is said,
// over restarts and another version of its file, and --wait ends with its last connection.
func testDrain(t *testing.T, e *env) {
	s := e.service(at(e.Remote...)...)
	e.apply(t, s)
	var conns []*Conn
	for range soak(30, 500) {
		conns = append(conns, e.connections(t, e.Client, e.vip(1), 80)...)
	}
	addr := e.Remote[0].Addr()
	for _, a := range addr.Each() {
		if out, err := e.daemon.Command("drain", a.String(), "--reason", "test"); err != nil {
			t.Fatalf("drain: %v: %s", err, out)
		}
	}
	rest := by(e.Remote[1:]...)
	none := func(when string) {
		t.Helper()
		for _, q := range (check{from: e.Client, to: e.vip(1), protocols: []source.Protocol{source.TCP}}).questions() {
			if err := e.verify(&q, rest); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	none("drained")
	if err := e.daemon.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := e.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	none("restarted")
	s.Endpoints = append(s.Endpoints, at(e.Local[0])...)
	e.apply(t, s)
	rest = by(slices.Concat(e.Remote[1:], e.Local[:1])...)
	none("rewritten")
	e.goOn(t, "of an endpoint that is drained", conns)
	waited := make(chan error, 1)
	go func() {
		_, err := e.daemon.Command("drain", addr.V4.String(), "--wait")
		waited <- err
	}()
	select {
	case err := <-waited:
		t.Errorf("drain --wait ended with connections left: %v", err)
	case <-time.After(Slow(time.Second)):
	}
	for _, c := range of(conns, e.Remote[0]) {
		c.SetLinger(0)
		c.Close()
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	for _, a := range addr.Each() {
		if out, err := e.daemon.Command("undrain", a.String()); err != nil {
			t.Errorf("undrain: %v: %s", err, out)
		}
	}
	e.expect(t, check{from: e.Client, to: e.vip(1), want: by(slices.Concat(e.Remote, e.Local[:1])...)})
}
