//go:build netns

package hosts

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/test/lab"
)

// TestRouters: FRR and BIRD, configured as docs/many-hosts.md says, have routes to the addresses of a service in their kernels
// while it can be used on this host, and clients behind them reach it.
func TestRouters(t *testing.T) {
	t.Run("faults", func(t *testing.T) { t.Parallel(); testFaults(newSite(t)) })
	t.Run("changes", func(t *testing.T) { t.Parallel(); testChanges(newSite(t)) })
	t.Run("losses", func(t *testing.T) { t.Parallel(); testLosses(newSite(t), 0) })
	t.Run("random faults", func(t *testing.T) { t.Parallel(); testRandom(newSite(t)) })
	t.Run("losses with graceful restart", func(t *testing.T) { t.Parallel(); testLosses(newSite(t), 4*time.Second) })
}

// testFaults: status names what is configured wrong, and a change of settings puts it right.
func testFaults(s *site) {
	s.service()
	s.serve()
	s.settings(bgpSettings{hold: "60s", restart: "60s", password: "wrong"}) // first: none of its connections is from before
	s.must(s.d.Start())
	s.says("a wrong password looks the same")
	s.settings(bgpSettings{hold: "60s", restart: "60s", as: 64999})
	s.says("wrong AS: the peer is not in AS 64999")
	for _, r := range s.routers {
		for _, a := range announced.Each() {
			if p, err := r.routes.of(a); p.there || p.lost > 0 || err != nil {
				s.t.Errorf("%s has a route to %s without a session: %+v, %v", r.name, a, p, err)
			}
		}
	}
	right := time.Now()
	s.settings(bgpSettings{hold: "60s", restart: "60s"})
	s.there("settings put right", right)
}

// says waits until status says something of each router.
func (s *site) says(words string) {
	s.t.Helper()
	start := time.Now()
	defer func() { s.t.Logf("%q in status after %v", words, time.Since(start).Round(time.Millisecond)) }()
	s.must(pace.Poll(patience, func() error {
		text, err := s.d.Command("status")
		if err != nil {
			return err
		}
		for _, r := range s.routers {
			if !strings.Contains(lineOf(text, "router "+r.host.Addr().V4.String()+" "), words) {
				return fmt.Errorf("want %q of %s in status:\n%s", words, r.name, text)
			}
		}
		return nil
	}))
}

// lineOf returns the first line of a text that has a part.
func lineOf(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}

// testChanges: routes come after the service answers, and go as soon as it does not; a restart moves nothing.
func testChanges(s *site) {
	s.service()
	s.settings(bgpSettings{hold: "60s", restart: "60s"})
	start := time.Now()
	s.must(s.d.Start())
	for i, x := range s.established(0) {
		s.t.Logf("session with %s %v after the start", s.routers[i].name, x.Since.Sub(start).Round(time.Millisecond))
	}
	s.nowhere()
	start = time.Now()
	s.serve()
	s.there("the endpoint answers", start)
	s.restart()
	s.leaveOut()
	s.drain()
	s.remove()
	start = time.Now()
	s.unserve()
	s.gone("the last endpoint died", start) // far before the hold time of 60 s, which is all that would else end it
	s.established(0)
	start = time.Now()
	s.serve()
	s.there("the endpoint is back", start)
}

// nowhere requires that no router has had a route, or its client an answer.
func (s *site) nowhere() {
	s.t.Helper()
	for _, r := range s.routers {
		for _, q := range r.questions() {
			if p, err := r.routes.of(q.To.Addr()); p.there || p.lost > 0 || err != nil {
				s.t.Errorf("%s has a route to %s, which no endpoint serves: %+v, %v", r.name, q.To.Addr(), p, err)
			}
			if got := lab.Ask(q); got.Outcome == lab.Answered {
				s.t.Errorf("%s: %s, want no answer", q, got)
			}
		}
	}
}

