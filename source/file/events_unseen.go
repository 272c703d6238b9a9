package file

import (
	"maps"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcproxy.dev/svcproxy/source/disk"
)

// unwatchedPoll is how often that is looked at of which no event tells: what is mounted,
// and files that are written under another name, or by way of a mapping.
const unwatchedPoll = 500 * time.Millisecond

// pollUnwatched adds to the work to do what changed without an event. It costs three system
// calls, and one more for each file that has another name.
func (s *Source) pollUnwatched() {
	if now := time.Now(); now.Before(s.nextUnwatched) || !s.synced {
		return
	} else {
		s.nextUnwatched = now.Add(unwatchedPoll)
	}
	if s.mounts.Changed() || !s.sameDirectory() {
		s.todo.all = true
	}
	for name, f := range s.files {
		if f.elsewhere {
			s.todo.names[name] = true
		}
	}
	s.pollClosed()
}

// pollClosed has files read that were closed, also where nothing seems to have
// changed: a mapping changes the time of a file when it is first written, not later.
func (s *Source) pollClosed() {
	if s.watcher == nil {
		return
	}
	paths, lost := s.watcher.Closed()
	s.todo.all, s.todo.hash = s.todo.all || lost, s.todo.hash || lost
	for _, path := range paths {
		about := s.classify(fsnotify.Event{Name: path, Op: fsnotify.Write})
		for _, name := range append(slices.Collect(maps.Keys(about.Links)), about.Name) {
			if f := s.files[name]; f != nil {
				s.todo.names[name] = true
				f.racy = true
			}
		}
	}
}

// sameDirectory reports whether the directory is known to be the one that was listed.
func (s *Source) sameDirectory() bool {
	same, ok := disk.Ask(s.disks, s.dir, (*s.directory).unchanged)
	return ok && same
}
