package file

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// handFirst hands on all there is: first what was accepted before this start, so
// that everyone gets back what was theirs, then what has changed since.
func (s *Source) handFirst(probes []probe, sink source.Sink) {
	before := s.resumeAccepted(probes)
	if len(before) > 0 {
		sink.Apply(source.Changes{Set: before})
	}
	ch, news, removed := s.collect(probes, true)
	if len(before) == 0 || len(ch.Set)+len(ch.Delete) > 0 {
		sink.Apply(ch)
	}
	sink.Synced(Name)
	s.mu.Lock()
	s.synced = true
	s.mu.Unlock()
	s.logFiles(news, true)
	s.wentBack()
	s.forgetRecords(removed)
	s.cleanStore()
}

// resumeAccepted takes up what was accepted before this start, so that everyone first
// gets back what was theirs. It returns the units of it.
func (s *Source) resumeAccepted(probes []probe) (units []source.Unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range probes {
		p, f := &probes[i], probes[i].f
		if s.takePins(p); p.last.removed() {
			continue
		}
		f.claimedAt, f.damage = p.last.since, p.damage
		for _, d := range p.damage {
			s.log.Warn(d.Msg, "file", f.path, "copy", d.Pos.File)
		}
		if p.good != nil {
			f.seen, f.used, f.good = p.good, p.good, p.good
			f.state, f.since = source.Accepted, p.last.at
			f.unlogged, f.atStart = true, true
			units = append(units, s.handOn(f))
		}
	}
	return units
}

// handChanges takes what was found, and hands on what counts by now as one step.
func (s *Source) handChanges(probes []probe, sink source.Sink) {
	ch, news, removed := s.collect(probes, false)
	if len(ch.Set)+len(ch.Delete) > 0 {
		sink.Apply(ch)
	}
	s.logFiles(news, false)
	s.forgetRecords(removed)
}

// collect returns what counts by now, as changes and as the files that it is about, and
// what was in use of those that were removed.
func (s *Source) collect(probes []probe, first bool) (ch source.Changes, news []probe, removed map[string]*version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.keepDecisions()
	arriving := s.arriving()
	for _, p := range probes {
		if p.stamp.fileID != p.f.stamp.fileID {
			s.lastChange = p.at
		}
		p.f.observe(&p, first)
		arriving = arriving || p.f.arrives()
	}
	var due []*probe
	for i := range probes {
		p := &probes[i]
		isDue := p.f.next != nil && !s.dueTime(p.f, arriving).After(p.at)
		switch {
		case isDue:
			delete(s.waiting, p.name)
			p.f.atStart = first
			due = append(due, p)
		case p.f.next != nil:
			s.waiting[p.name] = p.f
		default:
			delete(s.waiting, p.name)
		}
		if isDue || p.good != nil {
			news = append(news, *p)
		}
	}
	return ch, news, s.decide(due, first, &ch)
}

// activate makes p's version count, and adds what follows to ch.
func (s *Source) activate(p *probe, ch *source.Changes) {
	f, at := p.f, p.at
	if p.good != nil && p.v.broken { // before this start, as it seems
		at = later(p.lastChanged(), p.last.at)
	}
	switch {
	case !f.activate(at):
		delete(s.files, p.name)
		if f.used != nil {
			ch.Delete = append(ch.Delete, f.id())
		}
	case f.state == source.Accepted:
		ch.Set = append(ch.Set, s.handOn(f))
	case f.used != f.good:
		s.withdraw(f, ch)
	}
}

// activate makes f.next count. It returns false when the file is gone.
func (f *state) activate(now time.Time) bool {
	v := f.next
	f.next = nil
	if v == gone {
		return false
	}
	f.seen = v
	if !v.broken {
		f.changingSince = time.Time{}
	}
	was := f.state
	switch {
	case !v.broken:
		f.used, f.state, was = v, source.Accepted, ""
		f.unlogged = true
	case f.good != nil:
		f.state = source.Stale
	default:
		f.state = source.Refused
	}
	if f.state != was {
		f.since = now
	}
	return true
}

// logFiles logs one line for each file, at first one for all that are well. What
// the Tracker has to accept is logged when that is done.
func (s *Source) logFiles(news []probe, first bool) {
	services, held := 0, 0
	for _, p := range news {
		services += p.f.handedServices()
		switch {
		case p.f.hold != nil:
			if held++; held <= maxHeldLines {
				p.f.hold.log(s.log, p.f.path)
			}
		case p.v != gone && p.f.state == source.Accepted && s.store != nil:
		case p.v != gone:
			p.f.summary(first).logTo(s.log)
		case p.f.seen != nil:
			s.log.Info("service file removed", "file", p.f.path, "services", p.f.handedServices())
		}
	}
	if more := held - maxHeldLines; more > 0 {
		s.log.Warn("changes of more service files are held", "files", more)
	}
	if first {
		s.log.Info("service files read", "dir", s.dir, "files", len(news), "services", services)
	}
}

