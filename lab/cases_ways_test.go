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

	"svcproxy/source"
)

var wayGroups = []group{{name: "ways of writing", once: true, cases: wayCases()}}

func wayCases() (cases []testCase) {
	for _, w := range ways {
		cases = append(cases, testCase{name: w.name, run: w.run})
	}
	return cases
}

// Times of a change.
const (
	followTime = time.Second            // from a change to the kernel, at most, on an idle host
	quietTime  = 200 * time.Millisecond // for which a file must be quiet that takes something away
)

// followPatience is how long a change may take here: what is promised in a soak,
// and five times that on a busy machine. It is less than the 30 s after which all
// files are read again anyway.
var followPatience = slow(soak(5*followTime, followTime))

// wayRuns is how often each way is gone.
var wayRuns = soak(4, 100)

// run writes the file again and again in one way. Each version moves a service to
// another endpoint; every other one has a second service. The first service is
// never absent.
func (w way) run(t *testing.T, e *env) {
	s := &site{daemon: e.daemon, dir: e.daemon.ConfigDir(), aside: filepath.Join(e.daemon.Dir, "aside"), settings: e.settings}
	e.restartIn(t, func() error { return w.prepare(s, e.wayText(t, 0)) })
	e.follow(t, 0)
	stop := e.streamTo(t, check{from: e.Client, to: e.vip(1)})
	var took []time.Duration
	for s.run = 1; s.run <= wayRuns && !t.Failed(); s.run++ {
		if err := w.write(s, e.wayText(t, s.run)); err != nil {
			t.Fatal(err)
		}
		took = append(took, e.follow(t, s.run))
	}
	stop()
	slices.Sort(took)
	t.Logf("%d runs: followed after %v, at most %v, beside the waits", len(took), took[len(took)/2], took[len(took)-1])
}

// wayText returns a version of the file. All have the same size, but for the second service.
func (e *env) wayText(t *testing.T, version int) string {
	t.Helper()
	services := []Service{e.named("web", 1, at(e.Local[version%EndpointHosts])...)}
	if version%2 == 0 {
		services = append(services, e.named("more", 2, at(e.Local[0])...))
	}
	text, err := File(services...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// follow waits until the kernel has a version, and returns how long that took beside the waits.
func (e *env) follow(t *testing.T, version int) time.Duration {
	t.Helper()
	start, more := time.Now(), by(e.Local[0])
	if version%2 == 1 {
		start, more = start.Add(quietTime), untouched
	}
	tcp := []source.Protocol{source.TCP}
	checks := []check{
		{from: e.Client, to: e.vip(1), protocols: tcp, want: by(e.Local[version%EndpointHosts])},
		{from: e.Client, to: e.vip(2), protocols: tcp, want: more},
	}
	if err := Poll(time.Until(start.Add(followPatience)), func() error { return e.meet(checks) }); err != nil {
		t.Fatalf("version %d is not in the kernel %v after it was due: %v", version, time.Since(start), err)
	}
	return time.Since(start)
}

// meet tells whether one answer to each question is what is wanted.
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

// restartIn starts the daemon anew, with no files remembered and with nothing in its
// configuration directory but settings and what prepare puts there.
func (e *env) restartIn(t *testing.T, prepare func() error) {
	t.Helper()
	d := e.daemon
	err := errors.Join(
		d.Stop(),
		os.RemoveAll(d.ConfigDir()), d.Forget(), os.RemoveAll(filepath.Join(d.Dir, "aside")),
		os.Mkdir(d.ConfigDir(), 0o755), os.Mkdir(filepath.Join(d.Dir, "aside"), 0o755),
		d.Settings(e.settings))
	if err == nil {
		err = prepare()
	}
	if err = errors.Join(err, d.Start()); err != nil {
		t.Fatalf("%v\n%s", err, d.LogTail(logLines))
	}
}
