package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// A serviceDir is the directory of files that services were last read from. Where that
// is gone, or another one without any file has taken its path, as below a disk that
// is not mounted, nobody has removed the files: what they said stays.
type serviceDir struct {
	dir       string
	statePath string     // where its id is kept over a restart; empty: nowhere
	lastID    disk.DirID // zero: not known
}

// errEmptyReplacement says that there is nothing to conclude from a directory without files.
var errEmptyReplacement = errors.New("it is another directory than before, and has no service files: its disk may not be mounted; a file with services = [] there says that there are none")

// newServiceDir returns the directory at dir that is kept in stateDir, which may be empty.
func newServiceDir(dir, stateDir string) *serviceDir {
	d := &serviceDir{dir: dir}
	if stateDir != "" {
		d.statePath = keep.DirectoryPath(stateDir)
	}
	return d
}

// loadID takes up what an earlier run kept.
func (d *serviceDir) loadID() {
	if data, err := os.ReadFile(d.statePath); err == nil {
		if n, _ := fmt.Sscan(string(data), &d.lastID.Dev, &d.lastID.Ino, &d.lastID.Born); n < 2 { // the first versions kept two
			d.lastID = disk.DirID{}
		}
	}
}

// take notes which directory was listed, and reports whether it is another one than before. After an error
// nobody knows which files there are. known: files were read before.
func (d *serviceDir) take(l read.Listing, known bool) (moved bool, err error) {
	if l.Err != nil {
		return false, l.Err
	}
	if len(l.Names) == 0 && known && !l.ID.Is(d.lastID) {
		return false, errEmptyReplacement
	}
	moved = l.ID != d.lastID
	d.lastID = l.ID
	return moved, nil
}

// encodeID returns what statePath holds.
func (d *serviceDir) encodeID() []byte {
	return fmt.Appendf(nil, "%d %d %d\n", d.lastID.Dev, d.lastID.Ino, d.lastID.Born)
}

// unchanged reports whether the directory is still the one that was listed.
func (d serviceDir) unchanged() bool {
	id, err := disk.DirIDOf(unix.AT_FDCWD, d.dir)
	return err == nil && id == d.lastID
}

// CheckListing returns why nothing can be concluded from what is not in a directory of
// service files, of which stateDir keeps the last good versions; nil: what is not
// there does not exist.
func CheckListing(dir, stateDir string) error {
	d := newServiceDir(dir, stateDir)
	d.loadID()
	l, err := disk.Answer(dir, func() (read.Listing, error) { return read.ListDir(dir), nil })
	if err == nil {
		_, err = d.take(l, d.lastID != disk.DirID{})
	}
	if errors.Is(err, fs.ErrNotExist) && (d.lastID == disk.DirID{}) {
		return nil // there never was one
	}
	return err
}
