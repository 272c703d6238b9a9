package file

import (
	"maps"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
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

// isMounted reports whether a file is mounted where it is, and so may be written
// somewhere else. Before Linux 5.8 nobody knows.
func isMounted(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// mounts is the table of mounts of this process, /proc/self/mountinfo; -1: nobody
// tells of changes, and the poll finds them.
type mounts int

// openMounts does not use os.Open, whose poller would take the events.
func openMounts() mounts {
	fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return mounts(fd)
}

// changed reports whether something was mounted or unmounted since the last call,
// proc_pid_mountinfo(5).
func (m mounts) changed() bool {
	if m < 0 {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(m), Events: unix.POLLPRI}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&unix.POLLPRI != 0
}

func (m mounts) close() {
	if m >= 0 {
		_ = unix.Close(int(m))
	}
}
