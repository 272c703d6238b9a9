//go:build netns

package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

var rewriteGroups = []group{
	{name: "rewriting", except: inSoakOnly, cases: []testCase{{name: "nothing is absent", run: testRewriting}}},
	{name: "moving", cases: []testCase{
		{name: "new file first", run: testMovesNewFirst},
		{name: "old file first", run: testMovesOldFirst},
	}},
}

// rewritingTime is how long files are rewritten.
var rewritingTime = soak(5*time.Second, time.Minute)

// rewritten are the files that are: two of each format.
var rewritten = []string{"one.json", "two.toml", "three.json", "four.toml"}

// testRewriting: while files are written in all ways at once, none of the services that each version has is ever absent.
func testRewriting(t *testing.T, e *env) {
	var checks []check
	for i, name := range rewritten {
		if err := write(e.daemon.path(name), e.rewrittenText(t, i)); err != nil {
			t.Fatal(err)
		}
		checks = append(checks, check{from: e.Client, to: e.steady(i)})
	}
	e.remove(t, rewritten...)
	e.expectSome(t, checks...)
	stop := e.streamTo(t, checks...)
	var wg sync.WaitGroup
	end := time.Now().Add(rewritingTime)
	for i, name := range rewritten {
		wg.Go(func() { e.rewrite(t, i, name, end) })
	}
	wg.Wait()
	time.Sleep(2 * quietTime) // the last version
	stop()
}

// steady is the address of the service that is in all versions of a file.
func (e *env) steady(i int) Dual { return e.vip(byte(100 + i)) }

// rewrite rewrites one file until end.
func (e *env) rewrite(t *testing.T, i int, name string, end time.Time) {
	path := e.daemon.path(name)
	versions := 0
	for ; time.Now().Before(end); versions++ {
		write := rewrites[rand.IntN(len(rewrites))]
		if err := write(path, e.rewrittenText(t, i)); err != nil {
			t.Error(err)
			return
		}
		time.Sleep(rand.N(longestPause))
	}
	t.Logf("%s: %d versions", name, versions)
}

var rewrites = []func(path, text string) error{write, writePieces, writePieces, renameOver, backupDance, removeAndWrite}

// rewrittenText returns some version of the i-th file: its steady service with a
// number of endpoints, and a number of others, before it and behind it.
func (e *env) rewrittenText(t *testing.T, i int) string {
	t.Helper()
	var services []Service
	for k := range rand.IntN(3) {
		services = append(services, e.named(fmt.Sprintf("extra-%d-%d", i, k), byte(110+10*i+k), at(e.Local[1])...))
	}
	steady := e.named(fmt.Sprint("steady-", i), 0, at(e.Local[:1+rand.IntN(EndpointHosts)]...)...)
	steady.VIPs = e.steady(i).Each()
	services = slices.Insert(services, rand.IntN(len(services)+1), steady)
	if strings.HasSuffix(rewritten[i], ".toml") {
		return tomlFile(services)
	}
	text, err := File(services...)
	if err != nil {
		t.Error(err)
	}
	return text
}

// tomlFile returns a service file in TOML. Cut off between two keys it is valid.
func tomlFile(services []Service) string {
	var b strings.Builder
	for _, s := range services {
		fmt.Fprintf(&b, "[[services]]\nname = %q\nvips = [\"%s\", \"%s\"]\nports = [\n", s.Name, s.VIPs[0], s.VIPs[1])
		for _, p := range s.Ports {
			fmt.Fprintf(&b, "  { name = %q, protocol = %q, port = %d, target_port = %d },\n", p.Name, p.Protocol, p.Port, p.TargetPort)
		}
		b.WriteString("]\nendpoints = [\n")
		for _, ep := range s.Endpoints {
			fmt.Fprintf(&b, "  \"%s\",\n", ep.Address)
		}
		b.WriteString("]\n\n")
	}
	return b.String()
}

// expectSome waits until an endpoint answers each.
func (e *env) expectSome(t *testing.T, checks ...check) {
	t.Helper()
	for i := range checks {
		checks[i].want = by(e.Local...)
	}
	if err := pace.Poll(expectPatience, func() error { return e.meet(checks) }); err != nil {
		t.Fatal(err)
	}
}

// move has a service in one file, together with others, and calls do to write
// another file with it, and the first without it. Nobody touches a file again.
func (e *env) move(t *testing.T, do func(from, to func() error) error) {
	moving, staying, there := e.named("moving", 1, at(e.Local[0])...), e.named("staying", 2, at(e.Local[0])...), e.named("there", 3, at(e.Local[0])...)
	e.file(t, "from", staying, moving)
	e.file(t, "to", there)
	e.remove(t, "from.json", "to.json")
	stop := e.streamTo(t,
		check{from: e.Client, to: e.vip(1)}, check{from: e.Client, to: e.vip(2)}, check{from: e.Client, to: e.vip(3)})
	moving.Endpoints = at(e.Local[0], e.Local[1])
	from := func() error { // in place: renamed, it would count at once
		text, err := File(staying)
		return errors.Join(err, write(e.daemon.path("from.json"), text))
	}
	to := func() error {
		_, err := e.daemon.Write("to", there, moving)
		return err
	}
	if err := do(from, to); err != nil {
		t.Fatal(err)
	}
	e.expect(t,
		check{from: e.Client, to: e.vip(1), want: by(e.Local[0], e.Local[1])},
		check{from: e.Client, to: e.vip(2), want: by(e.Local[0])},
		check{from: e.Client, to: e.vip(3), want: by(e.Local[0])},
	)
	stop()
	e.faultless(t, "from.json", "to.json")
}

// faultless waits until what files say is used, without a fault.
func (e *env) faultless(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		e.expectState(t, name, source.Accepted, "[]")
	}
}

// testMovesNewFirst: until the old file is saved, however late, the new one is refused and its services stay.
func testMovesNewFirst(t *testing.T, e *env) {
	e.move(t, func(from, to func() error) error {
		if err := to(); err != nil {
			return err
		}
		e.expectState(t, "to.json", source.Stale, "is already defined")
		time.Sleep(2 * quietTime)
		return from()
	})
}

// testMovesOldFirst: a file is quiet for a moment before a service of it goes, which is time to save the other.
func testMovesOldFirst(t *testing.T, e *env) {
	e.move(t, func(from, to func() error) error {
		return inTheMiddle(e.daemon.ConfigDir(), func() error { // also while the other is written: a busy machine takes its time
			if err := from(); err != nil {
				return err
			}
			time.Sleep(rand.N(longestPause))
			return to()
		})
	})
}
