//go:build netns

package hosts

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/test/lab"
)

// A fault is something that happens to the site, and ends.
type fault struct {
	name       string
	harms      string // whose clients may go unanswered: the name of a router, everybody or nobody
	begin, end func()
}

const (
	nobody    = ""
	everybody = "everybody"
)

// aroundFaults are what happens around svcproxy.
func (s *site) aroundFaults() []fault {
	list := []fault{
		{"nothing", nobody, func() {}, func() {}},
		{"the endpoint dies", everybody, s.unserve, s.serve},
		{"the host is cut off", everybody, s.cut, s.rejoin},
		{"the links of routers go down", everybody, s.unplug, s.replug},
		{"the service is removed", everybody, func() { s.must(s.d.RemoveFile("web.toml")) }, s.service},
		{"the host is drained", everybody, func() { s.tell("drain") }, func() { s.tell("undrain") }},
	}
	for _, r := range s.routers {
		list = append(list, fault{r.name + " restarts", r.name, func() { s.must(r.Close()) }, func() { s.start(r) }})
	}
	return list
}

// ownFaults are what happens to svcproxy, and harms nobody: routers keep its routes while it starts again.
func (s *site) ownFaults() []fault {
	return []fault{
		{"nothing", nobody, func() {}, func() {}},
		{"svcproxy is killed", nobody, func() { s.must(s.d.Kill()) }, func() { s.must(s.d.Start()) }},
		{"svcproxy is ended", nobody, func() { s.must(s.d.Stop()) }, func() { s.must(s.d.Start()) }},
		{"svcproxy is frozen", nobody, func() { s.must(s.d.Freeze()) }, func() { s.must(s.d.Signal(unix.SIGCONT)) }},
		{"svcproxy is told to reload", nobody, func() { s.must(s.d.Signal(unix.SIGHUP)) }, func() {}},
	}
}

// tell drains this host or ends that, as soon as svcproxy answers.
func (s *site) tell(word string) {
	s.t.Helper()
	s.must(pace.Poll(patience, func() error {
		_, err := s.d.Command(word, "--node")
		if err != nil && strings.Contains(err.Error(), "is not drained") { // it was told, and ended before it had answered
			return nil
		}
		return err
	}))
}

// An asking is clients that ask behind each router all the time.
type asking struct {
	mu     sync.Mutex
	asked  int
	failed []failure
}

// A failure is a question without an answer.
type failure struct {
	router   string
	from, to time.Time
	text     string
}

// ask asks until done is closed.
func (a *asking) ask(r *router, q lab.Question, done <-chan struct{}) {
	q.Patience = 1500 * time.Millisecond // a SYN is sent again after a second
	for {
		start := time.Now()
		got := lab.Ask(q)
		a.mu.Lock()
		a.asked++
		if got.By != "server" {
			a.failed = append(a.failed, failure{r.name, start, time.Now(), fmt.Sprintf("%s behind %s: %s", q, r.name, got)})
		}
		a.mu.Unlock()
		select {
		case <-done:
			return
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// illegal returns the failures of clients that a fault does not harm, or after it.
func (a *asking) illegal(harms string, over time.Time) (list []failure) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.failed {
		if harmed := harms == everybody || harms == f.router; !harmed || f.from.After(over) {
			list = append(list, f)
		}
	}
	a.failed = nil
	return list
}

// randomSteps is how many random steps a test does.
func randomSteps() int {
	if soaking {
		return 100
	}
	return 6
}

// newRandom returns a source of random numbers, and tells the test's log how to have the same again.
func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(lab.EnvSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("random numbers of %s=%d", lab.EnvSeed, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// testRandom has two random faults at a time, one around svcproxy and one of its own. Only clients of whom one takes the
// endpoint or the router may go unanswered, and only until it is over.
func testRandom(s *site) {
	r := newRandom(s.t)
	s.service()
	s.serve()
	s.settings(bgpSettings{hold: "60s", restart: "60s"})
	s.must(s.d.Start())
	s.back()
	var a asking
	var wg sync.WaitGroup
	defer wg.Wait()
	done := make(chan struct{})
	defer close(done)
	for _, r := range s.routers {
		for _, q := range r.questions() {
			wg.Go(func() { a.ask(r, q, done) })
		}
	}
	pause := func() { time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond) }
	around, own := s.aroundFaults(), s.ownFaults()
	for range randomSteps() {
		f, g := around[r.IntN(len(around))], own[r.IntN(len(own))]
		s.t.Logf("%s: %s, %s", time.Now().UTC().Format("15:04:05.000"), f.name, g.name)
		f.begin()
		pause()
		g.begin()
		pause()
		g.end()
		pause()
		f.end()
		s.back()
		over := time.Now()
		pause()
		time.Sleep(time.Second) // for what was asked meanwhile
		for _, x := range a.illegal(f.harms, over) {
			s.t.Errorf("%s, %s: %s to %s: %s", f.name, g.name, x.from.UTC().Format("15:04:05.000"), x.to.UTC().Format("15:04:05.000"), x.text)
		}
		if s.t.Failed() {
			break
		}
	}
	s.t.Logf("%d questions", a.asked)
}

// back waits until everything is as it was: sessions with all routers, routes that none of them holds as stale, and answers.
func (s *site) back() {
	s.t.Helper()
	s.established(1)
	s.refreshed()
	s.awaitRoutes("back", time.Now(), true)
	for _, r := range s.routers {
		for _, q := range r.questions() {
			s.must(pace.Poll(patience, func() error {
				if got := lab.Ask(q); got.By != "server" {
					return fmt.Errorf("%s: %s", q, got)
				}
				return nil
			}))
		}
	}
}
