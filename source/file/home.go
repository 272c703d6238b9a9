package file

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A home is the directory of files that services were last read from. Where that
// is gone, or another one without any file has taken its path, as below a disk that
// is not mounted, nobody has removed the files: what they said stays.
type home struct {
	dir  string
	keep string // where its id is kept over a restart; empty: nowhere
	id   homeID // zero: not known
}

// A homeID tells a directory from another that has taken its path, and maybe its
// inode: what is made next, ext4 gives the inode of what was removed last.
type homeID struct {
	fileID
	born int64 // ns since 1970; 0: the file system does not say
}

func (id homeID) is(o homeID) bool {
	return id.fileID == o.fileID && (id.born == o.born || id.born == 0 || o.born == 0)
}

// homeIDOf returns that of an open directory, or of the one at path where fd is AT_FDCWD.
func homeIDOf(fd int, path string) (homeID, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, path, unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return homeID{}, err
	}
	id := homeID{fileID: fileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return id, nil
}

// errEmptied says that there is nothing to conclude from a directory without files.
var errEmptied = errors.New("it is another directory than before, and has no service files: its disk may not be mounted; a file with services = [] there says that there are none")

const homeFile = "directory" // beside the index of the store

// newHome returns the home at dir that is kept in stateDir, which may be empty.
func newHome(dir, stateDir string) *home {
	h := &home{dir: dir}
	if stateDir != "" {
		h.keep = filepath.Join(stateDir, "lastgood", homeFile)
	}
	return h
}

// load takes up what an earlier run kept.
func (h *home) load() {
	if data, err := os.ReadFile(h.keep); err == nil {
		if n, _ := fmt.Sscan(string(data), &h.id.dev, &h.id.ino, &h.id.born); n < 2 { // the first versions kept two
			h.id = homeID{}
		}
	}
}

// list returns the names of the service files. After an error nobody knows which
// there are. known: files were read before.
func (h *home) list(known bool) (names []string, moved bool, err error) {
	names, id, err := listID(h.dir)
	if err != nil {
		return nil, false, err
	}
	if len(names) == 0 && known && !id.is(h.id) {
		return nil, false, errEmptied
	}
	moved = id != h.id
	h.id = id
	return names, moved, nil
}

// text is what keep holds.
func (h *home) text() []byte { return fmt.Appendf(nil, "%d %d %d\n", h.id.dev, h.id.ino, h.id.born) }

// same reports whether the directory is still the one that was listed.
func (h *home) same() bool {
	id, err := homeIDOf(unix.AT_FDCWD, h.dir)
	return err == nil && id == h.id
}

// Away returns why nothing can be concluded from what is not in a directory of
// service files, of which stateDir keeps the last good versions; nil: what is not
// there does not exist.
func Away(dir, stateDir string) error {
	h := newHome(dir, stateDir)
	h.load()
	_, _, err := h.list(h.id != homeID{})
	if errors.Is(err, fs.ErrNotExist) && (h.id == homeID{}) {
		return nil // there never was one
	}
	return err
}

// putHome takes what is to be kept of the directory of files, for writeMore.
func (st *store) putHome(text []byte) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.home = text
	st.wake()
}

func (st *store) writeHome() error {
	st.mu.Lock()
	text := st.home
	st.mu.Unlock()
	if text == nil {
		return nil
	}
	if err := st.replace(homeFile, text, false); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if bytes.Equal(st.home, text) { // else it has moved again
		st.home = nil
	}
	return nil
}