// restart stops the daemon and starts it, as systemctl restart does: routes stay, connections go on, new ones are made.
func (s *site) restart() {
	s.t.Helper()
	before := s.lost()
	end := s.traffic()
	start := time.Now()
	s.must(s.d.Stop())
	s.must(s.d.Start())
	list := s.established(1)
	for i, x := range list {
		s.t.Logf("restart: session with %s again after %v", s.routers[i].name, x.Since.Sub(start).Round(time.Millisecond))
	}
	s.refreshed()
	end()
	if after := s.lost(); after != before {
		s.t.Errorf("routes were missing %d times over a restart", after-before)
	}
}

// leaveOut takes BIRD out of the settings and back in: its routes go at once, in spite of graceful restart, and the
// session with FRR goes on.
func (s *site) leaveOut() {
	s.t.Helper()
	frr, bird := s.routers[0], s.routers[1]
	before := s.established(1)[0]
	b := bgpSettings{hold: "60s", restart: "60s"}
	start := time.Now()
	s.settings(bgpSettings{hold: b.hold, restart: b.restart, without: bird.name})
	for _, a := range announced.Each() {
		at, err := bird.routes.await(a, false)
		s.must(err)
		s.t.Logf("left out: %s %s after %v", bird.name, a, at.Sub(start).Round(time.Millisecond))
	}
	start = time.Now()
	s.settings(b)
	s.there("BGP peer re-enabled", start)
	if after := s.established(1)[0]; !after.Since.Equal(before.Since) {
		s.t.Errorf("the session with %s began again at %v", frr.name, after.Since)
	}
	for _, a := range announced.Each() {
		if p, err := frr.routes.of(a); p.lost > 0 || err != nil {
			s.t.Errorf("%s was without a route to %s: %+v, %v", frr.name, a, p, err)
		}
	}
}

