package etcd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A follower runs a Fetcher, and records what it gives and reports.
type follower struct {
	t   testing.TB
	end func()

	mu      sync.Mutex
	sets    []remote.Set
	answers int
	err     error // the last reported error; nil: none, or an answer came after it
}

// follow runs a Fetcher until the test ends.
func follow(t testing.TB, o Options) *follower {
	f := &follower{t: t}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- New(o).Run(ctx, f.give, f.report) }()
	f.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.end)
	return f
}

func (f *follower) give(s remote.Set) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sets = append(f.sets, s)
}

func (f *follower) report(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err = err; err == nil {
		f.answers++
	}
}

// last returns the last Set, and how many Sets were given.
func (f *follower) last() (s remote.Set, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.sets) > 0 {
		s = f.sets[len(f.sets)-1]
	}
	return s, len(f.sets)
}

// problem returns the error that was reported last.
func (f *follower) problem() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// wait waits until the last Set has these texts, as NAME=TEXT.
func (f *follower) wait(want ...string) remote.Set {
	f.t.Helper()
	slices.Sort(want)
	pace.UntilOr(f.t, func() bool { s, n := f.last(); return n > 0 && slices.Equal(words(s), want) }, func() string {
		s, n := f.last()
		return fmt.Sprintf("%d Sets, the last one %q, want %q; reported %v", n, words(s), want, f.problem())
	})
	s, _ := f.last()
	return s
}

// waitAnswer waits until an answer is reported after the last failure.
func (f *follower) waitAnswer() {
	f.t.Helper()
	pace.UntilOr(f.t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.answers > 0 && f.err == nil
	}, func() string { return fmt.Sprintf("no answer: %v", f.problem()) })
}

// waitFailed waits until a failure is reported, and logs how long that took.
func (f *follower) waitFailed(since time.Time) {
	f.t.Helper()
	pace.Until(f.t, "a reported failure", func() bool { return f.problem() != nil })
	f.t.Logf("reported after %v: %v", time.Since(since).Round(time.Millisecond), f.problem())
}

// words are the texts of a Set, without the prefix.
func words(s remote.Set) (out []string) {
	for _, t := range s.Texts {
		out = append(out, fmt.Sprintf("%s=%s", strings.TrimPrefix(t.Name, "etcd:/svcproxy/services/"), t.Data))
	}
	return out
}
