package keep

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"os"
	"strings"

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
	for v := range q.needs { // decisions of an earlier run
		if v.exists() && q.known[v.Name].Sum != v.Sum {
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

// removeOrphans removes those of the found copies that are not needed.
func (d copies) removeOrphans(found []fs.DirEntry, needed func(name string) bool) {
	for _, e := range found {
		if name := e.Name(); isCopy.MatchString(name) && !needed(name) {
			_ = os.Remove(d.file(name)) // or else at the next start
		}
	}
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

// bootID changes with each boot of the host, random(4).
const bootID = "/proc/sys/kernel/random/boot_id"

// Boot tells this boot of the host from others; empty: it is not known.
func Boot() string {
	text, _ := os.ReadFile(bootID)
	return strings.TrimSpace(string(text))
}

// markerPath is the path of a file that is there while the store is used, and says in
// which boot. One of another boot means that the host stopped without shutting
// down: then a file that was being replaced may be missing altogether.
func (r *records) markerPath() string { return r.dir.file("running") }

// stoppedUncleanly reports whether the host stopped without shutting down since this was last marked.
func (r *records) stoppedUncleanly() bool {
	was, err1 := os.ReadFile(r.markerPath())
	is, err2 := os.ReadFile(bootID)
	return err1 == nil && err2 == nil && !bytes.Equal(was, is)
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

// unmarkRunning says that it is not used any more.
func (st *Store) unmarkRunning() {
	if st.marked {
		_ = os.Remove(st.markerPath()) // or else missing files are kept until a reload
	}
}
