package read

import (
	"fmt"
	"os"
	"slices"

	"svcproxy.dev/svcproxy/source/disk"
)

// A Listing is what service files a directory has, by name, and which directory that is.
type Listing struct {
	Names []string // sorted; links to directories too
	Dirs  []string // directories that have the name of a service file, sorted
	ID    disk.DirID
	Err   error // why nobody knows
}

// ListDir lists a directory of service files.
func ListDir(dir string) (l Listing) {
	if l.Err = l.read(dir); l.Err != nil {
		return Listing{Err: fmt.Errorf("listing service files: %w", l.Err)}
	}
	return l
}

func (l *Listing) read(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if l.ID, err = disk.DirIDOf(int(d.Fd()), ""); err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	for _, e := range entries {
		switch {
		case !IsServiceFile(e.Name()):
		case e.IsDir():
			l.Dirs = append(l.Dirs, e.Name())
		default:
			l.Names = append(l.Names, e.Name())
		}
	}
	slices.Sort(l.Names)
	slices.Sort(l.Dirs)
	return err
}
