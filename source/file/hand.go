package file

import (
	"log/slog"
	"maps"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// handFirst hands on all there is: first what was accepted before this start, so
// that everyone gets back what was theirs, then what has changed since.
func (s *waits) handFirst(probes []probe, sink source.Sink) {
	before := s.resumeAccepted(probes)
	if len(before) > 0 {
		sink.Apply(source.Changes{Set: before})
	}
	ch, news := s.collect(probes, true)
	if len(before) == 0 || len(ch.Set)+len(ch.Delete) > 0 {
		sink.Apply(ch)
	}
	sink.Synced(s.source)
	s.mu.Lock()
	s.synced = true
	s.mu.Unlock()
	s.logFiles(news, true)
	s.wentBack()
	s.cleanStore()
}

// resumeAccepted takes up what was accepted before this start, so that everyone first
// gets back what was theirs. It returns the units of it.
func (s *waits) resumeAccepted(probes []probe) (units []source.Unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range probes {
		p, f := &probes[i], probes[i].f
		if p.pin != nil {
			s.decisions.pin(p.name, p.pin)
		}
		if p.unpin {
			s.decisions.unpin(p.name)
		}
		if p.last.Removed() {
			continue
		}
		f.claimedAt, f.damage = p.last.Since, p.damage
		for _, d := range p.damage {
			s.log.Warn(d.Msg, "file", f.path, "copy", d.Pos.File)
		}
		if p.good != nil {
			f.seen, f.used, f.good = p.good, p.good, p.good
			if p.last.Sum != p.lost {
				f.older = p.good
			}
			f.state, f.since = source.Accepted, p.last.At
			f.unlogged, f.atStart = !f.isList(), true
			switch {
			case !f.isList():
				units = append(units, s.outgoing(f))
			case p.damage != nil: // nobody accepts a list, so its copy is written again from here
				s.entries[p.name] = keep.Entry{Record: p.last, Version: p.good}
			}
		}
	}
	ch, p := source.Changes{Set: units}, s.newPlan(nil)
	if t := s.decisions.trial; t != nil && t.back {
		p.back = t.Kept
	}
	s.complete(p, &ch)
	return ch.Set
}

// handChanges takes what was found, and hands on what counts by now as one step.
func (s *waits) handChanges(probes []probe, sink source.Sink) {
	ch, news := s.collect(probes, false)
	apply(sink, ch)
	s.logFiles(news, false)
}

// collect returns what counts by now, as changes and as the files that it is about.
func (s *waits) collect(probes []probe, first bool) (ch source.Changes, news []probe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.keepStep()
	arriving := s.arriving()
	for _, p := range probes {
		if p.stamp.FileID != p.f.stamp.FileID {
			s.lastChange = p.at
		}
		p.f.observe(&p, first)
		arriving = arriving || p.f.arrives()
	}
	var due []*probe
	for i := range probes {
		p := &probes[i]
		isDue := p.f.next != nil && (p.certain || !s.dueTime(p.f, arriving).After(p.at))
		switch {
		case isDue:
			delete(s.waiting, p.name)
			p.f.atStart = first
			due = append(due, p)
		case p.f.next != nil:
			s.waiting[p.name] = p.f
		default:
			delete(s.waiting, p.name)
		}
		if isDue || p.good != nil {
			news = append(news, *p)
		}
	}
	s.decide(due, first, &ch)
	return ch, news
}

// logFiles logs a line for each of the first files, at first one for all that are well. What
// the Tracker has to accept is logged when that is done.
func (s *waits) logFiles(news []probe, first bool) {
	services, held := 0, 0
	var lines []line
	for _, p := range news {
		services += p.f.used.Count()
		switch {
		case p.f.hold != nil:
			if held++; held <= maxHeldLines {
				p.f.hold.log(s.log, p.f.path)
			}
		case p.v != read.Gone && p.f.state == source.Accepted && s.store != nil && !p.f.isList():
		case p.v != read.Gone:
			lines = append(lines, p.f.summary(first))
		case p.f.seen != nil && p.f.isList():
			lines = append(lines, line{slog.LevelInfo, "file of endpoints removed, which no service refers to", []any{"file", p.f.path}})
		case p.f.seen != nil:
			lines = append(lines, line{slog.LevelInfo, "service file removed", []any{"file", p.f.path, "services", p.f.used.Count()}})
		}
	}
	logLines(s.log, lines)
	if more := held - maxHeldLines; more > 0 {
		s.log.Warn("holding changes of more service files", "files", more)
	}
	if first {
		s.log.Info("service files read", s.where, "files", len(news), "services", services)
	}
}

// decide has each version that is due either count or be held, and adds what follows to ch. The caller holds s.mu.
func (s *guarding) decide(due []*probe, first bool, ch *source.Changes) {
	guard := *s.guardSet.Load()
	var open []*probe
	for _, p := range due {
		if pin := s.pinned(p, guard); pin != nil {
			s.pinTo(p, pin, ch)
		} else {
			open = append(open, p)
		}
	}
	plan, open, verdict := s.weigh(open, guard, first)
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
		s.activate(p, ch)
	}
	s.complete(plan, ch)
}

// weigh returns what of a step is to be used, what of it counts or is held, and why that is held. A file may fit only a list
// that is held, and a service have moved to a file that is: so what is held leaves the plan, and the rest is bound and
// judged again.
func (s *guarding) weigh(open []*probe, guard Guard, first bool) (p *plan, counts []*probe, verdict map[*state]string) {
	p, verdict = s.newPlan(map[*state]*read.Version{}), map[*state]string{}
	open = p.tryAgain(open)
	for _, pr := range open {
		if !pr.f.next.Broken {
			p.next[pr.f] = pr.f.next
		}
	}
	if guard.Manual && !(first && s.isNew()) {
		awaitApply(p, verdict)
		p.without(verdict)
	}
	for {
		unfit := p.takeUnfit()
		j := s.judge(p, nil, guard, time.Now())
		maps.DeleteFunc(j.verdict, func(f *state, _ string) bool { return p.next[f] == nil })
		if len(j.verdict) == 0 {
			j.note()
			return p, p.refuse(open, unfit), verdict
		}
		maps.Copy(verdict, j.verdict)
		maps.Copy(p.next, unfit) // it may fit without what is held
		p.without(j.verdict)
	}
}
