// Package watch tells that something happened to the files of a directory, or to what links in it lead to.
//
//	watch   the Watcher: which directories to watch, and what an event is about
//	links   on which paths the meaning of a link depends
//	closed  files that were closed by a writer, of which fsnotify does not tell
//	mounts  changes of the table of mounts
//	remote  file systems on which other hosts write, and nobody tells of it
package watch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"

	"svcproxy.dev/svcproxy/source/disk"
)

// A Watcher tells that something happened to a directory of files, or to what
// links in it lead to. What happened is for the reader to find out: events can
// be lost, and say little about links.
//
// A watch is on a directory (inode), not on a path. So every directory is
// watched in which something can happen that gives our paths another meaning:
// the directory itself, and each one that holds a link on the way to it or to
// one of our files, or that file. The parent of the directory is watched only
// while the directory does not exist: fsnotify asks for all events, and others
// may write there all the time. Its own watch reports that the directory was
// removed or renamed, inotify(7), but no mount, no rename of a directory above it, and
// no removal of an empty directory that a process has open: the reader has to check
// now and then that the directory is the same.
type Watcher struct {
	*fsnotify.Watcher
	closeEvents *closeEvents
	disks       *disk.Asker

	dir     string                 // absolute
	realDir string                 // dir with all links followed; empty while it does not exist
	watched map[string]disk.FileID // directories, as they were when the watch was set

	dirPaths  map[string]bool            // paths of the directory itself, and of links on the way to it
	linksOver map[string]map[string]bool // which links in the directory lead over a path, by their names
	linkPaths map[string][]string        // the other way round
	needed    map[string]int             // directories to watch, and how many of the paths above are in each
}

// New returns a Watcher of a directory, which need not exist, that asks disks where links lead. It watches nothing before
// WatchAll.
func New(dir string, disks *disk.Asker) (*Watcher, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", dir, err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", dir, err)
	}
	c, err := newCloseEvents()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watching %s: %w", dir, err), w.Close())
	}
	out := &Watcher{Watcher: w, closeEvents: c, disks: disks, dir: abs, watched: map[string]disk.FileID{}}
	out.reset()
	return out, nil
}

// Close ends all watches.
func (w *Watcher) Close() {
	_ = w.Watcher.Close()
	w.closeEvents.close()
}

// Closed returns the paths of files that writers closed since the last call. lost: there may be others.
func (w *Watcher) Closed() (paths []string, lost bool) { return w.closeEvents.drain() }

// Replay has w tell of these events, as of dir, in place of its own: for tests.
func (w *Watcher) Replay(dir string, events chan fsnotify.Event, errs chan error) {
	w.closeEvents.close()
	w.closeEvents.fd = -1
	w.Events, w.Errors, w.dir, w.realDir = events, errs, dir, dir
}

// reset forgets all paths but those of the directory itself.
func (w *Watcher) reset() {
	w.linksOver, w.linkPaths, w.needed = map[string]map[string]bool{}, map[string][]string{}, map[string]int{}
}

// An Target is what an event is about.
type Target struct {
	Name  string          // in the directory; empty if it is elsewhere
	All   bool            // the directory itself, a link on the way to it, or a directory that was watched
	Links map[string]bool // links in the directory that lead to it or over it
}

// Classify returns what an event is about.
func (w *Watcher) Classify(ev fsnotify.Event) (a Target) {
	path := filepath.Clean(ev.Name) // a watch on / gives //etc
	if w.realDir != "" && filepath.Dir(path) == w.realDir {
		a.Name = filepath.Base(path)
	}
	gone := w.needed[path] > 0 && ev.Has(fsnotify.Remove|fsnotify.Rename) // with the watch of it
	a.All, a.Links = w.dirPaths[path] || gone, w.linksOver[path]
	return a
}

// WatchAll sets the watches that the directory and these links in it need now.
// What it does not see change while it works will come as an event.
func (w *Watcher) WatchAll(linkNames []string) error {
	return w.retry(func() []string {
		t := newTracer(w.disks)
		w.reset()
		w.addDir(t)
		for _, name := range linkNames {
			w.addLink(t, name)
		}
		return slices.Collect(maps.Keys(w.needed))
	})
}

