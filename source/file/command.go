package file

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

var (
	errNoStore  = errors.New("without a state directory nothing is kept of earlier versions")
	errTooEarly = errors.New("service files have not been read yet")
)

const (
	// acceptTime is how long the sink may take to accept what it is given.
	acceptTime = time.Second

	// commandTime is how long the goroutine of Run may be busy with other things.
	commandTime = 10 * time.Second
)

// inRun has the goroutine of Run do something, once files have been read, and waits for it.
func (s *Source) inRun(ctx context.Context, do func(source.Sink) error) error {
	if s.store == nil {
		return errNoStore
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	done := make(chan error, 1)
	command := func(sink source.Sink) {
		if !s.synced {
			done <- errTooEarly
			return
		}
		done <- do(sink)
	}
	select {
	case s.commands <- command:
		return <-done
	case <-ctx.Done():
		return fmt.Errorf("service files are being read: %w", ctx.Err())
	}
}

// ErrNotKept is wrapped by errors that say that a decision is in force, but not on the disk.
var ErrNotKept = errors.New("it is so now, but a restart may not know it")

// kept waits until what was handed on of these files is accepted, and all of it is on the
// disk. A version that is refused, for another file has what it claims, is not waited for long.
func (s *Source) kept(ctx context.Context, names ...string) error {
	for end := time.Now().Add(acceptTime); ctx.Err() == nil && time.Now().Before(end) && !s.accepted(names); {
		time.Sleep(openPoll)
	}
	if err := s.store.Flush(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrNotKept, err)
	}
	return nil
}

// accepted reports whether the versions handed on of these files are those in use.
func (s *Source) accepted(names []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(names, func(name string) bool {
		f := s.files[name]
		return f != nil && f.used != f.good
	})
}
