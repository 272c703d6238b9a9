package file

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"svcproxy/source"
)

// step does the work there is and returns how long to wait for the next step. It does
// nothing when ctx ends meanwhile.
func (s *Source) step(ctx context.Context, sink source.Sink) time.Duration {
	if now := time.Now(); !now.Before(s.nextPoll) {
		s.todo.all, s.todo.hash = true, true
		s.nextPoll = now.Add(s.poll)
		s.upkeep()
	}
	s.glance()
	arriving := s.arriving()
	for name, f := range s.waiting {
		if s.loads[name] == nil && !time.Now().Before(s.dueTime(f, arriving)) {
			s.todo.names[name] = true                 // looked at once more before it counts
			s.todo.all = s.todo.all || f.next == gone // and so is the directory
		}
	}
	todo := s.todo
	s.todo = newWork()

	probes := s.ended(todo)
	names, ok := s.names(todo)
	if !ok {
		s.todo.all, s.todo.hash = true, todo.hash
		if !s.synced && s.store != nil && len(s.store.recorded()) > 0 {
			if known, ok := s.remember(ctx); ok {
				s.begin(known, sink) // all there is
			}
		}
		return blindPoll
	}
	found, ok := s.look(ctx, s.besides(names, todo), todo)
	if !ok {
		return blindPoll
	}
	if probes = append(probes, found...); !s.trust(probes) {
		s.todo.all, s.todo.hash = true, todo.hash
		return merge
	}
	if !s.synced {
		s.begin(probes, sink)
	} else {
		s.settle(probes, sink)
	}
	s.finish()
	return s.pause()
}

// trust reports whether what was found is true of the directory that was listed. A
// file seems to be gone, too, when the directory has gone meanwhile.
func (s *Source) trust(probes []probe) bool {
	missing := slices.ContainsFunc(probes, func(p probe) bool { return p.v == gone })
	return !missing || s.home.same()
}

// remember returns probes of what is recorded, for a directory that cannot be read.
// It returns false when ctx ended before.
func (s *Source) remember(ctx context.Context) ([]probe, bool) {
	names := s.store.recorded()
	slices.Sort(names)
	probes := make([]probe, len(names))
	for i, name := range names {
		probes[i] = probe{name: name, max: s.maxSize, rules: s.rules.Load(), err: errAway, at: time.Now()}
	}
	s.register(probes)
	return probes, s.each(ctx, len(probes), func(i int) {
		probes[i].look(false)
		s.restore(ctx, &probes[i])
	})
}