// handOn returns f as a unit to be handed on. Without a store nobody tells what
// becomes of it: it counts as accepted.
func (s *Source) handOn(f *state) source.Unit {
	if s.store == nil {
		f.good = f.used
	} else {
		f.sent = append(f.sent, f.used)
		f.sent = f.sent[max(0, len(f.sent)-maxSent):]
	}
	u := source.Unit{ID: f.id(), Version: f.used.name(), Services: f.used.services}
	if !f.claimedAt.IsZero() {
		u.Since = f.claimedAt.UnixNano()
	}
	if f.stamp != (stamp{}) {
		u.Changed = []time.Time{f.stamp.changed()}
	}
	return u
}

// maxSent is how many versions of one file can be on their way. Only while the
// sink is busy with a long sync are there more than one or two.
const maxSent = 16

// withdraw takes back a version that was handed on and not accepted, for the
// file has become something else, which is broken.
func (s *Source) withdraw(f *state, ch *source.Changes) {
	f.used, f.sent, f.unlogged = f.good, nil, false
	if f.used == nil {
		ch.Delete = append(ch.Delete, f.id())
	} else {
		ch.Set = append(ch.Set, s.handOn(f))
	}
}

// Accepted notes which versions of files are in use from now on. Who sets
// Options.StateDir must call it with each unit that is accepted, in order; it
// writes what a restart must know. It may be called from any goroutine.
func (s *Source) Accepted(units []source.Unit) {
	if s.store == nil {
		return
	}
	s.recordMu.Lock() // so that forgetRecords does not come between
	defer s.recordMu.Unlock()
	news, lines := s.accept(units, time.Now().Round(0))
	for _, l := range lines {
		l.logTo(s.log)
	}
	s.store.put(news)
}

// accept notes which versions are in use. It returns what is to be recorded, and to be logged.
func (s *Source) accept(units []source.Unit, now time.Time) (news map[string]entry, lines []logLine) {
	news = map[string]entry{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range units {
		name := filepath.Base(u.ID.Name)
		f := s.files[name]
		if u.ID.Source != Name || f == nil {
			continue // it was removed meanwhile
		}
		was := f.good
		if !f.accept(u.Version) {
			continue // or withdrawn
		}
		if f.claimedAt.IsZero() {
			f.claimedAt = now
		}
		news[name] = entry{record{f.good.id, f.claimedAt, now}, f.good, was}
		if f.unlogged && f.good == f.used {
			f.unlogged = false
			lines = append(lines, f.summary(f.atStart))
		}
	}
	return news, lines
}

// accept notes that a version is in use. It returns false for one that is not on its way.
func (f *state) accept(version string) bool {
	for i, v := range f.sent {
		if v.name() == version {
			f.good, f.sent, f.damage = v, f.sent[i+1:], nil
			return true
		}
	}
	return false
}

// A logLine is something to log of a file.
type logLine struct {
	level slog.Level
	msg   string
	args  []any
}

func (l logLine) logTo(log *slog.Logger) { log.Log(context.Background(), l.level, l.msg, l.args...) }

// summary says what became of a file; when all is well and quiet is asked for, to
// those only who debug.
func (f *state) summary(quiet bool) logLine {
	l := logLine{level: slog.LevelInfo, msg: "service file accepted", args: []any{"file", f.path, "services", f.handedServices()}}
	switch f.state {
	case source.Stale:
		l.level, l.msg = slog.LevelWarn, "service file is broken: its services stay as last accepted"
	case source.Refused:
		l.level, l.msg = slog.LevelWarn, "service file is broken: it has no services until it is corrected"
	case source.Accepted:
		if len(f.seen.faults) > 0 {
			l.level, l.msg = slog.LevelWarn, "service file accepted with warnings"
		} else if quiet {
			l.level = slog.LevelDebug
		}
	}
	if n := len(f.seen.faults); n > 0 {
		l.args = append(l.args, "faults", n, "first", f.seen.faults[0].String())
	}
	return l
}

func (f *state) id() source.UnitID { return source.UnitID{Source: Name, Name: f.path} }
