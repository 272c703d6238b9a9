//go:build netns

package lab

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// stops is how often a daemon is stopped in each mode.
var stops = func() int {
	if n, err := strconv.Atoi(os.Getenv(EnvStops)); err == nil {
		return n
	}
	return soak(max(5, Fewer(20)), 500)
}()

// TestStops stops svcproxy at random moments of first syncs, of removals and of
// changes of the mode. After that cleanup leaves the kernel as it was before the
// first start, line for line, also what others have in it.
func TestStops(t *testing.T) {
	for _, m := range modes {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			newStopper(t, m).run(t)
		})
	}
}

// A stopper stops the daemon of an env again and again.
type stopper struct {
	*env
	random *rand.Rand
	before string        // the kernel, before the first start
	start  time.Duration // from start to ready, the last time
	done   []string      // since the kernel was last clean

	spent map[string]time.Duration // by what
}

// timed notes how long something takes.
func (s *stopper) timed(what string, do func() error) error {
	began := time.Now()
	err := do()
	s.spent[what] += time.Since(began)
	return err
}

func newStopper(t *testing.T, m mode) *stopper {
	t.Helper()
	s := &stopper{env: &env{Lab: newLab(t), mode: m, number: 1}, random: newRandom(t), spent: map[string]time.Duration{}}
	err := m.prepare(s.Node)
	if err == nil {
		err = makeBuiltins(s.Node, cmp.Or(m.variant, "nft"))
	}
	if err == nil {
		s.before, err = Listing(s.Node)
	}
	s.daemon = newDaemon(t, s.Lab, m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// builtins are the built-in chains that svcproxy has jumps in.
var builtins = map[string][]string{
	"filter": {"INPUT", "FORWARD", "OUTPUT"},
	"nat":    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	"mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
}

// makeBuiltins makes iptables-nft make its built-in chains. It does so for the process that
// first uses one, and leaves them, empty, when their last rule goes: nobody could
// tell afterwards whose they are.
func makeBuiltins(h *Host, variant string) error {
	var lines []string
	for _, table := range slices.Sorted(maps.Keys(builtins)) {
		lines = append(lines, "*"+table)
		for _, chain := range builtins[table] {
			lines = append(lines, "-A_"+chain+"_-j_RETURN", "-D_"+chain+"_-j_RETURN")
		}
		lines = append(lines, "COMMIT")
	}
	return restore(h, variant, strings.Join(lines[:len(lines)-1], " "))
}

func (s *stopper) run(t *testing.T) {
	began := time.Now()
	for range 2 { // the first time modules are loaded
		if err := errors.Join(s.use(s.mode.name), s.write(), s.begin()); err != nil {
			t.Fatalf("%v\n%s", err, s.daemon.LogTail(logLines))
		}
		if err := errors.Join(s.end(unix.SIGTERM), s.clean()); err != nil {
			t.Fatal(err)
		}
	}
	for n := 1; n <= stops; n++ {
		if err := s.once(); err != nil {
			t.Fatalf("stop %d, after %q: %v\n%s", n, s.done, err, s.daemon.LogTail(logLines))
		}
		t.Logf("stop %d, %v since the start: %s", n, time.Since(began).Round(time.Second), s.done[len(s.done)-1])
		if n < stops && oneIn(s.random, 3) {
			continue // there is more for the next cleanup
		}
		if err := s.clean(); err != nil {
			t.Fatalf("stop %d: cleanup after %q: %v", n, s.done, err)
		}
		s.done = nil
	}
	t.Logf("%d stops; from start to ready %v; all of them took %v", stops, s.start, s.spent)
}

// begin starts the daemon, and notes how long that takes now.
func (s *stopper) begin() error {
	began := time.Now()
	err := s.daemon.Start()
	s.start = time.Since(began)
	return err
}

// once starts the daemon and stops it at a random moment of something.
func (s *stopper) once() error {
	moments := []struct {
		name    string
		prepare func() error
		within  func() time.Duration // the stop comes, from the end of prepare
	}{
		{"first sync", s.daemon.Launch, func() time.Duration { return s.start * 3 / 2 }},
		{"removal", func() error { return errors.Join(s.begin(), s.remove()) }, func() time.Duration { return settleTime + s.start }},
		{"mode change", func() error { return errors.Join(s.begin(), s.changeMode()) }, func() time.Duration { return s.start * 2 }},
	}
	m := pick(s.random, moments...)
	err := s.timed("files", func() error { return errors.Join(s.use(s.mode.name), s.write()) })
	if err == nil {
		err = s.timed(m.name, m.prepare)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	after, sig := time.Duration(s.random.Int64N(int64(m.within()))), pick(s.random, unix.SIGTERM, unix.SIGKILL)
	time.Sleep(after)
	s.spent["waiting"] += after
	s.done = append(s.done, fmt.Sprintf("%s, %v after %v", m.name, sig, after.Round(time.Millisecond)))
	return s.timed("stopping", func() error { return s.end(sig) })
}

// settleTime is until a file that is gone counts as gone.
const settleTime = 300 * time.Millisecond

// changeMode changes to another mode, and waits until the daemon has begun to.
func (s *stopper) changeMode() error {
	noticed := func() int { return strings.Count(s.daemon.LogTail(math.MaxInt), "settings changed") }
	before := noticed()
	if err := s.use(s.other()); err != nil {
		return err
	}
	return pace.Poll(applyPatience, func() error {
		if noticed() == before {
			return errors.New("the daemon does not notice that its settings have changed")
		}
		return nil
	})
}

// use sets the mode.
func (s *stopper) use(mode string) error {
	return s.daemon.Settings("mode = \"" + mode + "\"\nnode_name = \"node\"\nzone = \"here\"\n")
}

// other returns one of the other modes.
func (s *stopper) other() string {
	var names []string
	for _, m := range modes {
		if m.name != s.mode.name {
			names = append(names, m.name)
		}
	}
	return pick(s.random, names...)
}

// Random services, and the files that have them. What a stop takes goes with how
// long a first sync does, in which there are as many moments where all is slower:
// a guest takes 2 s and more for a few services.
var stopServices = func() int {
	if slowness > 1 {
		return 16
	}
	return 240
}()

const stopFiles = 3

func stopFile(i int) string { return fmt.Sprintf("stop-%d.json", i) }

// write writes all files again.
func (s *stopper) write() error {
	files := make([][]Service, stopFiles)
	for i := range stopServices {
		files[i%stopFiles] = append(files[i%stopFiles], s.env.random(s.random, byte(i)))
	}
	for i, services := range files {
		text, err := File(services...)
		if err := errors.Join(err, s.daemon.WriteFile(stopFile(i), text)); err != nil {
			return err
		}
	}
	return nil
}

// remove removes some of the services.
func (s *stopper) remove() error {
	var errs []error
	for i := range 1 + s.random.IntN(stopFiles) {
		if oneIn(s.random, 2) {
			errs = append(errs, s.daemon.WriteFile(stopFile(i), `{"services": []}`))
		} else {
			errs = append(errs, s.daemon.RemoveFile(stopFile(i)))
		}
	}
	return errors.Join(errs...)
}

// end stops the daemon, which may not even have begun to listen to signals.
func (s *stopper) end(sig unix.Signal) error {
	if err := s.daemon.End(sig); err != nil && !errors.As(err, new(*exec.ExitError)) {
		return err
	}
	return nil
}

// clean removes all of ours and compares the kernel with what it was before. A
// child of a daemon that was killed may write a little longer, and is waited for.
func (s *stopper) clean() error {
	if err := s.timed("children", s.childrenEnd); err != nil {
		return err
	}
	err := s.timed("cleanup", func() error { _, err := s.daemon.Command("cleanup"); return err })
	if err != nil {
		return err
	}
	return s.timed("listing", func() error {
		now, err := Listing(s.Node)
		if err == nil && now != s.before {
			err = Difference(strings.Split(s.before, "\n"), strings.Split(now, "\n"))
		}
		return err
	})
}

// childrenEnd waits until no program of iptables runs on node, which the daemon may have started.
func (s *stopper) childrenEnd() error {
	node, err := os.Stat(filepath.Join(netnstest.Dir, s.Node.Name))
	if err != nil {
		return err
	}
	return pace.Poll(stopPatience, func() error {
		names, err := filepath.Glob("/proc/[0-9]*/comm")
		if err != nil {
			return err
		}
		for _, name := range names {
			comm, err := os.ReadFile(name) // it may have ended
			if err != nil || !strings.Contains(string(comm), "tables") {
				continue
			}
			if ns, err := os.Stat(filepath.Join(filepath.Dir(name), "ns/net")); err == nil && os.SameFile(node, ns) {
				return fmt.Errorf("process %s still runs: %s", filepath.Dir(name), comm)
			}
		}
		return nil
	})
}
