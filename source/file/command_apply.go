package file

import (
	"context"
	"errors"
	"fmt"
	"time"

	"svcproxy.dev/svcproxy/source"
)

const (
	// MinTrial and MaxTrial bound for how long Apply waits to be confirmed.
	MinTrial = time.Second
	MaxTrial = 24 * time.Hour
)

var errTrialOver = errors.New("the state directory took longer than the time to confirm")

// An Application says what Apply did.
type Application struct {
	Files  []string       `json:"files,omitempty"`  // whose held changes went through
	Faults []source.Fault `json:"faults,omitempty"` // why another held change cannot be used: the first of each file
	Until  time.Time      `json:"until"`            // when all goes back
}

// Apply reads all files again and lets all changes through that are held. All that is in
// use then or later goes back to what was in use before, unless Confirm follows within
// the timeout, also when the process ends or the host stops meanwhile. Another Apply
// before that begins the time again.
func (s *Source) Apply(ctx context.Context, timeout time.Duration) (a Application, err error) {
	if timeout < MinTrial || timeout > MaxTrial {
		return a, fmt.Errorf("timeout %s; want %s to %s", timeout, MinTrial, MaxTrial)
	}
	s.decideMu.Lock()
	defer s.decideMu.Unlock()
	if err := s.settle(ctx); err != nil {
		return a, err
	}
	t, was, err := s.prepareTrial(ctx, timeout)
	if err != nil {
		return a, err
	}
	if err := s.trialKept(ctx, t); err != nil { // it might not go back
		return a, errors.Join(fmt.Errorf("nothing was applied: %w", err), s.undoTrial(ctx, t, was))
	}
	err = s.inRun(ctx, func(sink source.Sink) error {
		if s.decisions.trial != t {
			return errTrialOver
		}
		a.Until = s.beginTrial(t, timeout)
		r := s.release(sink)
		a.Files, a.Faults = r.files, r.faults
		return nil
	})
	if err != nil {
		return a, errors.Join(fmt.Errorf("nothing was applied: %w", err), s.undoTrial(ctx, t, was))
	}
	s.log.Info("applied on trial", "files", len(a.Files), "until", a.Until)
	return a, s.kept(ctx, a.Files...)
}

// settle reads everything again, and waits until nothing is half written, and what was
// handed on is accepted.
func (s *Source) settle(ctx context.Context) error {
	var steps int
	err := s.inRun(ctx, func(source.Sink) error {
		s.todo.all, s.todo.hash = true, true
		steps = s.steps
		return nil
	})
	for start := time.Now(); err == nil && time.Since(start) < maxWait+quietTime; {
		settled := false
		err = s.inRun(ctx, func(source.Sink) error {
			settled = s.steps > steps && len(s.waiting)+len(s.largeReads) == 0 &&
				(time.Since(start) > acceptTime || s.accepted(sortedNames(s.files)))
			return nil
		})
		if settled {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(openPoll):
		}
	}
	return err
}

// prepareTrial has one under way before anything is let through, and returns it and the one before.
func (s *Source) prepareTrial(ctx context.Context, timeout time.Duration) (t, was *trial, err error) {
	err = s.inRun(ctx, func(source.Sink) error {
		was = s.decisions.trial
		t = s.newTrial(timeout, was)
		s.setTrial(t)
		return nil
	})
	return t, was, err
}

// undoTrial ends a trial of which nothing was let through, also when nobody waits any more.
func (s *Source) undoTrial(ctx context.Context, t, was *trial) error {
	return s.inRun(context.WithoutCancel(ctx), func(source.Sink) error {
		if s.decisions.trial == t {
			s.setTrial(was)
		}
		return nil
	})
}
