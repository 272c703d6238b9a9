package file

import (
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A pathInfo is what there is at a path.
type pathInfo struct {
	info    fs.FileInfo
	err     error  // why there is none
	leadsTo string // of a link
	mounted bool   // see isMounted; not of a link
}

// lstat looks at a name in the directory.
func (d *disks) lstat(path string) pathInfo {
	return d.lookUp(path, func() (p pathInfo) {
		if p.info, p.err = os.Lstat(path); p.err != nil {
			return p
		}
		if p.isLink() {
			p.leadsTo, _ = os.Readlink(path)
		} else {
			p.mounted = isMounted(path)
		}
		return p
	})
}

// follow looks at what a link leads to.
func (d *disks) follow(path string, link pathInfo) pathInfo {
	if d.crowded() {
		return pathInfo{err: ErrNoAnswer}
	}
	return d.lookUp(link.contentPath(path), statOf(path))
}

// stat looks at what a path leads to.
func (d *disks) stat(path string) pathInfo { return d.lookUp(path, statOf(path)) }

func statOf(path string) func() pathInfo {
	return func() (p pathInfo) {
		p.info, p.err = os.Stat(path)
		p.mounted = p.err == nil && isMounted(path)
		return p
	}
}

func (d *disks) lookUp(path string, look func() pathInfo) pathInfo {
	if p, ok := ask(d, path, look); ok {
		return p
	}
	return pathInfo{err: ErrNoAnswer}
}

func (p pathInfo) isLink() bool { return p.err == nil && p.info.Mode()&fs.ModeSymlink != 0 }

// contentPath returns what questions about the content of the file at path are about: where a link leads to, or what is
// below the file, which can be looked at and removed while it cannot be read.
func (p pathInfo) contentPath(path string) string {
	switch {
	case p.leadsTo == "":
		return filepath.Join(path, "content")
	case filepath.IsAbs(p.leadsTo):
		return filepath.Clean(p.leadsTo)
	}
	return filepath.Join(filepath.Dir(path), p.leadsTo)
}

// read reads the text of a file of which this is known.
func (d *disks) read(path string, is pathInfo, limit int) (readText, bool) {
	return ask(d, is.contentPath(path), func() readText { return readTextOf(path, is.isLink(), limit) })
}

// readOnce reads the text of a file of which nothing is known. The error is ErrNoAnswer if that does not come in time.
func (d *disks) readOnce(path string, limit int) readText {
	t, ok := d.read(path, d.lstat(path), limit)
	if !ok {
		t.err = ErrNoAnswer
	}
	return t
}

// Stat is os.Stat within the bound of Answer.
func Stat(path string) (fs.FileInfo, error) {
	return Answer(path, func() (fs.FileInfo, error) { return os.Stat(path) })
}

// Answer calls read, which reads path, and returns its result. If read takes more than 5 s, because the file system of path
// does not answer, Answer returns ErrNoAnswer and leaves read running. So it must not be called again and again by a process
// that stays: each call may leave a thread behind.
func Answer[T any](path string, read func() (T, error)) (T, error) {
	type result struct {
		got T
		err error
	}
	r, ok := ask(newDisks(filepath.Dir(path)), path, func() (r result) {
		r.got, r.err = read()
		return r
	})
	if !ok {
		r.err = &fs.PathError{Op: "open", Path: path, Err: ErrNoAnswer}
	}
	return r.got, r.err
}

// isMounted reports whether a file is mounted where it is, and so may be written
// somewhere else. Before Linux 5.8 nobody knows.
func isMounted(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
