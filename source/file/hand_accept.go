package file

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
)

// Accepted records which versions of files are in use from now on, for the next start. Callers that
// set Options.StateDir must call it for every accepted unit, in order. It may be called from any goroutine.
func (s *Source) Accepted(units []source.Unit) {
	if s.store == nil {
		return
	}
	s.recordMu.Lock() // so that forgetRecords does not come between
	defer s.recordMu.Unlock()
	for _, l := range s.accept(units, time.Now().Round(0)) {
		l.logTo(s.log)
	}
}

// accept notes and records which versions are in use. It returns what is to be logged.
func (s *records) accept(units []source.Unit, now time.Time) (lines []logLine) {
	news := map[string]keep.Entry{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range units {
		name := filepath.Base(u.ID.Name)
		f := s.files[name]
		if u.ID.Source != Name || f == nil {
			continue // it was removed meanwhile
		}
		was := f.good
		if !f.markAccepted(u.Version) {
			continue // or withdrawn
		}
		s.noteKeeping(f)
		if f.good != f.used && f.inUse != nil { // it may lack what its lists say by now
			f.eachList(func(list string) { s.newLists[list] = true })
			s.wake()
		}
		if f.claimedAt.IsZero() {
			f.claimedAt = now
		}
		news[name] = keep.Entry{Record: keep.Record{Sum: f.good.ID, Since: f.claimedAt, At: now}, Version: f.good, Was: was}
		if f.unlogged && f.good == f.used {
			f.unlogged = false
			lines = append(lines, f.summary(f.atStart))
		}
	}
	s.keepDecisions(false)
	s.store.Put(news)
	return lines
}

// markAccepted notes that a version is in use. It returns false for one that is not on its way.
func (f *state) markAccepted(version string) bool {
	for i, v := range f.sent {
		if v.Name() == version {
			f.good, f.inUse, f.sent = v.Version, v.bound, f.sent[i+1:]
			if v.Version != f.older {
				f.damage = nil
			}
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
	if f.isList() {
		return f.listSummary(quiet)
	}
	l := logLine{level: slog.LevelInfo, msg: "service file accepted", args: []any{"file", f.path, "services", f.used.Count()}}
	switch f.state {
	case source.Stale:
		l.level, l.msg = slog.LevelWarn, "service file is broken: its services stay as last accepted"
	case source.Refused:
		l.level, l.msg = slog.LevelWarn, "service file is broken: it has no services until it is corrected"
	case source.Accepted:
		if len(f.seen.Faults) > 0 {
			l.level, l.msg = slog.LevelWarn, "service file accepted with warnings"
		} else if quiet {
			l.level = slog.LevelDebug
		}
	}
	return l.withFaults(f.seen.Faults)
}

func (l logLine) withFaults(faults []source.Fault) logLine {
	if n := len(faults); n > 0 {
		l.args = append(l.args, "faults", n, "first", faults[0].String())
	}
	return l
}

// listSummary is summary of a file of endpoints.
func (f *state) listSummary(quiet bool) logLine {
	n := 0
	if f.used != nil && f.used.List != nil {
		n = len(f.used.List.Endpoints)
	}
	l := logLine{level: slog.LevelInfo, msg: "file of endpoints accepted", args: []any{"file", f.path, "endpoints", n}}
	switch {
	case f.state == source.Stale:
		l.level, l.msg = slog.LevelWarn, "file of endpoints is broken: services keep those last accepted"
	case f.state == source.Refused:
		l.level, l.msg = slog.LevelWarn, "file of endpoints is broken: services that refer to it wait until it is corrected"
	case quiet:
		l.level = slog.LevelDebug
	}
	return l.withFaults(f.seen.Faults)
}
