//go:build netns

package history

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/test/lab"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "the seed of the first episode; 0: any")
	timeFlag   = flag.Duration("for", 40*time.Second, "how long each mode is tried")
	modeFlag   = flag.String("mode", "", "the one mode that is tried")
	shrinkFlag = flag.Duration("shrink", 5*time.Minute, "how long it is tried to find fewer steps that fail")
	stepFlag   = flag.String("steps", "", "numbers of the steps of the episode that are done: \"3,7\"; empty: all")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := lab.Sweep(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// modes are those that this kernel can be tried in.
var modes = []string{nftables, "iptables-nft", "iptables-legacy"}

// builds are two programs of the same sources.
var builds = sync.OnceValues(func() ([]string, error) {
	dir, err := lab.TempDir()
	if err != nil {
		return nil, err
	}
	one, err := lab.Build(dir)
	if other := os.Getenv("SVCPROXY_JUDGE_OTHER"); err == nil && other != "" {
		return []string{one, other}, nil
	}
	if err != nil {
		return nil, err
	}
	other, err := lab.Build(dir, "-tags=nokubernetes")
	return []string{one, other}, err
})

// stepsEach is how many steps an episode has in each lane.
const stepsEach = 12

// TestHistory: under random faults every client meets what is allowed.
func TestHistory(t *testing.T) {
	binaries, err := builds()
	must(t, err)
	for _, mode := range modes {
		if *modeFlag != "" && *modeFlag != mode {
			continue
		}
		t.Run(mode, func(t *testing.T) {
			s := newSite(t, mode, binaries)
			seed := *seedFlag
			if seed == 0 {
				seed = uint64(time.Now().UnixNano()) % 1e9
			}
			sum := &totals{faults: map[string]int{}}
			for end := time.Now().Add(*timeFlag); time.Now().Before(end) && !t.Failed(); seed++ {
				steps := chosen(draw(seed, mode, stepsEach))
				errs, err := s.episode(t.Context(), steps, sum)
				if err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, s.daemon.LogTail(40))
				}
				if len(errs) > 0 {
					report(t, s, seed, steps, errs)
					shrink(t, mode, binaries, steps)
				}
			}
			t.Log(sum)
			if !t.Failed() {
				check(t, s.asFresh(t.Context()))
			}
			if sum.attempts == 0 {
				t.Error("nothing was attempted")
			}
		})
	}
}

// asFresh ends svcproxy and starts it from nothing: the kernel has the same then, and no object of svcproxy in between.
func (s *site) asFresh(ctx context.Context) error {
	quiet(ctx)
	foreign, own, err := lab.Snapshot(s.Node)
	if err := errors.Join(err, s.daemon.Stop()); err != nil {
		return err
	}
	if out, err := s.daemon.Command("cleanup"); err != nil {
		return fmt.Errorf("cleanup: %w: %s", err, out)
	}
	others, left, err := lab.Snapshot(s.Node)
	if err = errors.Join(err, lab.Difference(foreign, others)); err != nil {
		return fmt.Errorf("what others have, after cleanup: %w", err)
	}
	if len(left) > 0 {
		return fmt.Errorf("left after cleanup: %q", left)
	}
	if err := errors.Join(s.daemon.Forget(), s.daemon.Start()); err != nil {
		return err
	}
	quiet(ctx)
	_, fresh, err := lab.Snapshot(s.Node)
	if err = errors.Join(err, lab.Difference(own, fresh)); err != nil {
		return fmt.Errorf("what svcproxy had in the kernel, and what it makes there from nothing: %w", err)
	}
	return nil
}

// chosen returns the steps that the flag chooses.
func chosen(steps []step) (list []step) {
	if *stepFlag == "" {
		return steps
	}
	for text := range strings.SplitSeq(*stepFlag, ",") {
		if i, err := strconv.Atoi(text); err == nil && i < len(steps) {
			list = append(list, steps[i])
		}
	}
	return list
}

// report tells of what was illegal, and how to have it again.
func report(t *testing.T, s *site, seed uint64, steps []step, errs []error) {
	const most = 12
	var names []string
	for i, st := range steps {
		names = append(names, fmt.Sprintf("%d %s", i, st))
	}
	path, err := s.write(fmt.Sprintf("svcproxy-history-%s-%d.txt", s.mode, seed))
	check(t, err)
	t.Errorf("%d illegal attempts; -mode %s -seed %d\nsteps:\n%s\n%v\nall attempts: %s\n%s", len(errs), s.mode, seed, strings.Join(names, "\n"),
		errors.Join(errs[:min(most, len(errs))]...), path, s.Story())
	if os.Getenv("SVCPROXY_JUDGE_LOG") != "" {
		t.Log(s.daemon.LogTail(400))
	}
}