// refreshed waits until routers hold no route any more as one of a neighbour that restarts.
func (s *site) refreshed() {
	s.t.Helper()
	for _, r := range s.routers {
		for _, a := range announced.Each() {
			s.must(pace.Poll(patience, func() error {
				if text := r.Show(host(a)); text == "" || strings.Contains(text, `"stale"`) {
					return fmt.Errorf("%s still waits for %s:\n%s", r.name, a, text)
				}
				return nil
			}))
		}
	}
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// lost returns how often any route went.
func (s *site) lost() (n int) {
	s.t.Helper()
	for _, r := range s.routers {
		for _, a := range announced.Each() {
			p, err := r.routes.of(a)
			s.must(err)
			n += p.lost
		}
	}
	return n
}

// traffic holds a connection of each client and family, and makes new ones, until the function that it returns is called.
func (s *site) traffic() (end func()) {
	s.t.Helper()
	var wg sync.WaitGroup
	done := make(chan struct{})
	for _, r := range s.routers {
		for _, q := range r.questions() {
			held, got := lab.Connect(q)
			if held == nil {
				s.t.Fatalf("%s: %s", q, got)
			}
			wg.Go(func() { s.talk(q, held, done) })
		}
	}
	return func() { close(done); wg.Wait() }
}

func (s *site) talk(q lab.Question, held *lab.Conn, done <-chan struct{}) {
	defer held.Close()
	for n := 0; ; n++ {
		if err := held.Echo(lab.Patience); err != nil {
			s.t.Errorf("a connection that was there, %s: %v", q, err)
			return
		}
		if got := lab.Ask(q); got.By != "server" {
			s.t.Errorf("new connection %d: %s: %s", n, q, got)
			return
		}
		select {
		case <-done:
			s.t.Logf("%s: %d connections made meanwhile", q, n+1)
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// marks are how routers show GRACEFUL_SHUTDOWN, and that they prefer any other route.
var marks = map[string][]string{"frr": {`"gracefulShutdown"`, `"locPrf":0`}, "bird": {"BGP.community: (65535,0)", "BGP.local_pref: 0"}}

// drain drains the host, whose routes are marked before they go, while it serves; and undrains it.
func (s *site) drain() {
	s.t.Helper()
	var wg sync.WaitGroup
	start := time.Now()
	for _, r := range s.routers {
		for _, a := range announced.Each() {
			wg.Go(func() {
				if err := pace.Poll(patience, func() error { return r.marked(a) }); err != nil {
					s.t.Error(err)
				}
				s.t.Logf("drain: %s sees the mark of %s after %v at most", r.name, a, time.Since(start).Round(time.Millisecond))
			})
		}
	}
	_, err := s.d.Command("drain", "--node", "--reason", "disk")
	s.must(err)
	s.t.Logf("drain: the command took %v", time.Since(start).Round(time.Millisecond))
	wg.Wait()
	s.gone("drain", start)
	start = time.Now()
	_, err = s.d.Command("undrain", "--node")
	s.must(err)
	s.there("undrain", start)
}

// marked returns nil when a router has a route that is marked.
func (r *router) marked(a netip.Addr) error {
	text := r.Show(host(a))
	for _, m := range marks[r.name] {
		if !strings.Contains(text, m) {
			return fmt.Errorf("%s shows no %s with %s:\n%s", r.name, m, a, text)
		}
	}
	return nil
}

// remove removes the service, and brings it back.
func (s *site) remove() {
	s.t.Helper()
	start := time.Now()
	s.must(s.d.RemoveFile("web.toml"))
	s.gone("the service is removed", start)
	start = time.Now()
	s.service()
	s.there("the service is back", start)
}

// testLosses: a host that dies is noticed at once if its kernel closes the connections or a router's link goes down, and
// else within the hold time, which graceful restart does not lengthen. With it, routers keep the routes of
// a daemon that is killed for its time, and no longer.
func testLosses(s *site, restart time.Duration) {
	const longHold, hold = time.Minute, 3 * time.Second
	s.service()
	s.serve()
	s.settings(bgpSettings{hold: longHold.String(), restart: restart.String()})
	s.must(s.d.Start())
	s.there("start", time.Now())
	start := time.Now()
	s.must(s.d.Kill())
	if took := s.gone("kill -9", start); took < restart/2 {
		s.t.Errorf("routes went %v after kill -9; want them kept for %v", took, restart)
	}
	start = time.Now()
	s.must(s.d.Start())
	s.there("start after kill -9", start)
	s.established(1)

	start = time.Now()
	s.unplug()
	s.gone("links of routers down", start) // not by the hold time
	s.settings(bgpSettings{hold: hold.String(), restart: restart.String()})
	start = time.Now()
	s.replug()
	s.there("links of routers up", start)
	s.since(start)

	s.silent("cut off", hold, s.cut)
	if soaking {
		start = time.Now()
		s.rejoin()
		s.there("cut off, and back", start)
		s.silent("frozen", hold, func() { s.must(s.d.Freeze()) })
		start = time.Now()
		s.must(s.d.Signal(unix.SIGCONT))
		s.there("frozen, and back", start)
	}
}

// birdSleeps is how long BIRD 2.0, when nothing else wakes it, waits between the end of the hold time and
// what it does then: io_loop of sysdep/unix/io.c looks for such work before it looks at timers.
const birdSleeps = 3 * time.Second

// silent makes the host silent, which takes its routes away within the hold time.
func (s *site) silent(what string, hold time.Duration, begin func()) {
	s.t.Helper()
	start := time.Now()
	begin()
	if took := s.gone(what, start); took > pace.Scale(hold+birdSleeps+time.Second) {
		s.t.Errorf("%s: routes went after %v, want the hold time of %v", what, took, hold)
	}
}

// since waits until sessions are there that began after start.
func (s *site) since(start time.Time) {
	s.t.Helper()
	s.must(pace.Poll(patience, func() error {
		for _, x := range s.established(1) {
			if x.Since.Before(start) {
				return fmt.Errorf("the session with %v is one of before", x.Peer)
			}
		}
		return nil
	}))
}
