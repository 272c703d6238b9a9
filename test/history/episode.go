package history

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/test/lab"
)

// Totals are what the episodes of a mode had.
type Totals struct {
	Episodes, Attempts, Judged, Unjudged, Busy int

	faults map[string]int
}

func (s *Totals) add(fault string) {
	if fault == "" {
		return
	}
	if s.faults == nil {
		s.faults = map[string]int{}
	}
	s.faults[fault]++
}

func (s *Totals) String() string {
	var faults []string
	for name, n := range s.faults {
		faults = append(faults, fmt.Sprintf("%d %s", n, name))
	}
	slices.Sort(faults)
	return fmt.Sprintf("%d episodes, %d attempts: %d judged, %d while others broke something, %d on a busy machine, %d with too many worlds; drawn: %s", s.Episodes, s.Attempts, s.Judged,
		s.Attempts-s.Judged-s.Busy-s.Unjudged, s.Busy, s.Unjudged, strings.Join(faults, "; "))
}

// probesAfter is how many questions follow when it is quiet.
const probesAfter = 10_000

// Episode has clients ask while the nemesis does steps, and returns what was illegal.
func (s *Site) Episode(ctx context.Context, steps []Step, sum *Totals) (illegal []error, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	watching, over := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.watchMachine(watching) })
	stop := s.clients(ctx)
	errs := make([]error, len(s.Lanes))
	var lanesDone sync.WaitGroup
	var mu sync.Mutex
	for l := range s.Lanes {
		of := slices.DeleteFunc(slices.Clone(steps), func(st Step) bool { return st.lane != l })
		lanesDone.Go(func() {
			errs[l] = s.run(ctx, of, func(st Step) {
				mu.Lock()
				defer mu.Unlock()
				sum.add(st.name)
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
	s.probes(ctx, lab.Fewer(probesAfter))
	over()
	wg.Wait()
	j := NewJudge(s.History)
	illegal = j.Illegal()
	sum.Episodes++
	sum.Attempts += len(s.attempts)
	sum.Judged += j.Judged
	sum.Unjudged += j.Unjudged
	sum.Busy += j.Busy
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
func (s *Site) watchMachine(ctx context.Context) {
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

// Write writes the whole history to a file among those that outlive a test, and more behind it.
func (s *Site) Write(name, more string) (path string, err error) {
	path = filepath.Join(os.TempDir(), name)
	var b strings.Builder
	fmt.Fprintln(&b, s.Story())
	for i := range s.attempts {
		fmt.Fprintln(&b, &s.attempts[i])
	}
	b.WriteString(more)
	return path, os.WriteFile(path, []byte(b.String()), 0o644)
}
