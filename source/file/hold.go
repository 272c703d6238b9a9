package file

import (
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A hold says why the present version of a file is not used.
type hold struct {
	pin
	services []source.Key // that it would remove
	told     bool         // it is in the log
}

// faults returns what a status says of h.
func (h *hold) faults(path string) []source.Fault {
	if h == nil {
		return nil
	}
	f := source.Fault{Pos: source.Position{File: path}, Msg: "this change is held: " + h.why, Hint: "svcproxy confirm lets it through"}
	if h.state == source.RolledBack {
		f.Msg, f.Hint, f.Warning = h.why, "it is used until the file changes", true
	}
	return []source.Fault{f}
}

// maxHeldLines is how many files that one step holds have a line of the log each.
const maxHeldLines = 10

// log tells once.
func (h *hold) log(log *slog.Logger, path string) {
	if h.told {
		return
	}
	h.told = true
	if h.state == source.RolledBack {
		log.Info("service file rolled back", "file", path, "why", h.why)
		return
	}
	log.Warn("a change of a service file is held: its services stay as last accepted, until svcproxy confirm", "file", path, "why", h.why)
}

// Held returns how many files have a change that is held.
func (s *Source) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}

func (g Guard) off() bool { return g == Guard{} }

// keepsMissing reports whether a file that is recorded and missing at the start is more than one that was removed.
func (s *Source) keepsMissing() bool {
	return !s.guardSet.Load().off() || len(s.decisions.pins) > 0 || s.decisions.trial != nil
}

// remembered returns the names of all files of which something is in use or decided, sorted.
func (s *Source) remembered() []string {
	names := map[string]bool{}
	for _, name := range s.store.recordedNames() {
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

// decide has versions that are due count, or held, and adds what follows to ch. It returns
// what was in use of files that were removed. The caller holds s.mu.
func (s *Source) decide(due []*probe, first bool, ch *source.Changes) (removed map[string]*version) {
	set := *s.guardSet.Load()
	var open []*probe
	for _, p := range due {
		if pin := s.pinned(p, set); pin != nil {
			s.pinTo(p, pin, ch)
		} else {
			open = append(open, p)
		}
	}
	whole := slices.DeleteFunc(slices.Clone(open), func(p *probe) bool { return p.f.next.broken })
	verdict := s.judge(whole, set, time.Now())
	if set.Manual && !(first && s.isNew()) {
		for _, p := range whole {
			if p.f.good == nil && p.f.next != gone || p.f.good != nil && p.f.good.id != p.f.next.id {
				verdict[p.f] = "changes wait for svcproxy apply, " + changes(p.f.good, p.f.next)
			}
		}
	}
	removed = map[string]*version{}
	for _, p := range open {
		if why := verdict[p.f]; why != "" {
			s.hold(p, why, ch)
			continue
		}
		if p.f.next.broken {
			delete(s.held, p.name)
			p.f.hold = nil
		} else {
			s.unpin(p.name, p.f)
		}
		was := p.f.good
		if s.activate(p, ch); s.files[p.name] == nil {
			removed[p.name] = was
		}
	}
	return removed
}

// isNew reports whether nothing is known of any file from before.
func (s *Source) isNew() bool { return s.store == nil || len(s.store.recordedNames()) == 0 }

// pinned returns what was decided of p's version; nil: nothing that still holds.
func (s *Source) pinned(p *probe, set Guard) *pin {
	pin := s.decisions.pins[p.name]
	switch v := p.f.next; {
	case pin == nil, v.broken, v.id != pin.found:
		return nil
	case pin.state == source.Held && (set.off() || p.f.good != nil && p.f.good.id == v.id):
		return nil
	}
	return pin
}

// hold has a version not count that is due.
func (s *Source) hold(p *probe, why string, ch *source.Changes) {
	at := p.at
	if p.f.hold != nil && p.f.hold.state == source.Held {
		at = p.f.hold.since
	}
	s.pinTo(p, &pin{state: source.Held, found: p.f.next.id, since: at, why: why}, ch)
}

// pinTo does as was decided of p's version.
func (s *Source) pinTo(p *probe, pn *pin, ch *source.Changes) {
	f := p.f
	s.decisions.pins[p.name] = pn
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
	is := byKey(f.seen.services)
	for _, s := range f.good.services {
		if is[s.Key] == nil {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// unpin forgets what was decided of a file.
func (s *Source) unpin(name string, f *state) {
	delete(s.decisions.pins, name)
	delete(s.held, name)
	f.hold = nil
}

// changes says in a few words what a version changes.
func changes(was, is *version) string {
	d := diffOf(was, is)
	text := fmt.Sprintf("which this would make: %d services new, %d gone, %d changed", d.Added, d.Removed, d.Changed)
	if is == gone {
		text += "; the file is gone"
	}
	return text
}

// letGo has all that is held count, as one step. The caller holds s.mu.
func (s *Source) letGo() (ch source.Changes, names []string, removed map[string]*version) {
	removed = map[string]*version{}
	for _, name := range slices.Sorted(maps.Keys(s.held)) {
		f := s.held[name]
		was := f.good
		s.unpin(name, f)
		f.next = f.seen
		p := probe{name: name, f: f, at: time.Now(), v: f.seen}
		if s.activate(&p, &ch); s.files[name] == nil {
			removed[name] = was
		}
		names = append(names, name)
	}
	s.guard.forget()
	s.keepDecisions()
	return ch, names, removed
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
