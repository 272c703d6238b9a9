package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/parallel"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// prepareLook returns the names to look at, sorted. For a look at the whole directory it renews the
// watches and lists it. It returns false when it does not know which files there are: then
// nothing must be concluded.
func (s *looks) prepareLook(todo work) ([]string, bool) {
	names := maps.Clone(todo.names)
	if todo.all {
		s.updateWatches() // first, so that what changes after the listing is told
		listed, moved, err := s.list()
		s.logDirError(err)
		if err != nil {
			return nil, false
		}
		if moved && s.store != nil {
			s.store.PutDirectory(s.directory.encodeID())
		}
		for name := range s.files {
			names[name] = true
		}
		for _, name := range listed.Names {
			names[name] = true
		}
		all := s.store != nil && (s.store.UncleanStop() || s.keepsMissing())
		for name := range s.remembered() {
			if all || read.IsEndpointsFile(name) || slices.Contains(listed.Dirs, name) {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names)), true
}

// list returns the names of the service files, and whether the directory is another one than before.
func (s *looks) list() (l read.Listing, moved bool, err error) {
	l, ok := disk.Ask(s.disks, s.dir, func() read.Listing { return read.ListDir(s.dir) })
	if !ok {
		l.Err = fmt.Errorf("listing service files: %w", disk.ErrNoAnswer)
	}
	moved, err = s.directory.take(l, s.hasFiles())
	return l, moved, err
}

// hasFiles reports whether there is anything that an empty directory would remove.
func (s *table) hasFiles() bool {
	return len(s.files) > 0 || len(s.remembered()) > 0
}

// logDirError logs once why there are no files to list.
func (s *looks) logDirError(err error) {
	switch {
	case !s.noteProblem(&s.dirErr, err):
	case err == nil:
		s.log.Info("the directory of service files can be read", "dir", s.dir)
	case s.hasFiles():
		s.log.Error("cannot read the directory of service files; keeping the current services", "dir", s.dir, "err", err)
	default:
		s.log.Error("cannot read the directory of service files, and no last good version exists; not ready until it can be read", "dir", s.dir, "err", err)
	}
}

// lookAt finds out which version each of these files has now. A large one, once there
// are services, is read beside. It returns false when ctx ended before.
func (s *looks) lookAt(ctx context.Context, names []string, todo work) ([]probe, bool) {
	probes := make([]probe, len(names))
	rules := s.revision.Load()
	parallel.Do(len(names), func(i int) {
		p := &probes[i]
		p.name, p.rules, p.revision = names[i], s.rules, rules
		p.renamed = todo.renamed[p.name]
		p.PathInfo = s.disks.Lstat(s.path(p.name))
	})
	if links := s.register(probes); len(links) > 0 {
		s.updateLinkWatches(links) // before the links are followed, so that what changes afterwards is told
	}
	large := make([]bool, len(probes))
	ok := forEach(ctx, len(probes), func(i int) {
		p := &probes[i]
		p.at = time.Now()
		is := p.PathInfo
		if p.IsLink() {
			is = s.disks.Follow(p.f.path, is)
		}
		toRead := p.examine(is, s.directory.lastID.Dev, todo.hash)
		if large[i] = toRead && s.synced && p.stamp.Size > largeSize && !s.disks.Silent(p.f.path, p.PathInfo); large[i] {
			return
		}
		if toRead {
			t, ok := s.disks.Read(p.f.path, p.PathInfo, p.rules.MaxSize())
			p.take(ctx, t, ok, s.parse)
		}
		if s.store != nil && !s.synced {
			s.restore(ctx, p)
		}
		s.assess(p)
	})
	if !ok {
		return nil, false
	}
	looked := probes[:0]
	for i, p := range probes {
		if large[i] {
			s.startLargeRead(ctx, p)
		} else {
			looked = append(looked, p)
		}
	}
	return looked, true
}

// register gives each probe its state, and returns the names of those that are, or were, links. A missing
// list that services refer to is not removed. At the start, references are not known yet, so every
// missing list counts as referred to.
func (s *looks) register(probes []probe) (links []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	remembered := s.remembered()
	var referred map[string]bool // nil: not asked for yet
	for i := range probes {
		p := &probes[i]
		if p.f = s.files[p.name]; p.f == nil {
			p.f = s.newState(p.name)
			s.files[p.name] = p.f
		}
		was := p.f.link
		p.accepted = p.f.good
		p.known = p.f.seen != nil || remembered[p.name]
		missing := errors.Is(p.Err, fs.ErrNotExist) || p.Err == read.ErrDirAway
		if missing && p.f.isList() {
			if referred == nil && s.synced {
				referred = s.referredTo()
			}
			p.referred = !s.synced || p.f.used != nil && referred[p.name]
		}
		p.f.maybeLost = missing && (p.f.maybeLost || s.store != nil && s.store.UncleanStop() && !s.synced)
		if p.Err != disk.ErrNoAnswer {
			p.f.link = p.IsLink()
		}
		if was || p.f.link {
			links = append(links, p.name)
		}
	}
	return links
}

// forEach calls f with 0 to n-1 on all cores. It returns false when ctx ended before.
func forEach(ctx context.Context, n int, f func(i int)) bool {
	parallel.Do(n, func(i int) {
		if ctx.Err() == nil {
			f(i)
		}
	})
	return ctx.Err() == nil
}