// addDir notes the paths that lead to the directory. They stay as they were while something on the way does not answer.
func (w *Watcher) addDir(t *tracer) {
	if end, passed := t.trace(w.dir); !t.silent(passed) {
		w.realDir, w.dirPaths = end, map[string]bool{}
		for _, path := range passed {
			w.dirPaths[path] = true
		}
	}
	for path := range w.dirPaths {
		if path == w.realDir {
			w.needed[path]++
		} else { // a link, or the name that is missing
			w.needed[filepath.Dir(path)]++
		}
	}
}

// WatchLinks is WatchAll for names that may have become links, lead elsewhere, or be
// none any more: nothing else has changed.
func (w *Watcher) WatchLinks(names []string, isLink func(name string) bool) error {
	return w.retry(func() (dirs []string) {
		t := newTracer(w.disks)
		for _, name := range names {
			w.removeLink(name)
			if isLink(name) {
				w.addLink(t, name)
			}
			for _, path := range w.linkPaths[name] {
				dirs = append(dirs, filepath.Dir(path))
			}
		}
		return dirs
	})
}

// retry finds out which directories are needed, and watches them, once more when a
// new watch may have come too late for a change.
func (w *Watcher) retry(find func() []string) error {
	for range 10 {
		if added, err := w.set(find()); err != nil || !added {
			return err
		}
	}
	return nil
}

// addLink notes the paths that a link in the directory leads over.
func (w *Watcher) addLink(t *tracer, name string) {
	_, w.linkPaths[name] = t.trace(filepath.Join(w.dir, name))
	for _, path := range w.linkPaths[name] {
		if w.linksOver[path] == nil {
			w.linksOver[path] = map[string]bool{}
			w.needed[filepath.Dir(path)]++
		}
		w.linksOver[path][name] = true
	}
}

// removeLink takes back what addLink has noted.
func (w *Watcher) removeLink(name string) {
	for _, path := range w.linkPaths[name] {
		if !w.linksOver[path][name] { // it is in there twice
			continue
		}
		if delete(w.linksOver[path], name); len(w.linksOver[path]) == 0 {
			delete(w.linksOver, path)
			dir := filepath.Dir(path)
			if w.needed[dir]--; w.needed[dir] == 0 {
				delete(w.needed, dir)
			}
		}
	}
	delete(w.linkPaths, name)
}

// set watches these directories, and none that is not needed.
func (w *Watcher) set(dirs []string) (added bool, err error) {
	alive := map[string]bool{} // fsnotify drops the watch of a directory that is removed or renamed
	for _, d := range w.WatchList() {
		alive[d] = true
	}
	for d := range w.watched {
		if w.needed[d] == 0 {
			w.unwatch(d)
		}
	}
	slices.Sort(dirs)
	for _, d := range slices.Compact(dirs) {
		a, e := w.ensure(d, alive[d])
		added, err = added || a, cmp.Or(err, e)
	}
	return added, err
}

// ensure watches one directory, unless it already does, or does not answer: that may be forever
// where it is added, which fsnotify does one at a time.
func (w *Watcher) ensure(dir string, alive bool) (added bool, err error) {
	is := w.disks.Stat(dir)
	if is.Err == nil {
		id := disk.StampOf(is.Info).FileID
		if old, ok := w.watched[dir]; ok && alive && old == id {
			return false, nil
		}
		w.unwatch(dir)
		if err = w.Add(dir); err == nil {
			w.closeEvents.addDir(dir)
			w.watched[dir] = id
			return true, nil
		}
		err = fmt.Errorf("watching %s: %w", dir, err)
	}
	switch err = cmp.Or(err, is.Err); {
	case errors.Is(err, fs.ErrNotExist): // removed since it was traced
		return true, nil
	case err == disk.ErrNoAnswer:
		return false, nil
	}
	return false, err
}

func (w *Watcher) unwatch(dir string) {
	_ = w.Remove(dir) // it may be gone by itself
	w.closeEvents.removeDir(dir)
	delete(w.watched, dir)
}
