package keep

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"svcproxy.dev/svcproxy/source/read"
)

// Tidy does what can wait until all services have been handed on. What an earlier run wrote last may not be on the disk:
// until it is, which tidy waits for, no copy is removed. contents says what a file has, false: nobody knows.
// It is called in the goroutine of Run, for those whose copy was lost.
func (st *Store) Tidy(contents func(name string) ([]byte, bool)) {
	err := st.syncAll()
	found, e := os.ReadDir(st.lastgood)
	var cut []string
	if st.unclean {
		cut = st.damagedCopies()
	}
	st.enqueue(func() { st.tidyCopies(found, cut, cmp.Or(err, e), contents) })
}

// tidyCopies removes those of the found copies that nothing needs, once all is on the disk, and keeps again what was lost, or
// was cut off. Where something was, older copies stay until the next start.
func (st *Store) tidyCopies(found []fs.DirEntry, cut []string, err error, contents func(string) ([]byte, bool)) {
	if err != nil {
		if !errors.As(err, new(*fs.PathError)) { // else nothing is known, and who writes says why
			st.noteError(err)
		}
		return
	}
	if len(cut) > 0 {
		found = nil
	}
	for _, name := range append(cut, st.removeOrphans(found)...) {
		if text, ok := contents(name); ok {
			st.rewriteCopy(name, &read.Version{ID: read.IDOf(text, nil), Data: text})
		}
	}
}

// damagedCopies returns the files whose copy is there and is not what is recorded: a power failure may have cut it off.
func (st *Store) damagedCopies() (names []string) {
	for _, name := range st.Names() {
		r, ok := st.recordOf(name)
		if !ok {
			continue
		}
		if _, err := st.Read(name, r); err != nil && !errors.Is(err, fs.ErrNotExist) {
			names = append(names, name)
		}
	}
	return names
}

// removeOrphans does what can wait until all services have been handed on: it writes the
// index again if that has lines that do not count, and removes those of the found copies
// without a record that nothing needs, which the process was killed or stopped before it could do. The disk must
// have all that an earlier run wrote. It returns the files whose copy is missing.
func (st *Store) removeOrphans(found []fs.DirEntry) (missing []string) {
	st.compact(0)
	st.mu.Lock()
	defer st.mu.Unlock()
	owner := make(map[string]string, len(st.records))
	for name, r := range st.records {
		owner[copyName(name, r.Sum)] = name
	}
	for name, e := range st.unwritten {
		owner[copyName(name, e.Sum)] = name
	}
	needed := copyNames(st.needs)
	maps.Copy(needed, st.unsyncedCopies())
	st.retainNeeded()
	for _, e := range found {
		name := e.Name()
		if _, ok := owner[name]; !ok && !needed[name] && isCopy.MatchString(name) {
			_ = os.Remove(filepath.Join(st.lastgood, name))
		}
		delete(owner, name)
	}
	for name, of := range owner {
		if _, err := os.Lstat(filepath.Join(st.lastgood, name)); err != nil { // else it was written since
			missing = append(missing, of)
		}
	}
	return missing
}

// rewriteCopy writes the copy of a file again that is missing, if v is what it was of.
func (st *Store) rewriteCopy(name string, v *read.Version) {
	st.mu.Lock()
	defer st.mu.Unlock()
	r, ok := st.records[name]
	if _, busy := st.unwritten[name]; ok && !busy && r.Sum == v.ID {
		st.unwritten[name] = Entry{Record: r, Version: v}
		st.wake()
	}
}

// Maintain writes again what could not be written, and keeps the index short that has this many files.
func (st *Store) Maintain(files int) {
	st.retry()
	st.enqueue(func() { st.compact(files + indexSlack) })
}

// retry makes writeMore have work if the disk may not have all.
func (st *Store) retry() {
	if !st.OnDisk() {
		st.wake()
	}
}

// compact rewrites the index if it is damaged, or has more than slack lines that
// do not count.
func (st *Store) compact(slack int) {
	st.mu.Lock()
	n := len(st.records)
	st.mu.Unlock()
	if st.lines > n+slack || st.indexDamaged && !st.indexIntact {
		st.noteError(st.rewrite())
	}
}
