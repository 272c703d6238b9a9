package file

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// setTrial begins or ends one.
func (s *restoring) setTrial(t *trial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decisions.try(t)
	s.keepDecisions(true)
}

// newTrial returns one of what is in use now, or of what was before the one that is under way.
func (s *restoring) newTrial(timeout time.Duration, was *trial) *trial {
	now := time.Now()
	t := &trial{Began: now, Until: now.Add(timeout), Boot: keep.Boot(), Before: map[string]*read.Version{}, Refused: map[string]id{}, Kept: map[string][]*read.Version{}}
	if was != nil {
		t.Before, t.Refused, t.Kept = was.Before, was.Refused, was.Kept
		return t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(t.Kept, s.decisions.kept)
	for name, f := range s.files {
		if f.good != nil {
			t.Before[name] = f.good
		}
		if f.used != nil && f.used != f.good {
			t.Refused[name] = f.used.ID
		}
	}
	return t
}

// trialKept waits until a trial is on the disk, and checks that all can be read that it goes back to.
func (s *restoring) trialKept(ctx context.Context, t *trial) error {
	if err := s.store.Flush(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	before := maps.Clone(t.Before)
	s.mu.Unlock()
	for name, v := range before {
		if _, err := s.store.Text(name, v.ID); err != nil {
			return fmt.Errorf("it could not go back: %w", err)
		}
	}
	return ctx.Err()
}

// beginTrial begins the time of a trial, now that all is let through, and returns its end.
func (s *restoring) beginTrial(t *trial, timeout time.Duration) time.Time {
	begun := *t
	begun.Began = time.Now()
	begun.Until = begun.Began.Add(timeout)
	s.mu.Lock()
	s.decisions.overdue = nil
	s.mu.Unlock()
	s.setTrial(&begun)
	return begun.Until
}

// endTrial goes back to what was in use before, when nobody has confirmed in time.
func (s *restoring) endTrial(sink source.Sink) {
	t := s.decisions.trial
	if t == nil || !s.synced || time.Now().Before(t.Until) {
		return
	}
	back := map[string]*read.Version{}
	names := maps.Clone(t.Before)
	for name := range s.files {
		names[name] = t.Before[name]
	}
	for name, v := range names {
		if f := s.files[name]; f != nil && (sameVersion(f.used, v) || t.refusedStill(name, f, v)) {
			continue
		}
		if v == nil {
			back[name] = nil
			continue
		}
		old, err := s.versionBefore(name, v)
		if err != nil {
			s.log.Error("cannot restore a service file to its version before the apply", "file", s.path(name), "err", err)
			continue
		}
		back[name] = old
	}
	s.log.Warn("the apply was not confirmed in time; restoring the versions before it", "files", len(back))
	s.useInstead(sink, back, t, unconfirmed(t))
}

// refusedStill reports whether of a file the same is in use, and the same refused, as when the trial began.
func (t *trial) refusedStill(name string, f *state, before *read.Version) bool {
	id, ok := t.Refused[name]
	return ok && sameVersion(f.good, before) && f.used != nil && f.used.ID == id
}

func sameVersion(a, b *read.Version) bool { return a == b || a != nil && b != nil && a.ID == b.ID }

func unconfirmed(t *trial) string {
	return fmt.Sprintf("what was in use before svcproxy apply of %s, which nobody confirmed, is used in place of the present file", clock(t.Began))
}

// wentBack ends a trial that was not confirmed before this start.
func (s *restoring) wentBack() {
	if t := s.decisions.trial; t != nil && t.back {
		s.log.Warn("the apply before this start was not confirmed; restored the versions before it", "applied", t.Began)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.decisions.end()
		s.keepDecisions(true)
	}
}

// takeOverdue returns an error once, over restarts too.
func (s *restoring) takeOverdue() error {
	o := s.decisions.overdue
	if o == nil {
		return nil
	}
	s.mu.Lock()
	s.decisions.overdue, s.decisions.changed = nil, true
	s.keepDecisions(true)
	s.mu.Unlock()
	text := fmt.Sprintf("the apply of %s went back at %s", clock(o.Began), clock(o.Back))
	if len(s.held) > 0 {
		text += "; confirm again to let through what is held"
	}
	return errors.New(text)
}

// goneBack returns what is to be used at the start of p's file, for an apply was not confirmed.
func (s *restoring) goneBack(ctx context.Context, p *probe, t *trial, rec keep.Record, ok bool) (keep.Record, bool) {
	found := p.v.ID
	if p.v.Broken {
		found = rec.Sum
	}
	want, had := t.Before[p.name]
	held := s.decisions.pins[p.name]
	refused, wasRefused := t.Refused[p.name]
	switch {
	case wasRefused && refused == p.v.ID && had == ok && (!had || rec.Sum == want.ID):
		return rec, ok // as when it began
	case !had && p.v == read.Gone:
		return keep.Record{}, false
	case had && p.v.ID == want.ID && !p.v.Broken:
		return keep.Record{Sum: want.ID, Since: firstTime(rec, ok, t.Began), At: t.Began}, true
	case had && ok && rec.Sum == want.ID && held != nil && held.Found == p.v.ID:
		return rec, ok // none of it was applied
	}
	p.pin = &pin{State: source.RolledBack, Found: found, Since: time.Now().Round(0), Why: unconfirmed(t)}
	if had {
		p.pin.Use = want.ID
	}
	return s.insteadOf(ctx, p, p.pin, rec, ok)
}

// insteadOf returns the record of the version that is used in place of p's, and has it read.
func (s *restoring) insteadOf(ctx context.Context, p *probe, pn *pin, rec keep.Record, ok bool) (keep.Record, bool) {
	if pn.Use == ([32]byte{}) {
		return keep.Record{}, false
	}
	var v *read.Version
	data, err := s.store.Text(p.name, pn.Use)
	if err == nil {
		v, err = s.parseKept(ctx, p.name, data)
	}
	if err != nil {
		p.pin, p.unpin = nil, true
		p.damage = s.damage(p.name, pn.Use, err.Error())
		return rec, ok
	}
	p.good = v
	return keep.Record{Sum: pn.Use, Since: firstTime(rec, ok, pn.Since), At: pn.Since}, true
}

// firstTime returns when a file was first accepted, as a record says if there is one.
func firstTime(rec keep.Record, ok bool, otherwise time.Time) time.Time {
	if ok {
		return rec.Since
	}
	return otherwise
}
