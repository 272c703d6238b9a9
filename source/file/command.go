package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
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
func (s *waits) accepted(names []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(names, func(name string) bool {
		f := s.files[name]
		return f != nil && f.used != f.good
	})
}

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
	var t, was *trial
	err = s.inRun(ctx, func(source.Sink) error { // it is under way before anything is let through
		was = s.decisions.trial
		t = s.newTrial(timeout, was)
		s.setTrial(t)
		return nil
	})
	if err != nil {
		return a, err
	}
	if err = s.trialKept(ctx, t); err == nil { // else it might not go back
		err = s.inRun(ctx, func(sink source.Sink) error {
			if s.decisions.trial != t {
				return errTrialOver
			}
			a.Until = s.beginTrial(t, timeout)
			a.Files, a.Faults = s.release(sink)
			return nil
		})
	}
	if err != nil {
		undone := s.inRun(context.WithoutCancel(ctx), func(source.Sink) error { // also when nobody waits any more
			if s.decisions.trial == t {
				s.setTrial(was)
			}
			return nil
		})
		return a, errors.Join(fmt.Errorf("nothing was applied: %w", err), undone)
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

// Rollback has an older version of a file used until the file changes again. An empty name
// is that of the file that has this version. What it returns is that version. After an
// error that wraps ErrNotKept it is used, but a restart may not know it.
func (s *Source) Rollback(ctx context.Context, name string, number int) (keep.Revision, error) {
	if s.store == nil {
		return keep.Revision{}, errNoStore
	}
	s.decideMu.Lock()
	defer s.decideMu.Unlock()
	r, text, err := s.store.Revision(name, number)
	if err != nil {
		return r, err
	}
	v, err := s.parseKept(ctx, r.File, text)
	if err != nil {
		return r, err
	}
	v.UID.Store(int64(r.UID))
	why := fmt.Sprintf("version %d, accepted at %s, is used in place of the present file", r.Number, clock(r.At))
	err = s.inRun(ctx, func(sink source.Sink) error {
		s.mu.Lock()
		b := s.newPlan(nil).of(cmp.Or(s.files[r.File], s.newState(r.File)), v)
		if t := s.decisions.trial; t != nil && !b.Unfit {
			t.Before[r.File] = v // what was asked for stays
			delete(t.Refused, r.File)
		}
		s.mu.Unlock()
		if b.Unfit {
			return fmt.Errorf("this version of %s cannot be used with its lists: %s", source.Quote(r.File), b.AllFaults()[0])
		}
		s.useInstead(sink, map[string]*read.Version{r.File: v}, nil, why)
		return nil
	})
	if err != nil {
		return r, err
	}
	return r, s.kept(ctx, r.File)
}

// A Confirmation says what Confirm did.
type Confirmation struct {
	Applied bool           `json:"applied"`          // what was applied on trial stays
	Files   []string       `json:"files,omitempty"`  // whose held changes went through
	Faults  []source.Fault `json:"faults,omitempty"` // why another held change cannot be used: the first of each file
	Held    int            `json:"held,omitempty"`   // files that are held still
	Server  bool           `json:"-"`                // an answer of the server was held, and is used now
}

// OnTrial reports whether something is on trial.
func (s *Source) OnTrial() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.decisions.trial != nil
}

// ErrNothingHeld says that there is nothing to confirm.
var ErrNothingHeld = errors.New("nothing waits to be confirmed: no change is held, and no apply is under way")

// Confirm has what was applied on trial stay or, where nothing was, lets all changes through that
// are held. It is an error that there is nothing to confirm, and the first time after an apply
// went back, for which it is too late.
func (s *Source) Confirm(ctx context.Context) (c Confirmation, err error) {
	s.decideMu.Lock()
	defer s.decideMu.Unlock()
	err = s.inRun(ctx, func(sink source.Sink) error {
		late := s.takeOverdue()
		switch {
		case s.decisions.trial != nil:
			s.setTrial(nil)
			c.Applied = true
			s.log.Info("the apply is confirmed")
		case late != nil:
			return late
		case len(s.held) > 0, s.server != nil && s.server.Held() > 0:
			c.Server = s.admit(ctx, sink)
			c.Files, c.Faults = s.release(sink)
		default:
			return ErrNothingHeld
		}
		c.Held = len(s.held)
		return nil
	})
	if err != nil {
		return c, err
	}
	return c, s.kept(ctx, c.Files...)
}