// names returns the names to look at, sorted. It returns false when it does not
// know which files there are: then nothing must be concluded.
func (s *Source) names(todo work) ([]string, bool) {
	names := todo.names
	if todo.all {
		s.watch() // first, so that what changes after the listing is told
		listed, moved, err := s.home.list(s.knows())
		s.noteDir(err)
		if err != nil {
			return nil, false
		}
		if moved && s.store != nil {
			s.store.putHome(s.home.text())
		}
		for name := range s.files {
			names[name] = true
		}
		for _, name := range listed {
			names[name] = true
		}
		if s.store != nil && s.store.crashed && !s.synced {
			for _, name := range s.store.recorded() {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names)), true
}

// knows reports whether there is anything that an empty directory would remove.
func (s *Source) knows() bool {
	return len(s.files) > 0 || !s.synced && s.store != nil && len(s.store.recorded()) > 0
}

// look finds out which version each of these files has now. A large one, once there
// are services, is read beside. It returns false when ctx ended before.
func (s *Source) look(ctx context.Context, names []string, todo work) ([]probe, bool) {
	probes := make([]probe, len(names))
	rules := s.rules.Load()
	inParallel(len(names), func(i int) {
		p := &probes[i]
		p.name, p.max, p.rules = names[i], s.maxSize, rules
		p.placed, p.home = todo.placed[p.name], s.home.id.fileID
		p.info, p.err = os.Lstat(s.path(p.name))
	})
	if links := s.register(probes); len(links) > 0 {
		s.watchLinks(links) // before the links are followed, so that what changes afterwards is told
	}
	ok := s.each(ctx, len(probes), func(i int) {
		p := &probes[i]
		p.at = time.Now()
		toRead := p.look(todo.hash)
		if p.beside = toRead && s.synced && p.stamp.size > large; p.beside {
			return
		}
		if toRead {
			p.load(ctx, s.parse)
		}
		if s.store != nil && !s.synced {
			s.restore(ctx, p)
		}
		s.judge(p)
	})
	if !ok {
		return nil, false
	}
	return slices.DeleteFunc(probes, func(p probe) bool {
		if p.beside {
			s.readBeside(ctx, p)
		}
		return p.beside
	}), true
}

// register gives each probe its state, and returns the names of those that are, or were, links.
func (s *Source) register(probes []probe) (links []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range probes {
		p := &probes[i]
		if p.f = s.files[p.name]; p.f == nil {
			p.f = &state{path: s.path(p.name)}
			s.files[p.name] = p.f
		}
		was := p.f.link
		p.accepted = p.f.good
		missing := errors.Is(p.err, fs.ErrNotExist) || p.err == errAway
		p.f.lost = missing && (p.f.lost || s.store != nil && s.store.crashed && !s.synced)
		p.f.link = p.err == nil && p.info.Mode()&fs.ModeSymlink != 0
		if was || p.f.link {
			links = append(links, p.name)
		}
	}
	return links
}

// begin hands on all there is: first what was accepted before this start, so
// that everyone gets back what was theirs, then what has changed since.
func (s *Source) begin(probes []probe, sink source.Sink) {
	before := s.resume(probes)
	if len(before) > 0 {
		sink.Apply(source.Changes{Set: before})
	}
	ch, news := s.take(probes, true)
	if len(before) == 0 || len(ch.Set)+len(ch.Delete) > 0 {
		sink.Apply(ch)
	}
	sink.Synced(Name)
	s.mu.Lock()
	s.synced = true
	s.mu.Unlock()
	s.report(news, true)
	s.tidy()
}

// settle takes what was found, and hands on what counts by now as one step.
func (s *Source) settle(probes []probe, sink source.Sink) {
	ch, news := s.take(probes, false)
	if len(ch.Set)+len(ch.Delete) > 0 {
		sink.Apply(ch)
	}
	s.report(news, false)
	var removed []string
	for _, p := range news {
		if p.v == gone {
			removed = append(removed, p.name)
		}
	}
	s.forget(removed)
}

// take returns what counts by now, as changes and as the files that it is about.
func (s *Source) take(probes []probe, first bool) (ch source.Changes, news []probe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	arriving := s.arriving()
	for _, p := range probes {
		if p.stamp.fileID != p.f.stamp.fileID {
			s.changed = p.at
		}
		p.f.take(&p, first)
		arriving = arriving || p.f.arrives()
	}
	for _, p := range probes {
		due := p.f.next != nil && !s.dueTime(p.f, arriving).After(p.at)
		switch {
		case due:
			delete(s.waiting, p.name)
			p.f.quiet = first
			s.count(&p, &ch)
		case p.f.next != nil:
			s.waiting[p.name] = p.f
		default:
			delete(s.waiting, p.name)
		}
		if due || p.good != nil {
			news = append(news, p)
		}
	}
	return ch, news
}

// count makes p's version count, and adds what follows to ch.
func (s *Source) count(p *probe, ch *source.Changes) {
	f, at := p.f, p.at
	if p.good != nil && p.v.broken { // before this start, as it seems
		at = later(p.changed(), p.last.at)
	}
	switch {
	case !f.count(at):
		delete(s.files, p.name)
		if f.used != nil {
			ch.Delete = append(ch.Delete, f.id())
		}
	case f.state == source.Accepted:
		ch.Set = append(ch.Set, s.hand(f))
	case f.used != f.good:
		s.withdraw(f, ch)
	}
}

// report logs one line for each file, at first one for all that are well. What
// somebody is to accept is logged when that is done.
func (s *Source) report(news []probe, first bool) {
	services := 0
	for _, p := range news {
		services += p.f.handed()
		switch {
		case p.v != gone && p.f.state == source.Accepted && s.store != nil:
		case p.v != gone:
			p.f.line(first).log(s.log)
		case p.f.seen != nil:
			s.log.Info("service file removed", "file", p.f.path, "services", p.f.handed())
		}
	}
	if first {
		s.log.Info("service files read", "dir", s.dir, "files", len(news), "services", services)
	}
}

// pause returns how long nothing needs to be done unless something happens.
func (s *Source) pause() time.Duration {
	until := s.nextPoll
	if s.todo.all || s.watchErr != "" {
		s.todo.all = true
		until = earlier(until, time.Now().Add(blindPoll))
	}
	until = earlier(until, time.Now().Add(glanceTime))
	arriving := s.arriving()
	for name, f := range s.waiting {
		if s.loads[name] == nil { // else it is looked at when that has ended
			until = earlier(until, s.dueTime(f, arriving))
		}
	}
	if len(s.todo.names) > 0 {
		until = earlier(until, time.Now().Add(merge))
	}
	return time.Until(until)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
