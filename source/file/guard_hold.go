package file

import (
	"fmt"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// awaitApply has all files held that a plan changes.
func awaitApply(p *plan, verdict map[*state]string) {
	for f, v := range p.next {
		if f.good == nil && v != read.Gone || f.good != nil && f.good.ID != v.ID {
			verdict[f] = "changes wait for svcproxy apply, " + changes(f.good, v)
		}
	}
}

// isNew reports whether nothing is known of any file from before.
func (s *guarding) isNew() bool { return s.store == nil || len(s.store.Names()) == 0 }

// pinned returns what was decided of p's version; nil: nothing that still holds.
func (s *guarding) pinned(p *probe, guard Guard) *pin {
	pin := s.decisions.pins[p.name]
	switch v := p.f.next; {
	case pin == nil, v.Broken, v.ID != pin.Found:
		return nil
	case pin.State == source.Held && (guard.off() || p.f.good != nil && p.f.good.ID == v.ID):
		return nil
	case pin.State == source.Held && !guard.Manual && p.f.good == nil: // what it was to keep in use is lost
		return nil
	}
	return pin
}

// hold keeps a version that is due from being used, until it is released or another one counts.
func (s *guarding) hold(p *probe, why string, ch *source.Changes) {
	at := p.at
	if p.f.hold != nil && p.f.hold.State == source.Held {
		at = p.f.hold.Since
	}
	s.pinTo(p, &pin{State: source.Held, Found: p.f.next.ID, Since: at, Why: why}, ch)
}

// pinTo keeps p's version from being used, as was decided of it.
func (s *guarding) pinTo(p *probe, pn *pin, ch *source.Changes) {
	f := p.f
	s.decisions.pin(p.name, pn)
	f.seen, f.next, f.changingSince = f.next, nil, time.Time{}
	f.state, f.since, f.hold = pn.State, pn.Since, &hold{pin: *pn, services: removedServices(f)}
	delete(s.held, p.name)
	if pn.State == source.Held {
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
func (s *guarding) unpin(name string, f *state) {
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

// Held returns how many files have a change that is held, and answers of a server.
func (s *Source) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return len(s.held) + s.server.Held()
	}
	return len(s.held)
}

// release lets all go that is held. It returns the files whose change is let through, and why another is not: the first fault of each.
func (s *guarding) release(sink source.Sink) (files []string, faults []source.Fault) {
	s.mu.Lock()
	ch, files, faults := s.letGo()
	s.mu.Unlock()
	apply(sink, ch)
	if len(files) > 0 {
		s.log.Info("released held changes of service files", "files", len(files), "first", s.path(files[0]))
	}
	if len(faults) > 0 {
		s.log.Warn("held changes of service files cannot be used", "files", len(faults), "first", faults[0].String())
	}
	return files, faults
}

// releaseIfOff lets go what is held where nothing is to be held any more.
func (s *guarding) releaseIfOff(sink source.Sink) {
	if len(s.held) > 0 && s.guardSet.Load().off() {
		s.release(sink)
	}
}

// letGo has all that is held count, as one step, with what fits it and could not be used without. The caller holds s.mu.
func (s *guarding) letGo() (ch source.Changes, files []string, faults []source.Fault) {
	p := s.planHeld()
	for _, name := range sortedNames(s.files) {
		f := s.files[name]
		v, isHeld := p.next[f], s.held[name] != nil
		if v == nil {
			continue
		}
		if b := p.of(f, v); !b.Unfit {
			files = append(files, name)
		} else if isHeld {
			v = v.Unfit(b.AllFaults())
			faults = append(faults, v.Faults[0])
		} else {
			continue
		}
		s.unpin(name, f)
		s.activateHeld(&probe{name: name, f: f, at: time.Now(), v: v}, &ch)
	}
	s.removed = recentRemovals{} // what was removed so far counts no more
	s.refit = true
	s.complete(p, &ch)
	misfits := s.misfitsByFile()
	for _, name := range files {
		faults = append(faults, misfits[name][:min(1, len(misfits[name]))]...)
	}
	s.keepStep()
	return ch, files, faults
}

// planHeld plans to use all that is held, and what could not be used without, unless the guard holds that. With
// [[owners]], a version that was judged by former rules is judged again first: its share may be another by now.
func (s *guarding) planHeld() *plan {
	p := s.newPlan(map[*state]*read.Version{})
	for _, f := range s.held {
		if !s.rules.Shared() || f.seen == read.Gone || f.seen.Revision.Load() == p.revision {
			p.next[f] = f.seen
		}
	}
	waiting := map[*state]bool{}
	for name, f := range s.files {
		if s.waitsToFit(name, f) && s.held[name] == nil {
			p.next[f], waiting[f] = f.seen.Original, true
		}
	}
	p.without(s.judge(p, waiting, *s.guardSet.Load(), time.Now()).verdict)
	return p
}

// activateHeld has the version count that is held. A newer one, that waits, goes on waiting.
func (s *guarding) activateHeld(p *probe, ch *source.Changes) {
	f := p.f
	newer, due, since := f.next, f.due, f.changingSince
	f.next = p.v
	s.activate(p, ch)
	if newer != nil {
		f.next, f.due, f.changingSince = newer, due, since
	}
}
