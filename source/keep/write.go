package keep

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
)

// What is beside the index.
const (
	decisionsFile = "decisions"
	directoryFile = "directory"
)

// DecisionsPath returns the path of what PutDecisions takes.
func (st *Store) DecisionsPath() string { return filepath.Join(st.lastgood, decisionsFile) }

// DirectoryPath returns the path of what stateDir keeps of the directory of files, see PutDirectory.
func DirectoryPath(stateDir string) string {
	return filepath.Join(stateDir, "lastgood", directoryFile)
}

// batch is how many files are written in one go.
const batch = 64

// writeMore writes some of what is pending, and reports whether there is more. After
// an error the rest waits for retry.
func (st *Store) writeMore() bool {
	jobs := st.next() // first, so that the decisions which were put before them are written before
	_, err := st.writeText(directoryFile, &st.dirText, false)
	decided, e := st.writeText(decisionsFile, &st.decided, true)
	if decided {
		st.dropRetained()
	}
	err = cmp.Or(err, e)
	if len(jobs) > 0 {
		err = cmp.Or(err, st.write(jobs))
	}
	st.noteError(err)
	return err == nil && st.Pending()
}

// writeText writes a text to a file, if there is one that is not written yet, and then reports it as written.
func (st *Store) writeText(name string, text *[]byte, sync bool) (written bool, err error) {
	st.mu.Lock()
	data := *text
	st.mu.Unlock()
	if data == nil {
		return false, nil
	}
	if err := st.replace(name, data, sync); err != nil {
		return false, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if bytes.Equal(*text, data) { // else there is another by now
		*text = nil
	}
	return true, nil
}

// next returns some of what is pending.
func (st *Store) next() []job {
	st.mu.Lock()
	defer st.mu.Unlock()
	jobs := make([]job, 0, batch)
	for name, e := range st.unwritten {
		j := job{Entry: e, name: name, old: st.records[name]}
		if e.Version != nil {
			j.data = e.Version.Data
		}
		st.writing[name] = e
		if jobs = append(jobs, j); len(jobs) == batch {
			break
		}
	}
	return jobs
}

// write goes on after a copy that cannot be written, and returns the first error. Whether the disk
// has all that, beginSync asks.
func (st *Store) write(jobs []job) (err error) {
	defer st.doneWriting()
	var lines strings.Builder
	written := jobs[:0]
	for _, j := range jobs {
		if e := st.writeCopy(j); e != nil {
			err = cmp.Or(err, e)
			continue
		}
		written = append(written, j)
		lines.WriteString(j.encode(j.name))
	}
	if len(written) == 0 {
		return err
	}
	if e := st.add(lines.String(), len(written)); e != nil {
		st.doubt(written)
		return e
	}
	st.history.add(st, written)
	st.markWritten(written)
	return err
}

func (st *Store) writeCopy(j job) error {
	if j.Version == nil {
		return nil
	}
	if j.data == nil && j.Version.Size > 0 {
		if _, err := st.Read(j.name, j.Record); err == nil {
			return nil // it is what was replaced a moment ago
		}
		return fmt.Errorf("the text of %s is not known any more", source.Quote(j.name))
	}
	return st.replace(copyName(j.name, j.Sum), j.data, false)
}

// markWritten notes that jobs are written.
func (st *Store) markWritten(jobs []job) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, j := range jobs {
		st.set(j.name, j.Record)
		delete(st.damaged, j.name)
		if st.unwritten[j.name] == j.Entry { // else it has changed again
			delete(st.unwritten, j.name)
			j.releaseText()
		}
		st.noteUnsynced(j)
	}
}

// doubt notes that nobody knows what a start would find of files: the lines of the index may count, or not.
func (st *Store) doubt(jobs []job) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, j := range jobs {
		st.damaged[j.name] = true
	}
}

func (st *Store) doneWriting() {
	st.mu.Lock()
	defer st.mu.Unlock()
	clear(st.writing)
}

// add adds n lines to the index, in one write.
func (st *Store) add(lines string, n int) error {
	if !st.indexIntact {
		if err := st.rewrite(); err != nil {
			return err
		}
	}
	if err := addLines(st.index(), lines); err != nil {
		st.indexIntact = false // there may be half a line
		return err
	}
	st.lines += n
	return nil
}

// rewrite writes the index again, with what counts only. Synced, even a power
// failure leaves one of the two.
func (st *Store) rewrite() error {
	var b bytes.Buffer
	b.WriteString(indexHeader)
	st.mu.Lock()
	n := len(st.records)
	for name, r := range st.records {
		b.WriteString(r.encode(name))
	}
	st.mu.Unlock()
	if err := st.replace("index", b.Bytes(), true); err != nil {
		return err
	}
	st.lines, st.indexIntact = n, true
	return nil
}

// replace makes or replaces a file in one step.
func (st *Store) replace(name string, data []byte, sync bool) error {
	if err := os.MkdirAll(st.lastgood, 0o700); err != nil {
		return err
	}
	return disk.Replace(filepath.Join(st.lastgood, name), filepath.Join(st.lastgood, tempName), sync, disk.Bytes(data))
}