// shrink looks for fewer steps that fail, each time in a lab of its own. What depends on a moment may not fail again: then
// all steps are left.
func shrink(t *testing.T, mode string, binaries []string, steps []step) {
	end := time.Now().Add(*shrinkFlag)
	var last []error
	fewer := Shrink(steps, func(some []step) (fails bool) {
		for range 2 {
			if time.Now().After(end) {
				return false
			}
			t.Run("fewer", func(t *testing.T) {
				s := newSite(t, mode, binaries)
				errs, err := s.episode(t.Context(), some, &totals{faults: map[string]int{}})
				check(t, err)
				if fails = len(errs) > 0; fails {
					last = errs
				}
			})
			if fails {
				return true
			}
		}
		return false
	})
	if last == nil {
		t.Logf("no fewer steps failed within %v", *shrinkFlag)
		return
	}
	var numbers []string
	for _, st := range fewer {
		numbers = append(numbers, strconv.Itoa(slices.Index(steps, st)))
	}
	t.Logf("%d steps fail: -steps %s: %v\nof which: %v", len(fewer), strings.Join(numbers, ","), fewer, last[0])
}

// write writes the whole history, and the log of svcproxy, to a file among those that outlive the test.
func (s *site) write(name string) (path string, err error) {
	path = filepath.Join(os.TempDir(), name)
	var b strings.Builder
	fmt.Fprintln(&b, s.Story())
	for i := range s.attempts {
		fmt.Fprintln(&b, &s.attempts[i])
	}
	b.WriteString(s.daemon.LogTail(2000))
	return path, os.WriteFile(path, []byte(b.String()), 0o644)
}

// totals are what the episodes of a mode had.
type totals struct {
	episodes, attempts, judged, unjudged int
	faults                               map[string]int
	kinds                                map[string]int
}

func (s *totals) String() string {
	var faults []string
	for name, n := range s.faults {
		faults = append(faults, fmt.Sprintf("%d %s", n, name))
	}
	slices.Sort(faults)
	return fmt.Sprintf("%d episodes, %d attempts, %d judged, %d with too many worlds, faults: %s", s.episodes, s.attempts, s.judged, s.unjudged, strings.Join(faults, "; "))
}

// probesAfter is how many questions follow when it is quiet.
const probesAfter = 1000

// episode has clients ask while the nemesis does steps, and returns what was illegal.
func (s *site) episode(ctx context.Context, steps []step, sum *totals) ([]error, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	watching, over := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.watchMachine(watching) })
	stop := s.clients(ctx)
	errs := make([]error, len(lanes))
	var lanesDone sync.WaitGroup
	var mu sync.Mutex
	for l := range lanes {
		of := slices.DeleteFunc(slices.Clone(steps), func(st step) bool { return st.lane != l })
		lanesDone.Go(func() {
			errs[l] = s.run(ctx, of, func(st step) {
				mu.Lock()
				defer mu.Unlock()
				sum.faults[lanes[st.lane][st.fault].name]++
				s.Did(st.String())
			})
		})
	}
	lanesDone.Wait()
	quiet(ctx)
	stop()
	if err := errors.Join(errs...); err != nil {
		over()
		wg.Wait()
		return nil, err
	}
	s.probes(ctx, probesAfter)
	over()
	wg.Wait()
	j := NewJudge(s.History)
	illegal := j.Illegal()
	sum.episodes++
	sum.attempts += len(s.attempts)
	sum.judged += j.Judged
	sum.unjudged += j.Unjudged
	return illegal, nil
}

// quiet waits until svcproxy must have reacted to everything.
func quiet(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(pace.Scale(2*reaction + detection)):
	}
}

// watchMachine notes how busy the machine is, and when it stood still.
func (s *site) watchMachine(ctx context.Context) {
	const tick, stall = 20 * time.Millisecond, 150 * time.Millisecond
	for i := 0; ctx.Err() == nil; i++ {
		start := time.Now()
		if i%20 == 0 {
			s.Clock.Load(pace.Load())
			start = time.Now()
		}
		time.Sleep(tick)
		if now := time.Now(); now.Sub(start) > stall {
			s.Clock.Lost(Span{start, now})
		}
	}
}
