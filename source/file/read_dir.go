package file

import (
	"fmt"
	"os"
	"slices"

	"svcproxy.dev/svcproxy/source/disk"
)

// A listing is what service files a directory has, by name, and which directory that is.
type listing struct {
	names []string // sorted; links to directories too
	dirs  []string // directories that have the name of a service file, sorted
	id    disk.DirID
	err   error // why nobody knows
}

func listDir(dir string) (l listing) {
	if l.err = l.read(dir); l.err != nil {
		return listing{err: fmt.Errorf("listing service files: %w", l.err)}
	}
	return l
}

func (l *listing) read(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if l.id, err = disk.DirIDOf(int(d.Fd()), ""); err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	for _, e := range entries {
		switch {
		case !isServiceFile(e.Name()):
		case e.IsDir():
			l.dirs = append(l.dirs, e.Name())
		default:
			l.names = append(l.names, e.Name())
		}
	}
	slices.Sort(l.names)
	slices.Sort(l.dirs)
	return err
}
