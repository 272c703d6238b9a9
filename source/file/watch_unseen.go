package file

import (
	"maps"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// glanceTime is how often that is looked at of which no event tells: what is mounted,
// and files that are written under another name, or by way of a mapping.
const glanceTime = 500 * time.Millisecond

// glance adds to the work to do what changed without an event. It costs three system
// calls, and one more for each file that has another name.
func (s *Source) glance() {
	if now := time.Now(); now.Before(s.nextGlance) || !s.synced {
		return
	} else {
		s.nextGlance = now.Add(glanceTime)
	}
	if s.mounts.changed() || !s.home.same() {
		s.todo.all = true
	}
	for name, f := range s.files {
		if f.elsewhere {
			s.todo.names[name] = true
		}
	}
	s.glanceClosed()
}

// glanceClosed has files read that were closed, also where nothing seems to have
// changed: a mapping changes the time of a file when it is first written, not later.
func (s *Source) glanceClosed() {
	if s.watcher == nil || s.watcher.closings == nil {
		return
	}
	paths, lost := s.watcher.closings.take()
	s.todo.all, s.todo.hash = s.todo.all || lost, s.todo.hash || lost
	for _, path := range paths {
		about := s.classify(fsnotify.Event{Name: path, Op: fsnotify.Write})
		for _, name := range append(slices.Collect(maps.Keys(about.links)), about.name) {
			if f := s.files[name]; f != nil {
				s.todo.names[name] = true
				f.racy = true
			}
		}
	}
}
