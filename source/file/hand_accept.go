package file

import (
	"context"
	"log/slog"
	"slices"
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
	logLines(s.log, s.accept(units, time.Now().Round(0)))
}

// A line is one of the log.
type line struct {
	level slog.Level
	msg   string
	args  []any
}

// maxLines is how many lines one step has in the log: who writes many texts must not hide what else is said.
const maxLines = 100

// logLines logs the first lines, and how many more there are.
func logLines(log *slog.Logger, lines []line) {
	ctx := context.Background()
	lines = slices.DeleteFunc(lines, func(l line) bool { return !log.Enabled(ctx, l.level) })
	for _, l := range lines[:min(len(lines), maxLines)] {
		log.Log(ctx, l.level, l.msg, l.args...)
	}
	if more := len(lines) - maxLines; more > 0 {
		log.Info("more service files changed; svcproxy status lists those at fault", "files", more)
	}
}

// accept notes and records which versions are in use. It returns what is to be logged.
func (s *waits) accept(units []source.Unit, now time.Time) (lines []line) {
	news := map[string]keep.Entry{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range units {
		name := s.place.name(u.ID.Name)
		f := s.files[name]
		if u.ID.Source != s.source || f == nil {
			continue // it was removed meanwhile
		}
		was := f.good
		if !f.markAccepted(u.Version) {
			continue // or withdrawn
		}
		s.noteKeeping(f)
		if f.good != f.used && f.inUse != nil { // it may lack what its lists say by now
			for list := range f.inUse.Version.Lists {
				if l := s.files[list]; l == nil || l.used != f.inUse.Lists[list] {
					s.newLists[list] = true
					s.wake()
				}
			}
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

// summary returns a line about what became of a file; when all is well and quiet is asked for, for those only who debug.
func (f *state) summary(quiet bool) line {
	level, msg, args := slog.LevelInfo, "service file accepted", []any{"file", f.path, "services", f.used.Count()}
	if f.isList() {
		n := 0
		if f.used != nil && f.used.List != nil {
			n = len(f.used.List.Endpoints)
		}
		msg, args = "file of endpoints accepted", []any{"file", f.path, "endpoints", n}
	}
	switch {
	case f.state == source.Stale && f.isList():
		level, msg = slog.LevelWarn, "file of endpoints is broken: services keep those last accepted"
	case f.state == source.Stale:
		level, msg = slog.LevelWarn, "service file is broken: its services stay as last accepted"
	case f.state == source.Refused && f.isList():
		level, msg = slog.LevelWarn, "file of endpoints is broken: services that refer to it wait until it is corrected"
	case f.state == source.Refused:
		level, msg = slog.LevelWarn, "service file is broken: it has no services until it is corrected"
	case f.state == source.Accepted && !f.isList() && len(f.seen.Faults) > 0:
		level, msg = slog.LevelWarn, "service file accepted with warnings"
	case quiet && (f.state == source.Accepted || f.isList()):
		level = slog.LevelDebug
	}
	if n := len(f.seen.Faults); n > 0 {
		args = append(args, "faults", n, "first", f.seen.Faults[0].String())
	}
	return line{level, msg, args}
}
