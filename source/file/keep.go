package file

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// damage says why a copy is not used.
func (s *table) damage(name string, sum [32]byte, why string) []source.Fault {
	return []source.Fault{{
		Pos: source.Position{File: s.store.CopyPath(name, sum)},
		Msg: "the copy of the last good version cannot be used: " + why, Warning: true,
	}}
}

// cleanStore does what can wait until all services have been handed on: it drops what
// is kept of files that do not exist any more, and keeps again what was lost, which nothing else waits for.
func (s *lists) cleanStore() {
	if s.store == nil {
		return
	}
	s.mu.Lock()
	for _, name := range s.store.Names() {
		pin := s.decisions.pins[name]
		if s.files[name] == nil || pin != nil && pin.State == source.RolledBack && pin.Use == ([32]byte{}) {
			s.forget(name, nil)
		}
	}
	s.keepStep()
	s.mu.Unlock()
	s.markStore()
	s.background.Go(func() { s.store.Tidy(s.place.contents) })
}

// forgetLost has nobody wait any more for files that a power failure may have taken.
func (s *lists) forgetLost() {
	for _, f := range s.files {
		f.maybeLost = false
	}
	s.markStore()
}

// markStore notes that this boot uses the store, once no file is missed of another.
func (s *lists) markStore() {
	for _, f := range s.files {
		if f.maybeLost {
			return
		}
	}
	if s.store != nil && s.synced {
		s.store.MarkUsed()
	}
}

// maintainStore writes again what could not be written, and keeps the index short.
func (s *lists) maintainStore() {
	if s.store != nil && s.synced {
		s.store.Maintain(len(s.files))
		s.markStore()
	}
}

// loadDecisions takes up what an earlier run kept. An apply that it did not see confirmed
// goes back at once where the time is over, or the host has started again since.
func (s *lists) loadDecisions(now time.Time) {
	path := s.store.DecisionsPath()
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	d, err2 := parseDecisions(data)
	if err = cmp.Or(err, err2); err != nil {
		s.log.Error("lost the record of held, rolled-back and trial changes", "file", path, "err", err)
		return
	}
	s.loadLists(&d)
	s.mu.Lock()
	defer s.mu.Unlock()
	d.text = data
	if t := d.trial; t != nil {
		t.Until = now.Add(min(t.Until.Sub(now), t.Until.Sub(t.Began))) // also if the clock was, or is, set back
		d.changed = true
		t.back = t.Boot != keep.Boot() || !now.Before(t.Until)
	}
	s.decisions = d
	s.putDecisions(nil)
}

// keepStep records what a step decided, and then the lists that it took, since services may keep those of before, and what it
// removed. The caller holds s.mu.
func (s *lists) keepStep() {
	s.keepDecisions(len(s.entries) == 0)
	if s.store != nil && len(s.entries) > 0 {
		s.store.Put(s.entries)
		clear(s.entries)
	}
}

// keepDecisions has them written, if they are other than before. What services kept is dropped only where the caller
// has nothing to put that makes it so. The caller holds s.mu.
func (s *lists) keepDecisions(mayDrop bool) {
	d := &s.decisions
	if s.store == nil {
		return
	}
	s.noteKept(mayDrop)
	if !d.changed || d.text == nil && len(d.pins)+len(d.kept) == 0 && d.trial == nil {
		return
	}
	d.changed = false
	if text := d.encode(); !bytes.Equal(text, d.text) {
		d.text = text
		s.putDecisions(text)
	}
}

func (s *lists) putDecisions(text []byte) {
	needs, texts := s.decisions.needs()
	s.store.PutDecisions(text, needs, texts)
}

// remembered returns the names of all files of which an earlier run left something to this start.
func (s *table) remembered() map[string]bool {
	names := map[string]bool{}
	if s.synced || s.store == nil {
		return names
	}
	for _, name := range s.store.Names() {
		names[name] = true
	}
	for name, p := range s.decisions.pins {
		if p.State == source.RolledBack {
			names[name] = true
		}
	}
	if s.decisions.trial != nil {
		for name := range s.decisions.trial.Before {
			names[name] = true
		}
	}
	return names
}

// keepsMissing reports whether a file that is recorded and missing at the start is more than one that was removed.
func (s *guarding) keepsMissing() bool {
	return !s.guardSet.Load().off() || len(s.decisions.pins) > 0 || s.decisions.trial != nil
}

// noteKept notes which versions of lists services keep, so that they do over a restart too. That is written before a record makes
// it necessary, and dropped after the disk has what makes it needless: a process may be killed in between. A version that is not
// needed does no harm, since a list in use that fits goes first. mayDrop: the caller has nothing to record.
func (s *lists) noteKept(mayDrop bool) {
	d := &s.decisions
	if len(s.keeping)+len(d.kept) == 0 {
		return
	}
	if s.store.Decided() {
		d.written = d.kept
	}
	mayDrop = mayDrop && s.synced
	all := mayDrop && s.store.OnDisk()
	some := mayDrop && s.store.WriteError() != "" // what no start may find; else these are ever more
	keeps := map[*read.Version]bool{}
	for _, f := range s.keeping {
		for _, l := range f.keeps {
			keeps[l] = true
		}
	}
	kept := map[string][]*read.Version{}
	for name, lists := range d.kept {
		kept[name] = slices.DeleteFunc(slices.Clone(lists), func(l *read.Version) bool {
			return !keeps[l] && (all || some && !slices.Contains(d.written[name], l))
		})
	}
	for l := range keeps {
		if name := filepath.Base(l.Path); !slices.ContainsFunc(kept[name], func(k *read.Version) bool { return k.ID == l.ID }) {
			kept[name] = append(kept[name], l)
		}
	}
	maps.DeleteFunc(kept, func(_ string, lists []*read.Version) bool { return len(lists) == 0 })
	if !maps.EqualFunc(kept, d.kept, slices.Equal) {
		d.kept, d.changed = kept, true
	}
}

// loadLists reads the versions of lists that decisions name from their copies. A version whose copy is lost has a name only.
func (s *lists) loadLists(d *decisions) {
	rules := s.rules
	rules.From.Accepted = true
	for _, l := range d.lists() {
		data, err := s.store.Text(filepath.Base(l.Path), l.ID)
		v := read.ListVersion(s.path(l.Path), data, rules)
		if l.Path = v.Path; err == nil && v.Broken {
			err = errors.New(v.Faults[0].String())
		}
		if l.List = v.List; err != nil {
			s.log.Warn("lost the version of an endpoint list that services keep", "file", v.Path, "err", err)
		}
	}
}
