package file

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

const (
	// MinTrial and MaxTrial bound for how long Apply waits to be confirmed.
	MinTrial = time.Second
	MaxTrial = 24 * time.Hour

	// acceptTime is how long the sink may take to accept what it is given.
	acceptTime = time.Second

	// commandTime is how long the goroutine of Run may be busy with other things.
	commandTime = 10 * time.Second
)

var (
	errNoStore  = errors.New("without a state directory nothing is kept of earlier versions")
	errTooEarly = errors.New("service files have not been read yet")
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

// Rollback has an older version of a file used until the file changes again. An empty name
// is that of the file that has this version. What it returns is that version. After an
// error that wraps ErrNotKept it is used, but a restart may not know it.
func (s *Source) Rollback(ctx context.Context, name string, number int) (Revision, error) {
	if s.store == nil {
		return Revision{}, errNoStore
	}
	s.decideMu.Lock()
	defer s.decideMu.Unlock()
	r, err := revision(s.store.stateDir(), name, number)
	if err != nil {
		return r, err
	}
	sum, _ := r.sum()
	v, err := s.keptVersion(ctx, r.File, sum)
	if err != nil {
		return r, err
	}
	v.uid = r.UID
	why := fmt.Sprintf("version %d, accepted at %s, is used in place of the present file", r.Number, clock(r.At))
	err = s.inRun(ctx, func(sink source.Sink) error {
		s.mu.Lock()
		if t := s.decisions.trial; t != nil {
			t.before[r.File] = v // what was asked for stays
		}
		s.mu.Unlock()
		s.useInstead(sink, map[string]*version{r.File: v}, why)
		return nil
	})
	if err != nil {
		return r, err
	}
	return r, s.kept(ctx, r.File)
}

// ErrNotKept is wrapped by errors that say that a decision is in force, but not on the disk.
var ErrNotKept = errors.New("it is so now, but a restart may not know it")

// kept waits until what was handed on of these files is accepted, and all of it is on the
// disk. A version that is refused, for another file has what it claims, is not waited for long.
func (s *Source) kept(ctx context.Context, names ...string) error {
	for end := time.Now().Add(acceptTime); ctx.Err() == nil && time.Now().Before(end) && !s.accepted(names); {
		time.Sleep(openPoll)
	}
	if err := s.store.flush(ctx); err != nil {
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

// keptVersion reads and parses a version that was accepted once.
func (s *Source) keptVersion(ctx context.Context, name string, sum [32]byte) (*version, error) {
	data, err := readKept(s.store.stateDir(), name, sum)
	if err != nil {
		return nil, err
	}
	v := newVersion(ctx, s.path(name), data, nil, s.parse, nil)
	if i := slices.IndexFunc(v.faults, func(f source.Fault) bool { return !f.Warning }); i >= 0 {
		return nil, fmt.Errorf("this version of %s cannot be used any more: %s", source.Quote(name), v.faults[i])
	}
	return v, nil
}

// useInstead has these versions used, by file name, nil: nothing, whatever the files say.
func (s *Source) useInstead(sink source.Sink, versions map[string]*version, why string) {
	var ch source.Changes
	removed := map[string]*version{}
	s.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		f := s.files[name]
		if f == nil {
			f = &state{path: s.path(name), seen: gone}
			s.files[name] = f
		}
		if f.seen == nil {
			f.seen = gone
		}
		s.unpin(name, f)
		was := f.good
		if s.replaceUsed(name, f, versions[name], why, &ch); f.good == nil && was != nil && versions[name] == nil {
			removed[name] = was
		}
	}
	s.keepDecisions()
	s.mu.Unlock()
	if len(ch.Set)+len(ch.Delete) > 0 {
		sink.Apply(ch)
	}
	s.forgetRecords(removed)
}

// replaceUsed has v used of f, nil: nothing. The caller holds s.mu.
func (s *Source) replaceUsed(name string, f *state, v *version, why string, ch *source.Changes) {
	now := time.Now()
	f.state, f.since, f.unlogged = source.RolledBack, now, false
	p := pin{state: source.RolledBack, found: f.seen.id, since: now, why: why}
	switch {
	case v == nil:
		if f.used != nil {
			ch.Delete = append(ch.Delete, f.id())
		}
		f.used, f.good, f.sent, f.claimedAt = nil, nil, nil, time.Time{}
	case v.id == f.seen.id: // what the file says
		f.seen, f.used, f.state = v, v, source.Accepted
		ch.Set = append(ch.Set, s.handOn(f))
		return
	default:
		p.use, f.used = v.id, v
		ch.Set = append(ch.Set, s.handOn(f))
	}
	s.decisions.pins[name] = &p
	f.hold = &hold{pin: p}
	f.hold.log(s.log, f.path)
}

// A Confirmation says what Confirm did.
type Confirmation struct {
	Applied bool     `json:"applied"`         // what was applied on trial stays
	Files   []string `json:"files,omitempty"` // whose held changes went through
	Held    int      `json:"held,omitempty"`  // files that are held still
}

// Confirm has what was applied on trial stay or, where nothing was, lets all changes through that
// are held. It is an error that there is nothing to confirm.
func (s *Source) Confirm(ctx context.Context) (c Confirmation, err error) {
	s.decideMu.Lock()
	defer s.decideMu.Unlock()
	err = s.inRun(ctx, func(sink source.Sink) error {
		switch {
		case s.decisions.trial != nil:
			s.setTrial(nil)
			c.Applied = true
			s.log.Info("what was applied is confirmed")
		case len(s.held) > 0:
			c.Files = s.release(sink)
		default:
			return errors.New("nothing waits to be confirmed: no change is held, and no apply is under way")
		}
		c.Held = len(s.held)
		return nil
	})
	if err != nil {
		return c, err
	}
	return c, s.kept(ctx, c.Files...)
}

// setTrial begins or ends one.
func (s *Source) setTrial(t *trial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decisions.trial = t
	s.keepDecisions()
}

// An Application says what Apply did.
type Application struct {
	Files []string  `json:"files,omitempty"` // whose held changes went through
	Until time.Time `json:"until"`           // when all goes back
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
	var was *trial
	err = s.inRun(ctx, func(source.Sink) error {
		was = s.decisions.trial
		t := s.newTrial(timeout, was)
		s.setTrial(t)
		a.Until = t.until
		return nil
	})
	if err != nil {
		return a, err
	}
	if err := s.store.flush(ctx); err != nil { // it might not go back after a restart
		undo := s.inRun(context.WithoutCancel(ctx), func(source.Sink) error { s.setTrial(was); return nil })
		return a, errors.Join(fmt.Errorf("nothing was applied: %w", err), undo)
	}
	err = s.inRun(ctx, func(sink source.Sink) error {
		a.Files = s.release(sink)
		return nil
	})
	if err != nil {
		return a, err
	}
	s.log.Info("applied on trial", "files", len(a.Files), "until", a.Until)
	return a, s.kept(ctx, a.Files...)
}

// newTrial returns one of what is in use now, or of what was before the one that is under way.
func (s *Source) newTrial(timeout time.Duration, was *trial) *trial {
	now := time.Now()
	t := &trial{began: now, until: now.Add(timeout), boot: bootText(), before: map[string]*version{}}
	if was != nil {
		t.before = was.before
		return t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.files {
		if f.good != nil {
			t.before[name] = f.good
		}
	}
	return t
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

// endTrial goes back to what was in use before, when nobody has confirmed in time.
func (s *Source) endTrial(sink source.Sink) {
	t := s.decisions.trial
	if t == nil || !s.synced || time.Now().Before(t.until) {
		return
	}
	s.mu.Lock()
	s.decisions.trial = nil // kept with what follows
	s.mu.Unlock()
	back := map[string]*version{}
	names := maps.Clone(t.before)
	for name := range s.files {
		names[name] = t.before[name]
	}
	for name, v := range names {
		if f := s.files[name]; f != nil && sameVersion(f.used, v) {
			continue
		}
		if v == nil {
			back[name] = nil
			continue
		}
		old, err := s.keptVersion(context.Background(), name, v.id)
		if err != nil {
			s.log.Error("a service file cannot go back to what was in use before it was applied", "file", s.path(name), "err", err)
			continue
		}
		back[name] = old
	}
	s.log.Warn("nobody has confirmed what was applied: going back to what was in use before", "files", len(back))
	s.useInstead(sink, back, unconfirmed(t))
}

func sameVersion(a, b *version) bool { return a == b || a != nil && b != nil && a.id == b.id }

func unconfirmed(t *trial) string {
	return fmt.Sprintf("what was in use before svcproxy apply of %s, which nobody confirmed, is used in place of the present file", clock(t.began))
}

// goneBack returns what is to be used at the start of p's file, for an apply was not confirmed.
func (s *Source) goneBack(ctx context.Context, p *probe, t *trial, rec record, ok bool) (record, bool) {
	found := p.v.id
	if p.v.broken {
		found = rec.sum
	}
	want, had := t.before[p.name]
	held := s.decisions.pins[p.name]
	switch {
	case !had && p.v == gone:
		return record{}, false
	case had && p.v.id == want.id && !p.v.broken:
		return record{want.id, firstTime(rec, ok, t.began), t.began}, true
	case had && ok && rec.sum == want.id && held != nil && held.found == p.v.id:
		return rec, ok // none of it was applied
	}
	p.pin = &pin{state: source.RolledBack, found: found, since: time.Now().Round(0), why: unconfirmed(t)}
	if had {
		p.pin.use = want.id
	}
	return s.insteadOf(ctx, p, p.pin, rec, ok)
}

// insteadOf returns the record of the version that is used in place of p's, and has it read.
func (s *Source) insteadOf(ctx context.Context, p *probe, pn *pin, rec record, ok bool) (record, bool) {
	if pn.use == ([32]byte{}) {
		return record{}, false
	}
	v, err := s.keptVersion(ctx, p.name, pn.use)
	if err != nil {
		p.pin, p.unpin = nil, true
		p.damage = s.damage(p.name, record{sum: pn.use}, err.Error())
		return rec, ok
	}
	p.good = v
	return record{pn.use, firstTime(rec, ok, pn.since), pn.since}, true
}

// firstTime returns when a file was first accepted, as a record says if there is one.
func firstTime(rec record, ok bool, otherwise time.Time) time.Time {
	if ok {
		return rec.since
	}
	return otherwise
}

// takePins notes what was decided at the first look. The caller holds s.mu.
func (s *Source) takePins(p *probe) {
	if p.pin != nil {
		s.decisions.pins[p.name] = p.pin
	}
	if p.unpin {
		delete(s.decisions.pins, p.name)
	}
}

// wentBack ends a trial that was not confirmed before this start.
func (s *Source) wentBack() {
	if t := s.decisions.trial; t != nil && t.back {
		s.log.Warn("nobody has confirmed what was applied before this start: what was in use before is used", "applied", t.began)
		s.setTrial(nil)
	}
}
