package file

import (
	"context"
	"encoding/hex"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"svcproxy/source"
)

// slack is how many lines of the index may be out of date before it is written
// anew while running, beside as many as there are files: some 300 KB.
const slack = 2000

// restore finds the last good version of p's file. As a rule that is the one
// just read, and the copy of it is not touched.
func (s *Source) restore(ctx context.Context, p *probe) {
	rec, ok := s.store.record(p.name)
	if !ok && s.store.suspect {
		rec, ok = s.store.adopt(p.name)
	}
	if !ok || p.v == gone {
		return
	}
	p.last = rec
	if p.v.id == rec.sum {
		if !p.v.broken { // it may be to a newer version of this program
			p.good, p.v.data = p.v, nil
		}
		return
	}
	data, err := s.store.read(p.name, rec)
	if err != nil {
		p.damage = s.damage(p.name, rec, reason(err))
		older, text, ok := s.store.fallBack(p.name)
		if !ok {
			return
		}
		p.last, data = record{older.sum, rec.since, older.at}, text
		s.store.restored(p.name, p.last)
		p.damage[0].Msg += "; the one before it is used"
	}
	switch v := newVersion(ctx, p.f.path, data, nil, s.parse, nil); {
	case v.broken: // it may be to a newer version of this program
		i := slices.IndexFunc(v.faults, func(f source.Fault) bool { return !f.Warning })
		p.damage = s.damage(p.name, rec, v.faults[i].Msg)
	default:
		p.good = v
		if p.damage == nil { // else it is written again
			v.data = nil
		}
	}
}

// damage says why a copy is not used.
func (s *Source) damage(name string, r record, why string) []source.Fault {
	return []source.Fault{{
		Pos: source.Position{File: s.store.copyPath(name, r)},
		Msg: "the copy of the last good version cannot be used: " + why, Warning: true,
	}}
}

// resume takes up what was accepted before this start, so that everyone first
// gets back what was theirs. It returns the units of it.
func (s *Source) resume(probes []probe) (units []source.Unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range probes {
		p, f := &probes[i], probes[i].f
		if p.last.removed() {
			continue
		}
		f.claimed, f.damage = p.last.since, p.damage
		for _, d := range p.damage {
			s.log.Warn(d.Msg, "file", f.path, "copy", d.Pos.File)
		}
		if p.good != nil {
			f.seen, f.used, f.good = p.good, p.good, p.good
			f.state, f.since = source.Accepted, p.last.at
			f.untold, f.quiet = true, true
			units = append(units, s.hand(f))
		}
	}
	return units
}

// forget drops the records of files that were removed.
func (s *Source) forget(names []string) {
	if s.store == nil || len(names) == 0 {
		return
	}
	removed := make(map[string]entry, len(names))
	for _, name := range names {
		removed[name] = entry{}
	}
	s.keeping.Lock()
	defer s.keeping.Unlock()
	s.store.put(removed)
}

// tidy does what can wait until all services have been handed on: it drops what
// is kept of files that do not exist any more, and keeps again what was lost.
func (s *Source) tidy() {
	if s.store == nil {
		return
	}
	var lost []string
	for _, name := range s.store.recorded() {
		if s.files[name] == nil {
			lost = append(lost, name)
		}
	}
	s.forget(lost)
	s.mark()
	s.store.ask(func() {
		for _, name := range s.store.tidy() {
			if data, _, err := readContent(s.path(name), s.maxSize); err == nil {
				s.store.renew(name, &version{id: idOf(data, nil), data: data})
			}
		}
	})
}

// giveUp has nobody wait any more for files that a power failure may have taken.
func (s *Source) giveUp() {
	for _, f := range s.files {
		f.lost = false
	}
	s.mark()
}

// mark notes that this boot uses the store, once no file is missed of another.
func (s *Source) mark() {
	for _, f := range s.files {
		if f.lost {
			return
		}
	}
	if s.store != nil && s.synced {
		s.store.ask(func() {
			if !s.store.marked {
				s.store.mark()
			}
		})
	}
}

// hand returns f as a unit to be handed on. Without a store nobody tells what
// becomes of it: it counts as accepted.
func (s *Source) hand(f *state) source.Unit {
	if s.store == nil {
		f.good = f.used
	} else {
		f.sent = append(f.sent, f.used)
		f.sent = f.sent[max(0, len(f.sent)-maxSent):]
	}
	u := source.Unit{ID: f.id(), Version: f.used.name(), Services: f.used.services}
	if !f.claimed.IsZero() {
		u.Since = f.claimed.UnixNano()
	}
	return u
}

// maxSent is how many versions of one file can be on their way. Only while the
// sink is busy with a long sync are there more than one or two.
const maxSent = 16

func (v *version) name() string { return hex.EncodeToString(v.id[:]) }

// withdraw takes back a version that was handed on and not accepted, for the
// file has become something else, which is broken.
func (s *Source) withdraw(f *state, ch *source.Changes) {
	f.used, f.sent, f.untold = f.good, nil, false
	if f.used == nil {
		ch.Delete = append(ch.Delete, f.id())
	} else {
		ch.Set = append(ch.Set, s.hand(f))
	}
}

// Accepted tells which versions of files are in use from now on. Whoever sets
// Options.StateDir must call it with each unit that is accepted, in order; it
// writes what a restart must know. It may be called from any goroutine.
func (s *Source) Accepted(units []source.Unit) {
	if s.store == nil {
		return
	}
	s.keeping.Lock() // so that forget does not come between
	defer s.keeping.Unlock()
	news, lines := s.accept(units, time.Now().Round(0))
	for _, l := range lines {
		l.log(s.log)
	}
	s.store.put(news)
}

// accept notes which versions are in use. It returns what is to be recorded, and to be logged.
func (s *Source) accept(units []source.Unit, now time.Time) (news map[string]entry, lines []line) {
	news = map[string]entry{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range units {
		name := filepath.Base(u.ID.Name)
		f := s.files[name]
		if u.ID.Source != Name || f == nil || !f.accept(u.Version) {
			continue // it was removed, or withdrawn, meanwhile
		}
		if f.claimed.IsZero() {
			f.claimed = now
		}
		news[name] = entry{record{f.good.id, f.claimed, now}, f.good}
		if f.untold && f.good == f.used {
			f.untold = false
			lines = append(lines, f.line(f.quiet))
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

// upkeep writes again what could not be written, and keeps the index short.
func (s *Source) upkeep() {
	if s.store != nil && s.synced {
		s.store.retry()
		n := len(s.files) + slack
		s.store.ask(func() { s.store.compact(n) })
		s.mark()
	}
}

// LastGood returns the versions of these files of dir that were last accepted, as
// stateDir keeps them: what a daemon that starts now would give them back before it
// reads what they say. It writes nothing. Without a right to read there are none.
func (rules Rules) LastGood(dir, stateDir string, names []string) []source.Unit {
	st := newStore(stateDir, slog.New(slog.DiscardHandler))
	st.load()
	var units []source.Unit
	for _, name := range names {
		r, ok := st.record(name)
		if !ok {
			continue
		}
		data, err := st.read(name, r)
		path := filepath.Join(dir, name)
		v := newVersion(context.Background(), path, data, err, rules.parseNew, nil)
		if v.broken {
			continue
		}
		units = append(units, source.Unit{
			ID: source.UnitID{Source: Name, Name: path}, Version: v.name(),
			Since: r.since.UnixNano(), Services: v.services,
		})
	}
	return units
}
