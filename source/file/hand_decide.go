package file

import (
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// decide has each version that is due either count or be held, and adds what follows to ch. It returns
// what was in use of files that were removed. The caller holds s.mu.
func (s *Source) decide(due []*probe, first bool, ch *source.Changes) (removed map[string]*read.Version) {
	guard := *s.guardSet.Load()
	var open []*probe
	for _, p := range due {
		if pin := s.pinned(p, guard); pin != nil {
			s.pinTo(p, pin, ch)
		} else {
			open = append(open, p)
		}
	}
	open = s.refuseMisfits(open)
	whole := slices.DeleteFunc(slices.Clone(open), func(p *probe) bool { return p.f.next.Broken })
	verdict := s.judge(whole, guard, time.Now())
	if guard.Manual && !(first && s.isNew()) {
		awaitApply(whole, verdict)
	}
	if len(verdict) > 0 {
		open = s.refuseWithoutHeld(open, verdict)
	}
	removed = map[string]*read.Version{}
	for _, p := range open {
		if why := verdict[p.f]; why != "" {
			s.hold(p, why, ch)
			continue
		}
		if p.f.next.Broken {
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
	s.complete(ch)
	return removed
}

// refuseWithoutHeld refuses versions that fit others only as these are once what is held of them is let
// through: until then they cannot be used. It returns all that are to count or be held.
func (s *Source) refuseWithoutHeld(open []*probe, verdict map[*state]string) []*probe {
	var held, rest []*probe
	for _, p := range open {
		if verdict[p.f] != "" {
			held = append(held, p)
		} else {
			rest = append(rest, p)
		}
	}
	return append(held, s.refuseMisfits(rest)...)
}
