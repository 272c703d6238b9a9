package file

import (
	"fmt"
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
