package history

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/shrink"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "the seed of the first episode; 0: any")
	timeFlag   = flag.Duration("for", 40*time.Second, "how long each mode is tried")
	modeFlag   = flag.String("mode", "", "the one mode that is tried")
	shrinkFlag = flag.Duration("shrink", 5*time.Minute, "how long it is tried to find fewer steps that fail")
	stepFlag   = flag.String("steps", "", "numbers of the steps of the episode that are done: \"3,7\"; empty: all")
	oftenFlag  = flag.String("often", "", "a regular expression: faults whose names match are drawn five times as often; empty: none")
	goOnFlag   = flag.Bool("go-on", false, "go on after an episode with illegal attempts")
)

// stepsEach is how many steps an episode has in each lane.
const stepsEach = 12

// Run has episodes with a balancer in a mode, and reports what is illegal, with the fewest steps that lead to it. It
// returns the site, which is as the last episode left it; nil: the flags leave the mode out.
func Run(t *testing.T, mode string, newSite func(t *testing.T) *Site) *Site {
	if *modeFlag != "" && *modeFlag != mode {
		return nil
	}
	s := newSite(t)
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1e9
	}
	sum, first := &Totals{}, seed
	for end := time.Now().Add(*timeFlag); time.Now().Before(end) && (*goOnFlag || !t.Failed()); seed++ {
		what, err := s.arrange(seed)
		if err != nil {
			t.Fatalf("-mode %s -seed %d: %v\n%s", mode, seed, err, s.Log())
		}
		steps := chosen(s.Draw(seed, stepsEach))
		illegal, err := s.Episode(t.Context(), steps, sum)
		if err != nil {
			t.Fatalf("-mode %s -seed %d: %v\n%s", mode, seed, err, s.Log())
		}
		sum.add(what)
		if len(illegal) > 0 {
			s.report(t, seed, what, steps, illegal)
			fewest(t, newSite, seed, steps)
		}
	}
	t.Logf("seeds from %d on: %s", first, sum)
	if sum.Attempts == 0 {
		t.Error("nothing was attempted")
	}
	return s
}

// chosen returns the steps that the flag chooses.
func chosen(steps []Step) (list []Step) {
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

// report fails the test with the illegal attempts and the flags that repeat the episode.
func (s *Site) report(t *testing.T, seed uint64, what string, steps []Step, illegal []error) {
	const most = 12 // attempts that are shown
	var names []string
	for i, st := range steps {
		names = append(names, fmt.Sprintf("%d %s", i, st))
	}
	path, err := s.Write(fmt.Sprintf("svcproxy-history-%s-%d.txt", s.Mode, seed), errors.Join(illegal...).Error()+"\n"+s.Log())
	if err != nil {
		t.Error(err)
	}
	t.Errorf("%d illegal attempts; -mode %s -seed %d: %s\nsteps:\n%s\n%v\nall attempts: %s\n%s", len(illegal), s.Mode, seed, what, strings.Join(names, "\n"),
		errors.Join(illegal[:min(most, len(illegal))]...), path, s.Story())
}

// fewest looks for fewer steps that fail, each time in a lab of its own. What depends on a moment may not fail again: then
// all steps are left.
func fewest(t *testing.T, newSite func(t *testing.T) *Site, seed uint64, steps []Step) {
	end := time.Now().Add(*shrinkFlag)
	var last []error
	fewer := shrink.Fewest(steps, func(some []Step) (fails bool) {
		for range 2 {
			if time.Now().After(end) {
				return false
			}
			t.Run("fewer", func(t *testing.T) {
				s := newSite(t)
				_, err := s.arrange(seed)
				var illegal []error
				if err == nil {
					illegal, err = s.Episode(t.Context(), some, &Totals{})
				}
				if err != nil {
					t.Error(err)
				}
				if fails = len(illegal) > 0; fails {
					last = illegal
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
