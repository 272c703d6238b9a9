package file

import (
	"cmp"
	"errors"
	"io/fs"
	"os"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// damage says why a copy is not used.
func (s *Source) damage(name string, r record, why string) []source.Fault {
	return []source.Fault{{
		Pos: source.Position{File: s.store.copyPath(name, r)},
		Msg: "the copy of the last good version cannot be used: " + why, Warning: true,
	}}
}

// forgetRecords drops the records of files that were removed, which had these versions.
func (s *Source) forgetRecords(versions map[string]*read.Version) {
	if s.store == nil || len(versions) == 0 {
		return
	}
	removed := make(map[string]entry, len(versions))
	for name, v := range versions {
		removed[name] = entry{was: v}
	}
	s.recordMu.Lock()
	defer s.recordMu.Unlock()
	s.store.put(removed)
}

// cleanStore does what can wait until all services have been handed on: it drops what
// is kept of files that do not exist any more, and keeps again what was lost. What an earlier
// run wrote last may not be on the disk: until it is, which nothing else waits for, no copy is removed.
func (s *Source) cleanStore() {
	if s.store == nil {
		return
	}
	lost := map[string]*read.Version{}
	for _, name := range s.store.recordedNames() {
		pin := s.decisions.pins[name]
		if s.files[name] == nil || pin != nil && pin.state == source.RolledBack && pin.use == ([32]byte{}) {
			lost[name] = nil
		}
	}
	s.forgetRecords(lost)
	s.markStore()
	s.background.Go(func() {
		err := s.store.syncAll()
		found, e := os.ReadDir(s.store.dir)
		var cut []string
		if s.store.uncleanStop {
			cut = s.store.damagedCopies()
		}
		s.store.enqueue(func() { s.tidyStore(found, cut, cmp.Or(err, e)) })
	})
}

// tidyStore removes those of the found copies that nothing needs, once all is on the disk, and keeps again what was lost, or
// was cut off. Where something was, older copies stay until the next start.
func (s *Source) tidyStore(found []fs.DirEntry, cut []string, err error) {
	if err != nil {
		if !errors.As(err, new(*fs.PathError)) { // else nothing is known, and who writes says why
			s.store.noteError(err)
		}
		return
	}
	if len(cut) > 0 {
		found = nil
	}
	for _, name := range append(cut, s.store.removeOrphans(found)...) {
		path := s.path(name)
		if t, ok := s.disks.Read(path, s.disks.Lstat(path), s.rules.MaxSize()); ok && t.Err == nil {
			s.store.rewriteCopy(name, &read.Version{ID: read.IDOf(t.Data, nil), Data: t.Data})
		}
	}
}

// forgetLost has nobody wait any more for files that a power failure may have taken.
func (s *Source) forgetLost() {
	for _, f := range s.files {
		f.maybeLost = false
	}
	s.markStore()
}

// markStore notes that this boot uses the store, once no file is missed of another.
func (s *Source) markStore() {
	for _, f := range s.files {
		if f.maybeLost {
			return
		}
	}
	if s.store != nil && s.synced {
		s.store.enqueue(func() {
			if !s.store.marked {
				s.store.markRunning()
			}
		})
	}
}

// maintainStore writes again what could not be written, and keeps the index short.
func (s *Source) maintainStore() {
	if s.store != nil && s.synced {
		s.store.retry()
		n := len(s.files) + indexSlack
		s.store.enqueue(func() { s.store.compact(n) })
		s.markStore()
	}
}
