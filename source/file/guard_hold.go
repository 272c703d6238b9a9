package file

import (
	"fmt"
	"path/filepath"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// awaitApply has all of these files held that change something.
func awaitApply(whole []*probe, verdict map[*state]string) {
	for _, p := range whole {
		if p.f.good == nil && p.f.next != read.Gone || p.f.good != nil && p.f.good.ID != p.f.next.ID {
			verdict[p.f] = "changes wait for svcproxy apply, " + changes(p.f.good, p.f.next)
		}
	}
}

// isNew reports whether nothing is known of any file from before.
func (s *Source) isNew() bool { return s.store == nil || len(s.store.Names()) == 0 }

// pinned returns what was decided of p's version; nil: nothing that still holds.
func (s *Source) pinned(p *probe, guard Guard) *pin {
	pin := s.decisions.pins[p.name]
	switch v := p.f.next; {
	case pin == nil, v.Broken, v.ID != pin.found:
		return nil
	case pin.state == source.Held && (guard.off() || p.f.good != nil && p.f.good.ID == v.ID):
		return nil
	case pin.state == source.Held && !guard.Manual && p.f.good == nil: // what it was to keep in use is lost
		return nil
	}
	return pin
}

// hold keeps a version that is due from being used, until it is released or another one counts.
func (s *Source) hold(p *probe, why string, ch *source.Changes) {
	at := p.at
	if p.f.hold != nil && p.f.hold.state == source.Held {
		at = p.f.hold.since
	}
	s.pinTo(p, &pin{state: source.Held, found: p.f.next.ID, since: at, why: why}, ch)
}

// pinTo keeps p's version from being used, as was decided of it.
func (s *Source) pinTo(p *probe, pn *pin, ch *source.Changes) {
	f := p.f
	s.decisions.pin(p.name, pn)
	f.seen, f.next, f.changingSince = f.next, nil, time.Time{}
	f.state, f.since, f.hold = pn.state, pn.since, &hold{pin: *pn, services: removedServices(f)}
	delete(s.held, p.name)
	if pn.state == source.Held {
		s.held[p.name] = f
	}
	if f.used != f.good {
		s.withdraw(f, ch)
	}
}

// removedServices returns what the version that is held would remove.
func removedServices(f *state) (keys []source.Key) {
	if f.good == nil {
		return nil
	}
	is := f.seen.ByKey()
	for _, s := range f.good.Services {
		if now := is[s.Key]; !s.Disabled && (now == nil || now.Disabled) {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// unpin forgets what was decided of a file.
func (s *Source) unpin(name string, f *state) {
	s.decisions.unpin(name)
	delete(s.held, name)
	f.hold = nil
}

// changes says in a few words what a version changes.
func changes(was, is *read.Version) string {
	d := keep.DiffOf(was, is)
	what := "services"
	if was != nil && was.List != nil || is.List != nil {
		what = "endpoints of the list"
	}
	text := fmt.Sprintf("which this would make: %d %s new, %d gone, %d changed", d.Added, what, d.Removed, d.Changed)
	if is == read.Gone {
		text += "; the file is gone"
	}
	return text
}

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
		s.log.Info("released held changes of service files", "files", len(r.files), "first", filepath.Join(s.dir, r.files[0]))
	}
	if len(r.faults) > 0 {
		s.log.Warn("held changes of service files cannot be used", "files", len(r.faults), "first", r.faults[0].String())
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
