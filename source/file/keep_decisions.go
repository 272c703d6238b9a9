package file

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
)

// loadDecisions takes up what an earlier run kept. An apply that it did not see confirmed
// goes back at once where the time is over, or the host has started again since.
func (s *Source) loadDecisions(now time.Time) {
	path := s.store.DecisionsPath()
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	d, err2 := parseDecisions(data)
	if err = cmp.Or(err, err2); err != nil {
		s.log.Error("what was held, rolled back or applied on trial is not known any more", "file", path, "err", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d.text = data
	if t := d.trial; t != nil {
		t.until = now.Add(min(t.until.Sub(now), t.until.Sub(t.began))) // also if the clock was, or is, set back
		d.changed = true
		t.back = t.boot != keep.Boot() || !now.Before(t.until)
	}
	s.decisions = d
	s.store.PutDecisions(nil, d.needs())
}

// keepStep has written what a step decided, and then the lists that it took: a file may have been accepted with those
// of before. The caller holds s.mu.
func (s *Source) keepStep() {
	s.keepDecisions()
	if s.store != nil && len(s.listEntries) > 0 {
		s.store.Put(s.listEntries)
		clear(s.listEntries)
	}
}

// keepDecisions has them written, if they are other than before. The caller holds s.mu.
func (s *Source) keepDecisions() {
	d := &s.decisions
	if s.store == nil || !d.changed || d.text == nil && len(d.pins)+len(d.lists) == 0 && d.trial == nil {
		return
	}
	d.changed = false
	if text := d.encode(); !bytes.Equal(text, d.text) {
		d.text = text
		s.store.PutDecisions(text, d.needs())
	}
}

// remembered returns the names of all files of which something is in use or decided, sorted.
func (s *Source) remembered() []string {
	names := map[string]bool{}
	for _, name := range s.store.Names() {
		names[name] = true
	}
	for name, p := range s.decisions.pins {
		if p.state == source.RolledBack {
			names[name] = true
		}
	}
	if s.decisions.trial != nil {
		for name := range s.decisions.trial.before {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// keepsMissing reports whether a file that is recorded and missing at the start is more than one that was removed.
func (s *Source) keepsMissing() bool {
	return !s.guardSet.Load().off() || len(s.decisions.pins) > 0 || s.decisions.trial != nil
}
