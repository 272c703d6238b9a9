package file

import (
	"fmt"
	"os"
	"slices"
)

// A listing is what service files a directory has, by name, and which directory that is.
type listing struct {
	names []string // sorted
	id    dirID
	err   error // why nobody knows
}

func listDir(dir string) (l listing) {
	if l.names, l.id, l.err = readDirNames(dir); l.err != nil {
		return listing{err: fmt.Errorf("listing service files: %w", l.err)}
	}
	return l
}

func readDirNames(dir string) (names []string, id dirID, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, id, err
	}
	defer d.Close()
	if id, err = dirIDOf(int(d.Fd()), ""); err != nil {
		return nil, id, err
	}
	entries, err := d.ReadDir(-1)
	for _, e := range entries {
		if isServiceFile(e.Name()) && !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, id, err
}
