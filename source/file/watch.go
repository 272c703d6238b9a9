package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// A concern says what an event under a path is about.
type concern uint8

const (
	nothing   concern = iota
	links             // a symbolic link of ours, or a file that one leads to
	directory         // the directory itself, or a link on the way to it
)

// A watcher tells that something happened to a directory of files, or to what
// links in it lead to. What happened is for the reader to find out: events can
// be lost, and say little about links.
//
// A watch is on a directory (inode), not on a path. So every directory is
// watched in which something can happen that gives our paths another meaning:
// the directory itself, its parent, and each one that holds a link on the way
// to one of our files, or that file.
type watcher struct {
	*fsnotify.Watcher
	closings *closings // nil: nobody tells of them

	dir     string             // absolute
	real    string             // dir with all links followed; empty while it does not exist
	watched map[string]fileID  // directories, as they were when the watch was set
	meaning map[string]concern // of events by path
}

// A fileID tells a directory from another that has taken its path.
type fileID struct{ dev, ino uint64 }

func newWatcher(dir string) (*watcher, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", dir, err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", dir, err)
	}
	c, err := newClosings()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watching %s: %w", dir, err), w.Close())
	}
	return &watcher{Watcher: w, closings: c, dir: abs, watched: map[string]fileID{}}, nil
}

// close ends all watches.
func (w *watcher) close() {
	_ = w.Close()
	w.closings.close()
}

// classify returns what an event of a path is about, and the name in the directory if it is there.
func (w *watcher) classify(path string) (c concern, name string) {
	path = filepath.Clean(path) // a watch on / gives //etc
	if w.real != "" && filepath.Dir(path) == w.real {
		name = filepath.Base(path)
	}
	return w.meaning[path], name
}

// follow sets the watches that the directory and these links in it need now.
// What it does not see change while it works will come as an event.
func (w *watcher) follow(linkNames []string) error {
	for range 10 { // once more when a new watch may have come too late for a change
		t := newTracer()
		w.real = t.trace(w.dir, directory)
		if w.real != "" {
			t.watch[w.real] = true
		}
		for _, name := range linkNames {
			t.trace(filepath.Join(w.dir, name), links)
		}
		w.meaning = t.meaning
		added, err := w.set(t.watch)
		if err != nil || !added {
			return err
		}
	}
	return nil
}

// set watches these directories and no others.
func (w *watcher) set(dirs map[string]bool) (added bool, err error) {
	alive := map[string]bool{} // fsnotify drops the watch of a directory that is removed or renamed
	for _, d := range w.WatchList() {
		alive[d] = true
	}
	for d := range w.watched {
		if !dirs[d] {
			w.unwatch(d)
		}
	}
	for d := range dirs {
		a, e := w.ensure(d, alive[d])
		added = added || a
		if e != nil && err == nil {
			err = e
		}
	}
	return added, err
}

// ensure watches one directory, unless it already does.
func (w *watcher) ensure(dir string, alive bool) (added bool, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist), ignoreMissing(err) // removed since it was traced
	}
	id := stampOf(info).fileID
	if old, ok := w.watched[dir]; ok && alive && old == id {
		return false, nil
	}
	w.unwatch(dir)
	if err := w.Add(dir); err != nil {
		return errors.Is(err, fs.ErrNotExist), ignoreMissing(fmt.Errorf("watching %s: %w", dir, err))
	}
	w.closings.add(dir)
	w.watched[dir] = id
	return true, nil
}

func (w *watcher) unwatch(dir string) {
	_ = w.Remove(dir) // it may be gone by itself
	w.closings.remove(dir)
	delete(w.watched, dir)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// maxHops is how many links the kernel follows in one path, MAXSYMLINKS.
const maxHops = 40

// A tracer finds out on which directories and names the meaning of paths depends.
type tracer struct {
	watch   map[string]bool
	meaning map[string]concern
	seen    map[string]component // paths share most of their directories
}

type component struct {
	target string // of a link
	exists bool
}

func newTracer() *tracer {
	return &tracer{map[string]bool{}, map[string]concern{}, map[string]component{}}
}

// trace follows an absolute path and returns where it leads, empty if nowhere.
// Where it ends early, the directory is watched in which the next name is missing.
func (t *tracer) trace(path string, c concern) string {
	at, rest := "/", strings.Split(path, "/")
	hops := 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next := filepath.Join(at, name) // .. is resolved, and right: at has no links
		found := t.look(next)
		if found.target == "" && found.exists {
			at = next
			continue
		}
		t.note(next, c)
		hops++
		if !found.exists || hops > maxHops {
			return ""
		}
		if filepath.IsAbs(found.target) {
			at = "/"
		}
		rest = append(strings.Split(found.target, "/"), rest...)
	}
	t.note(at, c)
	return at
}

// note watches for events about a path.
func (t *tracer) note(path string, c concern) {
	t.watch[filepath.Dir(path)] = true
	t.meaning[path] = max(t.meaning[path], c)
}

func (t *tracer) look(path string) component {
	if c, ok := t.seen[path]; ok {
		return c
	}
	var c component
	if info, err := os.Lstat(path); err == nil {
		c.exists = true
		if info.Mode()&fs.ModeSymlink != 0 {
			c.target, err = os.Readlink(path)
			c.exists = err == nil
		}
	}
	t.seen[path] = c
	return c
}
