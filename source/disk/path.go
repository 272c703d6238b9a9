package disk

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A PathInfo is what there is at a path.
type PathInfo struct {
	Info    fs.FileInfo
	Err     error  // why there is none
	LeadsTo string // of a link
	Mounted bool   // see isMounted; not of a link
}

// Lstat looks at a name in the directory.
func (d *Asker) Lstat(path string) PathInfo {
	return d.lookUp(path, func() (p PathInfo) {
		if p.Info, p.Err = os.Lstat(path); p.Err != nil {
			return p
		}
		if p.IsLink() {
			p.LeadsTo, _ = os.Readlink(path)
		} else {
			p.Mounted = isMounted(path)
		}
		return p
	})
}

// Follow looks at what a link leads to.
func (d *Asker) Follow(path string, link PathInfo) PathInfo {
	return d.lookUp(link.ContentPath(path), statOf(path))
}

// Stat looks at what a path leads to.
func (d *Asker) Stat(path string) PathInfo { return d.lookUp(path, statOf(path)) }

func statOf(path string) func() PathInfo {
	return func() (p PathInfo) {
		p.Info, p.Err = os.Stat(path)
		p.Mounted = p.Err == nil && isMounted(path)
		return p
	}
}

func (d *Asker) lookUp(path string, look func() PathInfo) PathInfo {
	if p, ok := Ask(d, path, look); ok {
		return p
	}
	return PathInfo{Err: ErrNoAnswer}
}

// IsLink reports whether it is a symbolic link.
func (p PathInfo) IsLink() bool { return p.Err == nil && p.Info.Mode()&fs.ModeSymlink != 0 }

// ContentPath returns what questions about the content of the file at path are about: where a link leads to, or what is
// below the file, which can be looked at and removed while it cannot be read.
func (p PathInfo) ContentPath(path string) string {
	switch {
	case p.LeadsTo == "":
		return filepath.Join(path, "content")
	case filepath.IsAbs(p.LeadsTo):
		return filepath.Clean(p.LeadsTo)
	}
	return filepath.Join(filepath.Dir(path), p.LeadsTo)
}

// Read reads the text of a file of which this is known.
func (d *Asker) Read(path string, is PathInfo, limit int) (Text, bool) {
	return Ask(d, is.ContentPath(path), func() Text { return ReadText(path, is.IsLink(), limit) })
}

// Silent reports whether Read would not ask, because it is known that no answer comes.
func (d *Asker) Silent(path string, is PathInfo) bool { return !d.mayAnswer(is.ContentPath(path)) }

// ReadBeside is Read of a file for which no step waits: it may take as long as more of the text keeps coming, until ctx ends.
func (d *Asker) ReadBeside(ctx context.Context, path string, is PathInfo, limit int) (Text, bool) {
	var all atomic.Int64
	came := func(n int) error { all.Add(int64(n)); return ctx.Err() }
	return askWhile(d, is.ContentPath(path), Patience, &all, func() Text { return readText(path, is.IsLink(), limit, came) })
}

// ReadOnce reads the text of a file of which nothing is known. The error is ErrNoAnswer if that does not come in time.
func (d *Asker) ReadOnce(path string, limit int) Text {
	t, ok := d.Read(path, d.Lstat(path), limit)
	if !ok {
		t.Err = ErrNoAnswer
	}
	return t
}

// Stat is os.Stat within the bound of Answer.
func Stat(path string) (fs.FileInfo, error) {
	return Answer(path, func() (fs.FileInfo, error) { return os.Stat(path) })
}

// isMounted reports whether a file is mounted where it is, and so may be written
// somewhere else. Before Linux 5.8 nobody knows.
func isMounted(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
