//go:build netns

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// TestWays writes files in every way there is. One mode is enough, for it is about
// files, and nothing else runs meanwhile, for it has thousands of connections made.
func TestWays(t *testing.T) {
	group{name: "ways of writing", cases: wayCases()}.run(t, nftablesMode())
}

func wayCases() []testCase {
	cases := []testCase{
		{name: "file", run: runAll(fileWays)},
		{name: "mount", run: runAll(mountWays)}, // apart: after a mount everything is looked at
	}
	for _, w := range directoryWays {
		cases = append(cases, testCase{name: w.name, run: w.run})
	}
	return cases
}

// Times of a change.
const (
	followTime = time.Second            // from a change to the kernel, at most, on an idle host
	quietTime  = 200 * time.Millisecond // for which a file must be quiet that takes something away
)

// followPatience is how long a change may take here: five times what is promised of
// an idle host. It is less than the 30 s after which all files are read again anyway.
var followPatience = Slow(5 * followTime)

// How often each way is gone, and one that takes a second.
var (
	wayRuns     = soak(4, 100)
	slowWayRuns = soak(2, 100)
)

const (
	waysAtOnce = 8
	steadyName = "steady.json" // the file that no way writes
	steadyVIP  = 255           // of its service
)

// site returns a site for the i-th of several ways, as it is before anything is written.
func (e *env) site(i int) *site {
	title := fmt.Sprint("way-", i)
	aside := filepath.Join(e.daemon.Dir, "aside", title)
	return &site{env: e, title: title, name: title + ".json", dir: e.daemon.ConfigDir(), aside: aside, runs: wayRuns, web: e.vip(byte(i)), more: e.external(byte(i))}
}

// runAll has each way write a file of its own, several at a time.
func runAll(ways []way) func(*testing.T, *env) {
	return func(t *testing.T, e *env) {
		sites := make([]*site, len(ways))
		e.restartIn(t, func() (err error) {
			for i, w := range ways {
				sites[i] = e.site(i)
				err = errors.Join(err, sites[i].begin(t, w))
			}
			return err
		})
		c := e.crowd(t)
		defer c.stop()
		var g errgroup.Group
		g.SetLimit(waysAtOnce)
		for i, w := range ways {
			g.Go(func() error {
				t.Run(w.name, func(t *testing.T) { sites[i].repeat(t, w, c) })
				return nil
			})
		}
		_ = g.Wait()
	}
}

// run has a way write the directory, which is there for it alone.
func (w way) run(t *testing.T, e *env) {
	s := e.site(0)
	e.restartIn(t, func() error { return s.begin(t, w) })
	c := e.crowd(t)
	defer c.stop()
	s.repeat(t, w, c)
}

// begin has a way write the first version.
func (s *site) begin(t *testing.T, w way) error {
	err := os.Mkdir(s.aside, 0o755)
	if w.prepare == nil {
		return errors.Join(err, s.plain(s.text(t)))
	}
	return errors.Join(err, w.prepare(s, s.text(t)))
}

// repeat has a way write the file again and again. Each version moves a service to
// another endpoint; every other one has a second service. The first is never absent.
func (s *site) repeat(t *testing.T, w way, c *crowd) {
	s.follow(t)
	defer c.visit(append(s.others, check{to: s.web})...)()
	var took []time.Duration
	for s.run = 1; s.run <= s.runs && !t.Failed(); s.run++ {
		if err := w.write(s, s.text(t)); err != nil {
			t.Fatal(err)
		}
		took = append(took, s.follow(t))
	}
	slices.Sort(took)
	t.Logf("%d runs: followed after %v, at most %v, beside the waits", len(took), took[len(took)/2], took[len(took)-1])
}

// text returns a version of the file. All have the same size, except for the second service.
func (s *site) text(t *testing.T) string {
	t.Helper()
	e := s.env
	s.services = []Service{s.service("", s.web, e.Local[s.run%EndpointHosts])}
	if s.run%2 == 0 {
		s.services = append(s.services, s.service("-more", s.more, e.Local[0]))
	}
	text, err := File(s.services...)
	if err != nil {
		t.Fatal(err)
	}
	return text + "\n"
}

// service returns a service of the file.
func (s *site) service(suffix string, vips Dual, to *Host) Service {
	service := s.env.service(at(to)...)
	service.Name, service.VIPs = s.title+suffix, vips.Each()
	return service
}

// follow waits until the kernel has the version, and returns how long that took beside the waits.
func (s *site) follow(t *testing.T) time.Duration {
	t.Helper()
	e := s.env
	start, more := time.Now(), by(e.Local[0])
	if s.run%2 == 1 {
		start, more = start.Add(quietTime), untouched
	}
	tcp := []source.Protocol{source.TCP}
	checks := []check{
		{from: e.Client, to: s.web, protocols: tcp, want: by(e.Local[s.run%EndpointHosts])},
		{from: e.Client, to: s.more, protocols: tcp, want: more},
	}
	if err := pace.Poll(time.Until(start.Add(followPatience)), func() error { return e.meet(checks) }); err != nil {
		t.Fatalf("version %d is not in the kernel %v after it was due: %v", s.run, time.Since(start), err)
	}
	return time.Since(start)
}

// meet reports whether one answer to each question is what is wanted.
func (e *env) meet(checks []check) error {
	for _, c := range checks {
		for _, q := range c.questions() {
			if err := e.match(q, Ask(q), c.want); err != nil {
				return fmt.Errorf("%s: %w", q, err)
			}
		}
	}
	return nil
}

// steadyText returns the file that no way writes.
func (e *env) steadyText() (string, error) {
	return File(e.named("steady", steadyVIP, at(e.Local[0])...))
}

// restartIn starts the daemon again, with no files remembered and with nothing in its
// configuration directory but settings, a file that nobody writes, and what prepare
// puts there.
func (e *env) restartIn(t *testing.T, prepare func() error) {
	t.Helper()
	d := e.daemon
	d.Mounts = true
	text, err := e.steadyText()
	err = errors.Join(err,
		d.Stop(),
		os.RemoveAll(d.ConfigDir()), d.Forget(), os.RemoveAll(filepath.Join(d.Dir, "aside")),
		os.Mkdir(d.ConfigDir(), 0o755), os.Mkdir(filepath.Join(d.Dir, "aside"), 0o755),
		d.Settings(e.settings), d.WriteFile(steadyName, text))
	if err == nil {
		err = prepare()
	}
	if err = errors.Join(err, d.Start()); err != nil {
		t.Fatalf("%v\n%s", err, d.LogTail(logLines))
	}
}
