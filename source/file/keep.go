package file

import (
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// damage says why a copy is not used.
func (s *Source) damage(name string, sum [32]byte, why string) []source.Fault {
	return []source.Fault{{
		Pos: source.Position{File: s.store.CopyPath(name, sum)},
		Msg: "the copy of the last good version cannot be used: " + why, Warning: true,
	}}
}

// forgetRecords drops the records of files that were removed, which had these versions.
func (s *Source) forgetRecords(versions map[string]*read.Version) {
	if s.store == nil || len(versions) == 0 {
		return
	}
	removed := make(map[string]keep.Entry, len(versions))
	for name, v := range versions {
		removed[name] = keep.Entry{Was: v}
	}
	s.recordMu.Lock()
	defer s.recordMu.Unlock()
	s.store.Put(removed)
}

// cleanStore does what can wait until all services have been handed on: it drops what
// is kept of files that do not exist any more, and keeps again what was lost, which nothing else waits for.
func (s *Source) cleanStore() {
	if s.store == nil {
		return
	}
	lost := map[string]*read.Version{}
	for _, name := range s.store.Names() {
		pin := s.decisions.pins[name]
		if s.files[name] == nil || pin != nil && pin.state == source.RolledBack && pin.use == ([32]byte{}) {
			lost[name] = nil
		}
	}
	s.forgetRecords(lost)
	s.markStore()
	s.background.Go(func() { s.store.Tidy(s.contents) })
}

// contents returns what a file has, false if that cannot be read.
func (s *Source) contents(name string) ([]byte, bool) {
	path := s.path(name)
	t, ok := s.disks.Read(path, s.disks.Lstat(path), s.rules.MaxSize())
	return t.Data, ok && t.Err == nil
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
		s.store.MarkUsed()
	}
}

// maintainStore writes again what could not be written, and keeps the index short.
func (s *Source) maintainStore() {
	if s.store != nil && s.synced {
		s.store.Maintain(len(s.files))
		s.markStore()
	}
}
