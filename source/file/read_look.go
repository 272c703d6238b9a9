package file

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"
)

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

// noteDir logs once why there are no files to list.
func (s *Source) noteDir(err error) {
	switch {
	case !s.news(&s.dirErr, err):
	case err == nil:
		s.log.Info("the directory of service files can be read", "dir", s.dir)
	case s.knows():
		s.log.Error("the directory of service files cannot be read: services stay as they are", "dir", s.dir, "err", err)
	default:
		s.log.Error("the directory of service files cannot be read, and nothing is known of its services: not ready before it can", "dir", s.dir, "err", err)
	}
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

// each calls f with 0 to n-1 on all cores. It returns false when ctx ended before.
func (s *Source) each(ctx context.Context, n int, f func(i int)) bool {
	done := make(chan struct{})
	s.others.Go(func() {
		defer close(done)
		inParallel(n, func(i int) {
			if ctx.Err() == nil {
				f(i)
			}
		})
	})
	select {
	case <-done:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
