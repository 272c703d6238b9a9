package keep

import (
	"cmp"
	"errors"
	"io/fs"
	"os"

	"svcproxy.dev/svcproxy/source/read"
)

// Tidy does what can wait until all services have been handed on. What an earlier run wrote last may not be on the disk:
// until it is, which Tidy waits for, no copy is removed. contents says what a file has, false: nobody knows.
// It is called in the goroutine of Run, for those whose copy was lost.
func (st *Store) Tidy(contents func(name string) ([]byte, bool)) {
	err := st.dir.syncAll()
	found, e := os.ReadDir(st.Dir())
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
	st.compact(0)
	for _, name := range append(cut, st.removeOrphans(found)...) {
		if text, ok := contents(name); ok {
			st.rewriteCopy(name, &read.Version{ID: read.IDOf(text, nil), Data: text})
		}
	}
}

// damagedCopies returns the files whose copy is there and is not what is recorded: a power failure may have cut it off.
func (r *records) damagedCopies() (list []string) {
	for _, name := range r.Names() {
		rec, ok := r.recordOf(name)
		if !ok {
			continue
		}
		if _, err := r.Read(name, rec); err != nil && !errors.Is(err, fs.ErrNotExist) {
			list = append(list, name)
		}
	}
	return list
}

// removeOrphans removes those of the found copies without a record that nothing needs, which the process was killed or
// stopped before it could do. The disk must have all that an earlier run wrote. It returns the files whose copy is missing.
func (q *queue) removeOrphans(found []fs.DirEntry) (missing []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	owner := make(map[string]string, len(q.known))
	for name, r := range q.known {
		owner[copyName(name, r.Sum)] = name
	}
	for name, c := range q.pending {
		owner[copyName(name, c.Sum)] = name
	}
	for v := range q.needs { // what decisions have come to need since has no copy yet
		if !v.exists() || q.known[v.Name].Sum == v.Sum {
			continue
		}
		if _, err := os.Lstat(q.dir.path(v)); err == nil {
			q.retained[v] = true
		}
	}
	needed := names(q.needs, q.replaced)
	if q.syncing != nil {
		needed = names(q.needs, q.replaced, q.syncing.replaced)
	}
	q.dir.removeOrphans(found, func(name string) bool { return owner[name] != "" || needed[name] })
	for _, e := range found {
		delete(owner, e.Name())
	}
	for name, of := range owner {
		if _, err := os.Lstat(q.dir.file(name)); err != nil { // else it was written since
			missing = append(missing, of)
		}
	}
	return missing
}

// rewriteCopy writes the copy of a file again that is missing, if v is what it was of.
func (q *queue) rewriteCopy(name string, v *read.Version) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r, ok := q.known[name]; ok && q.pending[name] == nil && r.Sum == v.ID {
		q.pending[name] = &change{Entry: Entry{Record: r, Version: v}, name: name, data: v.Data}
		q.wake()
	}
}

// MarkUsed says that this boot uses the store from now on.
func (st *Store) MarkUsed() {
	st.enqueue(func() {
		if st.marked {
			return
		}
		is, err := os.ReadFile(bootID)
		if err == nil {
			err = replace(st.markerPath(), is, true)
		}
		st.marked = err == nil
		st.noteError(err)
	})
}
