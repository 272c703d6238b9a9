//go:build netns

package lab

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
)

var floodGroups = []group{{
	name:     "affinity under a flood",
	settings: "masquerade = \"never\"\n",
	cases:    []testCase{{name: "forged clients", run: testForgedClients}},
	except:   []string{"ipvs"}, // it remembers clients by connections
}}

// Clients that nobody is come to one service: this many a second, for so long.
const floodRate = 3000

var floodTime = soak(Slow(5*time.Second), time.Minute)

// floodPatience is how long a change may take meanwhile. No time is promised of a busy machine.
var floodPatience = Slow(time.Minute)

// testForgedClients: while forged clients fill what is remembered of one service
// with affinity, clients of another stay where they are, those of a new one too,
// and changes arrive, also of the flooded service itself.
func testForgedClients(t *testing.T, e *env) {
	flooded := func(hosts ...*Host) Service {
		s := e.named("flooded", 1, at(hosts...)...)
		s.SessionAffinity, s.SessionAffinityTimeout = "client_ip", "1h"
		return s
	}
	steady := func(suffix string, i byte) Service {
		s := e.named(suffix, i, at(e.Local[0], e.Local[1], e.Remote[0])...)
		s.SessionAffinity, s.SessionAffinityTimeout = "client_ip", "1h"
		return s
	}
	e.apply(t, flooded(e.Local...), steady("steady", 2))
	choices := e.choices(t, e.vip(2), 80)
	spread(t, choices)
	e.remove(t, "changing.json", "new.json")
	quiet := e.changeTimed(t, "changing", e.named("changing", 3, at(e.Local[0])...))

	stop := e.flood(t, netip.AddrPortFrom(e.vip(1).V4, 80))
	var times []time.Duration
	var news map[string]string
	for end, i := time.Now().Add(floodTime), 0; i == 0 || time.Now().Before(end); i++ {
		times = append(times, e.changeTimed(t, "changing", e.named("changing", 3, at(e.Local[(i+1)%EndpointHosts])...)))
		e.expect(t, check{from: e.Client, to: e.vip(3), want: by(e.Local[(i+1)%EndpointHosts])})
		e.sameChoices(t, choices, e.vip(2), 80)
		times = append(times, e.changeTimed(t, e.name(), flooded(e.Local[:2+i%2]...), steady("steady", 2))) // an endpoint leaves, or comes back
		if i == 0 {
			times = append(times, e.changeTimed(t, "new", steady("new", 4)))
			news = e.choices(t, e.vip(4), 80)
		}
		e.sameChoices(t, news, e.vip(4), 80)
	}
	sent := stop()
	e.sameChoices(t, choices, e.vip(2), 80)
	e.sameChoices(t, news, e.vip(4), 80)
	if err := errors.Join(e.daemon.Kill(), e.cleanKernel(), e.daemon.Start()); err != nil { // nft takes a minute to list so many clients
		t.Error(err)
	}
	slices.Sort(times)
	t.Logf("%d forged clients; a change took %v before, then of %d half at most %v, the longest %v",
		sent, quiet.Round(time.Millisecond), len(times), times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
}

// changeTimed writes a file and returns how long it took until packets met it.
func (e *env) changeTimed(t *testing.T, name string, services ...Service) time.Duration {
	t.Helper()
	start := time.Now()
	applied, err := e.daemon.Write(name, services...)
	if err == nil {
		err = pace.Poll(floodPatience, applied)
	}
	if err != nil {
		t.Fatalf("%s after %v: %v", name, time.Since(start), err)
	}
	return time.Since(start)
}

// flood sends SYNs of forged clients to a service until stop is called, which
// returns how many. What is answered to them ends at node.
func (e *env) flood(t *testing.T, to netip.AddrPort) (stop func() int) {
	t.Helper()
	f, err := NewForger(e.Client)
	if err == nil {
		_, err = e.Node.Run("ip", "route", "replace", "blackhole", "100.64.0.0/10")
	}
	if err != nil {
		t.Fatal(err)
	}
	ended, sent := make(chan struct{}), make(chan int)
	go func() {
		n, start := 0, time.Now()
		defer func() { sent <- n }()
		tick := time.NewTicker(time.Second / 100)
		defer tick.Stop()
		for range tick.C {
			select {
			case <-ended:
				return
			default:
			}
			// What a starved thread owes is not sent all at once: the kernel's queues have a thousand places.
			for most := n + floodRate/20; n < min(most, int(floodRate*time.Since(start).Seconds())); {
				from := netip.AddrFrom4([4]byte{100, byte(64 + n>>16&63), byte(n >> 8), byte(n)})
				if err := f.SYN(netip.AddrPortFrom(from, 1024), to); err != nil {
					t.Error(err)
					return
				}
				n++
			}
		}
	}()
	n := -1
	stop = func() int {
		if n < 0 {
			close(ended)
			n = <-sent
			if _, err := e.Node.Run("ip", "route", "del", "blackhole", "100.64.0.0/10"); errors.Join(err, f.Close()) != nil {
				t.Error(err)
			}
		}
		return n
	}
	t.Cleanup(func() { stop() })
	return stop
}
