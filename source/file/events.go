package file

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
	"svcproxy.dev/svcproxy/source/watch"
)

// noteEvent adds what an event is about to the work to do, if it is about us.
func (s *looks) noteEvent(ev fsnotify.Event, next *stepTimer) {
	from := s.renamedFrom // the kernel tells of both ends of a rename at once
	s.renamedFrom = ""
	if ev.Has(fsnotify.Rename) {
		s.renamedFrom = ev.Name
	}
	about := s.classify(ev)
	switch name := about.Name; {
	case read.IsServiceFile(name):
		s.todo.names[name] = true
		s.todo.renamed[name] = ev.Has(fsnotify.Create) && from != "" && from != ev.Name
		if ev.Has(fsnotify.Create) && s.inUse(name) {
			next.soon()
			return
		}
		next.within(mergeTime)
	case about.All || len(about.Links) > 0:
		next.within(mergeTime)
	}
}

// classify returns what an event is about, after adding to the work to do what is to
// be looked at besides the file of that name.
func (s *looks) classify(ev fsnotify.Event) watch.Target {
	about := s.watcher.Classify(ev)
	s.todo.all = s.todo.all || about.All
	maps.Copy(s.todo.names, about.Links)
	return about
}

// inUse reports whether there are services of a file. Another one that takes its
// name is complete if it was renamed or linked, and need not wait for more
// events. If it is only beginning to be written it lacks something yet, and
// so waits for the quiet time.
func (s *looks) inUse(name string) bool {
	f := s.files[name]
	return f != nil && (f.used.Count() > 0 || f.used != nil && f.isList())
}

// openWatcher makes the watcher unless there is one: that fails where too many
// others of the user have one, and is tried at each look at the directory.
func (s *looks) openWatcher() {
	if s.watcher != nil || s.open == nil {
		return
	}
	w, err := s.open(s.dir, s.disks)
	s.logWatchError(err)
	if err == nil {
		s.watcher = w
	}
}

// updateWatches sets the watches that are needed now.
func (s *looks) updateWatches() {
	s.openWatcher()
	if s.watcher == nil {
		return
	}
	var linked []string
	for name, f := range s.files {
		if f.link {
			linked = append(linked, name)
		}
	}
	s.logWatchError(s.watcher.WatchAll(linked))
}

// updateLinkWatches is updateWatches where nothing has changed but these names, some of which are links.
func (s *looks) updateLinkWatches(names []string) {
	if s.watcher == nil {
		return
	}
	isLink := func(name string) bool { return s.files[name] != nil && s.files[name].link }
	if err := s.watcher.WatchLinks(names, isLink); err != nil {
		s.logWatchError(err) // updateWatches finds out when it is over
	}
}

// logWatchError logs once why no events come; nil: they do.
func (s *looks) logWatchError(err error) {
	switch { // these errors do not say what to do about them
	case errors.Is(err, unix.EMFILE):
		err = fmt.Errorf("%w; raise fs.inotify.max_user_instances, or the limit of open files", err)
	case errors.Is(err, unix.ENOSPC):
		err = fmt.Errorf("%w; raise fs.inotify.max_user_watches", err)
	}
	if s.noteProblem(&s.watchErr, err) && err != nil {
		s.log.Warn("cannot watch service files; listing them every second", "err", err)
	}
}

// unwatchedPoll is how often that is looked at of which no event tells: what is mounted,
// and files that are written under another name, or by way of a mapping.
const unwatchedPoll = 500 * time.Millisecond

// pollUnwatched adds to the work to do what changed without an event. It costs three system
// calls, and one more for each file that has another name.
func (s *looks) pollUnwatched() {
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
func (s *looks) pollClosed() {
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
func (s *looks) sameDirectory() bool {
	same, ok := disk.Ask(s.disks, s.dir, (*s.directory).unchanged)
	return ok && same
}
