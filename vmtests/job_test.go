//go:build vm

package vmtests

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/vmtests/guest"
)

// A job is a program that runs in a guest while the test does other things.
type job struct {
	stop context.CancelFunc
	done chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
}

// begin starts a program and waits until its output has a sign.
func begin(t *testing.T, g *guest.Guest, sign string, args ...string) *job {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	j := &job{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(j.done)
		g.Run(ctx, guest.Command{Args: args}, j) // what goes wrong shows in the output
	}()
	t.Cleanup(func() { j.end() })
	pace.Within(patience, func() bool { return j.ended() || strings.Contains(j.output(), sign) })
	if !strings.Contains(j.output(), sign) {
		t.Fatalf("%q: no %q in %q", args, sign, j.output())
	}
	return j
}

func (j *job) ended() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// wait waits until the program ends by itself, and returns all its output.
func (j *job) wait(t *testing.T) string {
	t.Helper()
	select {
	case <-j.done:
	case <-time.After(patience):
		t.Fatalf("not ended within %v: %s", patience, j.output())
	}
	return j.output()
}

// end ends the program and returns all its output.
func (j *job) end() string {
	j.stop()
	<-j.done
	return j.output()
}

func (j *job) output() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// Write takes output.
func (j *job) Write(text []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(text)
}
