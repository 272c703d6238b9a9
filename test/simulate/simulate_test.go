package simulate

import (
	"flag"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/internal/shrink"
)

var (
	seed    = flag.Uint64("seed", 1, "the first run")
	hours   = flag.Float64("hours", 5, "how many hours are simulated at least")
	verbose = flag.Bool("log", false, "print the log of the program in the last, shrunk run that fails")
)

// stepsOfRun is how much happens in a run: enough to meet what happened before, and few enough to shrink.
const stepsOfRun = 60

// TestHours simulates runs until there are enough hours.
func TestHours(t *testing.T) {
	begin, simulated, n := time.Now(), time.Duration(0), *seed
	for ; simulated.Hours() < *hours; n++ {
		steps := drawSteps(n, stepsOfRun)
		took, _, err := simulate(t, n, steps, io.Discard)
		simulated += took
		if err == nil {
			continue
		}
		t.Logf("seed %d fails after %s in all, shrinking: %v", n, simulated, err)
		steps = shrink.Fewest(steps, func(some []step) bool {
			_, _, err := simulate(t, n, some, io.Discard)
			return err != nil
		})
		log := io.Writer(io.Discard)
		if *verbose {
			log = os.Stderr
		}
		_, did, again := simulate(t, n, steps, log)
		if again == nil {
			t.Log("what was shrunk does not always fail")
		}
		t.Fatalf("seed %d: %v, shrunk: %v\n%s", n, err, again, strings.Join(did, "\n"))
	}
	t.Logf("%.1f hours in %s, seeds %d to %d", simulated.Hours(), time.Since(begin).Round(time.Second), *seed, n-1)
}

// simulate does steps, and rests at the end. It returns how long that took there, and what happened.
func simulate(t *testing.T, seed uint64, steps []step, log io.Writer) (took time.Duration, did []string, err error) {
	dir, clean := stateDir(t)
	defer clean()
	synctest.Test(t, func(*testing.T) {
		begin := time.Now()
		s := newSite(seed, dir, log)
		s.start(0)
		for _, st := range append(steps[:len(steps):len(steps)], step{kind: "rest"}) {
			at := time.Now().Format(stamp)
			var what string
			what, err = s.do(st)
			if did = append(did, at+" "+what); err != nil {
				did = append(did, time.Now().Format(stamp)+" "+err.Error())
				break
			}
		}
		if end := s.run.stop(); err == nil {
			err = end
		}
		took = time.Since(begin)
	})
	return took, did, err
}

// stateDir returns a directory in memory, where there is one: a drain is written to the disk before it counts.
func stateDir(t *testing.T) (dir string, clean func()) {
	for _, parent := range []string{"/dev/shm", ""} {
		if dir, err := os.MkdirTemp(parent, "simulate"); err == nil {
			return dir, func() { os.RemoveAll(dir) }
		}
	}
	t.Fatal("no directory for the state of endpoints")
	return "", nil
}
