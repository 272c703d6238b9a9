package watch

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// closeEvents tells which files were closed by who had them open to write. What is
// written by way of a mapping causes no other event, and fsnotify does not tell of
// this one.
type closeEvents struct {
	fd   int            // of inotify(7)
	dirs map[int]string // by watch
}

func newCloseEvents() (*closeEvents, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	return &closeEvents{fd: fd, dirs: map[int]string{}}, nil
}

// addDir watches a directory. Where that fails, the poll finds what changed.
func (c *closeEvents) addDir(dir string) {
	if wd, err := unix.InotifyAddWatch(c.fd, dir, unix.IN_CLOSE_WRITE|unix.IN_ONLYDIR); err == nil {
		c.dirs[wd] = dir
	}
}

func (c *closeEvents) removeDir(dir string) {
	for wd, d := range c.dirs {
		if d == dir {
			_, _ = unix.InotifyRmWatch(c.fd, uint32(wd)) // it may be gone by itself
			delete(c.dirs, wd)
		}
	}
}

// drain returns the paths of files that were closed since the last call. lost: there may
// be others.
func (c *closeEvents) drain() (paths []string, lost bool) {
	buf := make([]byte, 1<<14)
	for {
		n, err := unix.Read(c.fd, buf)
		if err != nil || n <= 0 {
			return paths, lost
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd, mask := int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:])
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
			b = b[end:]
			switch dir, ok := c.dirs[wd]; {
			case mask&unix.IN_Q_OVERFLOW != 0:
				lost = true
			case mask&unix.IN_IGNORED != 0:
				delete(c.dirs, wd)
			case ok:
				paths = append(paths, filepath.Join(dir, name))
			}
		}
	}
}

func (c *closeEvents) close() { _ = unix.Close(c.fd) }
