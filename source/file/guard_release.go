package file

import (
	"maps"
	"path/filepath"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// Held returns how many files have a change that is held.
func (s *Source) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}

// release lets all go that is held, and returns the files.
func (s *Source) release(sink source.Sink) []string {
	s.mu.Lock()
	ch, names, removed := s.letGo()
	s.mu.Unlock()
	if len(ch.Set)+len(ch.Delete) > 0 {
		sink.Apply(ch)
	}
	s.forgetRecords(removed)
	if len(names) > 0 {
		s.log.Info("changes of service files that were held are let through", "files", len(names), "first", filepath.Join(s.dir, names[0]))
	}
	return names
}

// releaseIfOff lets go what is held where nothing is to be held any more.
func (s *Source) releaseIfOff(sink source.Sink) {
	if len(s.held) > 0 && s.guardSet.Load().off() {
		s.release(sink)
	}
}

// letGo has all that is held count, as one step. The caller holds s.mu.
func (s *Source) letGo() (ch source.Changes, names []string, removed map[string]*version) {
	removed = map[string]*version{}
	next := map[*state]*version{}
	for _, f := range s.held {
		next[f] = f.seen
	}
	misfits := s.fit(next)
	for _, name := range slices.Sorted(maps.Keys(s.held)) {
		f := s.held[name]
		was := f.good
		if faults := misfits[f]; faults != nil {
			f.seen = f.seen.unfit(faults)
		}
		s.unpin(name, f)
		p := probe{name: name, f: f, at: time.Now(), v: f.seen}
		if s.activateHeld(&p, &ch); s.files[name] == nil {
			removed[name] = was
		}
		names = append(names, name)
	}
	s.removed.forget()
	s.complete(&ch)
	s.keepStep()
	return ch, names, removed
}

// activateHeld has the version count that is held. A newer one, that waits, goes on waiting.
func (s *Source) activateHeld(p *probe, ch *source.Changes) {
	f := p.f
	newer, due, since := f.next, f.due, f.changingSince
	f.next = p.v
	s.activate(p, ch)
	if newer != nil {
		f.next, f.due, f.changingSince = newer, due, since
	}
}
