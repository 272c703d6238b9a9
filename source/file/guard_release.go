package file

import (
	"path/filepath"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// Held returns how many files have a change that is held.
func (s *Source) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}

// A released says what became of what was held.
type released struct {
	files  []string       // those whose change is let through
	faults []source.Fault // why another change is not: the first of each file
}

// release lets all go that is held.
func (s *Source) release(sink source.Sink) released {
	s.mu.Lock()
	ch, r, removed := s.letGo()
	s.mu.Unlock()
	if len(ch.Set)+len(ch.Delete) > 0 {
		sink.Apply(ch)
	}
	s.forgetRecords(removed)
	if len(r.files) > 0 {
		s.log.Info("changes of service files that were held are let through", "files", len(r.files), "first", filepath.Join(s.dir, r.files[0]))
	}
	if len(r.faults) > 0 {
		s.log.Warn("changes of service files that were held cannot be used", "files", len(r.faults), "first", r.faults[0].String())
	}
	return r
}

// releaseIfOff lets go what is held where nothing is to be held any more.
func (s *Source) releaseIfOff(sink source.Sink) {
	if len(s.held) > 0 && s.guardSet.Load().off() {
		s.release(sink)
	}
}

// letGo has all that is held count, as one step, with what fits it and could not be used without. The caller holds s.mu.
func (s *Source) letGo() (ch source.Changes, r released, removed map[string]*read.Version) {
	removed = map[string]*read.Version{}
	next := s.waitingToFit()
	for _, f := range s.held {
		next[f] = f.seen
	}
	misfits := s.fit(next)
	for _, name := range sortedNames(s.files) {
		f := s.files[name]
		v, faults := next[f], misfits[f]
		switch isHeld := s.held[name] != nil; {
		case v == nil, faults != nil && !isHeld:
			continue
		case faults != nil:
			v = v.Unfit(faults)
			r.faults = append(r.faults, faults[0])
		default:
			r.files = append(r.files, name)
		}
		was := f.good
		s.unpin(name, f)
		p := probe{name: name, f: f, at: time.Now(), v: v}
		if s.activateHeld(&p, &ch); s.files[name] == nil {
			removed[name] = was
		}
	}
	s.removed = recentRemovals{} // what was removed so far counts no more
	s.refit = true
	s.complete(&ch)
	s.keepStep()
	return ch, r, removed
}

// waitingToFit returns the versions that could not be used with what others say, and that the guard does not hold
// if they now can be.
func (s *Source) waitingToFit() map[*state]*read.Version {
	next := map[*state]*read.Version{}
	var due []*probe
	for _, name := range sortedNames(s.files) {
		if f := s.files[name]; s.waitsToFit(name, f) {
			f.next = f.seen.Original
			next[f] = f.next
			due = append(due, &probe{name: name, f: f, at: time.Now()})
		}
	}
	verdict := s.judge(due, *s.guardSet.Load(), time.Now())
	for _, p := range due {
		if p.f.next = nil; verdict[p.f] != "" {
			delete(next, p.f)
		}
	}
	return next
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
