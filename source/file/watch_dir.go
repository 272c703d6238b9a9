package file

import (
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
