package file

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// batch is how many files are written in one go, some 100 µs each.
const batch = 64

// A store keeps a copy of the last accepted version of each file, as it was
// written, and an index of them. They are files that an admin can read and copy
// back: web.toml is kept as lastgood/web.<start of its checksum>.toml.
//
// A copy is written before the line of the index that says it counts, and what
// it replaces is removed after that. So whenever the process is killed, each
// file has its last good version or the one before. What was written then
// reaches the disk without fsync; after a power failure, which may lose some of
// it, checksums tell what is damaged.
type store struct {
	dir string // lastgood
	log *slog.Logger
	err atomic.Value // a string, see trouble

	mu      sync.Mutex // held while writing
	records map[string]record
	lines   int              // of the index, without the header
	whole   bool             // the index on disk is as we know it, and can be added to
	suspect bool             // the index was damaged: copies without a record may be all that is left
	damaged map[string]bool  // files whose copy is, by name
	pending map[string]entry // what is not written yet, by file name
	more    chan struct{}    // holds something when writeMore has work
}

// An entry is a record to be written. v is nil when the file was removed.
type entry struct {
	record
	v *version
}

// newStore returns a store in stateDir that does nothing before load.
func newStore(stateDir string, log *slog.Logger) *store {
	return &store{
		dir: filepath.Join(stateDir, "lastgood"), log: log,
		records: map[string]record{}, damaged: map[string]bool{}, pending: map[string]entry{},
		more: make(chan struct{}, 1),
	}
}

// load reads the index. What it cannot read is logged, and left out.
func (st *store) load() {
	st.mu.Lock()
	defer st.mu.Unlock()
	data, err := os.ReadFile(st.index())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var damaged int
	if err == nil {
		st.records, st.lines, damaged = parseIndex(data)
	}
	if damaged > 0 {
		err = fmt.Errorf("%s: %d damaged lines", st.index(), damaged)
	}
	st.suspect, st.whole = err != nil, err == nil
	if err != nil {
		st.log.Warn("not all last good versions of service files are known", "err", err)
	}
}

// note logs once why last good versions cannot be written.
func (st *store) note(err error) {
	was := st.trouble()
	switch {
	case err != nil && err.Error() != was:
		st.err.Store(err.Error())
		st.log.Error("last good versions of service files cannot be kept; a restart will not know them", "err", err)
	case err == nil && was != "" && len(st.pending) == 0:
		st.err.Store("")
		st.log.Info("last good versions of service files are kept again")
	}
}

// trouble returns why something could not be written, empty if all could be. It does not wait.
func (st *store) trouble() string {
	why, _ := st.err.Load().(string)
	return why
}

func (st *store) index() string { return filepath.Join(st.dir, "index") }

// record returns what is recorded of a file.
func (st *store) record(name string) (record, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	r, ok := st.records[name]
	return r, ok
}

// recorded returns the names of all files that have a record.
func (st *store) recorded() []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Collect(maps.Keys(st.records))
}

func (st *store) copyPath(name string, r record) string {
	return filepath.Join(st.dir, copyName(name, r.sum))
}

var errDamaged = errors.New("its checksum is not the recorded one")

// read returns the recorded version of a file.
func (st *store) read(name string, r record) ([]byte, error) {
	data, _, err := readContent(st.copyPath(name, r), maxFileSize)
	if err == nil && sha256.Sum256(data) != r.sum {
		err = errDamaged
	}
	if err != nil {
		st.mu.Lock()
		st.damaged[name] = true
		st.mu.Unlock()
	}
	return data, err
}

// put takes what is to be recorded, by file name, for writeMore: who calls it has
// something to do that is more urgent. What cannot be written is kept for retry.
func (st *store) put(entries map[string]entry) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for name, e := range entries {
		if st.has(name, e) {
			delete(st.pending, name)
		} else {
			st.pending[name] = e
			st.wake()
		}
	}
}

// has tells whether e is recorded already.
func (st *store) has(name string, e entry) bool {
	r, ok := st.records[name]
	return r.sum == e.sum && ok == (e.v != nil) && !st.damaged[name]
}

// retry makes writeMore have work if anything is not written yet.
func (st *store) retry() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.pending) > 0 {
		st.wake()
	}
}

func (st *store) wake() {
	select {
	case st.more <- struct{}{}:
	default: // it holds something
	}
}

// writeMore writes some of what is pending. After an error the rest waits for retry.
func (st *store) writeMore() {
	st.mu.Lock()
	defer st.mu.Unlock()
	names := make([]string, 0, batch)
	for name := range st.pending {
		if names = append(names, name); len(names) == batch {
			break
		}
	}
	if st.write(names) && len(st.pending) > 0 {
		st.wake()
	}
}

// write writes what is pending of these files, and returns whether it could write all of it.
func (st *store) write(names []string) bool {
	if len(names) == 0 {
		return true
	}
	err := st.tryWrite(names)
	st.note(err)
	return err == nil
}

// tryWrite goes on after an error, and returns the first.
func (st *store) tryWrite(names []string) (err error) {
	before := make(map[string]record, len(names))
	var lines strings.Builder
	for _, name := range names {
		e := st.pending[name]
		if e2 := st.writeCopy(name, e); e2 != nil {
			err = cmp.Or(err, e2)
			continue
		}
		before[name] = st.records[name]
		st.set(name, e.record)
		lines.WriteString(e.line(name))
	}
	if e := st.add(lines.String(), len(before)); e != nil {
		for name, r := range before {
			st.set(name, r)
		}
		return e
	}
	for name, r := range before {
		st.finish(name, r)
	}
	return err
}

func (st *store) writeCopy(name string, e entry) error {
	if e.v == nil {
		return nil
	}
	return st.replace(copyName(name, e.sum), e.v.data, false)
}

func (st *store) set(name string, r record) {
	if r.removed() {
		delete(st.records, name)
	} else {
		st.records[name] = r
	}
}

// finish drops what is not needed once a record is written.
func (st *store) finish(name string, old record) {
	e := st.pending[name]
	delete(st.pending, name)
	delete(st.damaged, name)
	if e.v != nil {
		e.v.data = nil
	}
	if !old.removed() && copyName(name, old.sum) != copyName(name, e.sum) {
		_ = os.Remove(st.copyPath(name, old)) // or else as an orphan, at the next start
	}
}

// add adds n lines to the index, in one write.
func (st *store) add(lines string, n int) error {
	if n == 0 {
		return nil
	}
	if !st.whole {
		return st.rewrite(false)
	}
	f, err := os.OpenFile(st.index(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		st.whole = false
		return err
	}
	_, err = f.WriteString(lines)
	if err = errors.Join(err, f.Close()); err != nil {
		st.whole = false // there may be half a line
		return err
	}
	st.lines += n
	return nil
}

// rewrite writes the index anew, with what counts only.
func (st *store) rewrite(sync bool) error {
	var b bytes.Buffer
	b.WriteString(indexHeader)
	for name, r := range st.records {
		b.WriteString(r.line(name))
	}
	if err := st.replace("index", b.Bytes(), sync); err != nil {
		return err
	}
	st.lines, st.whole = len(st.records), true
	return nil
}

// replace makes or replaces a file in one step.
func (st *store) replace(name string, data []byte, sync bool) error {
	if err := os.MkdirAll(st.dir, 0o700); err != nil {
		return err
	}
	tmp := filepath.Join(st.dir, ".new")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, filepath.Join(st.dir, name))
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// compact rewrites the index if it is damaged, or has more than slack lines that
// do not count. Synced, even a power failure leaves one of the two; that may
// take a while, and put waits for it.
func (st *store) compact(slack int, sync bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.lines > len(st.records)+slack || st.suspect && !st.whole {
		st.note(st.rewrite(sync))
	}
}

// sweep removes copies without a record: the process was killed before it could
// do so, or before it could write the record. It leaves them once when the index
// was damaged, for the admin to find. It returns the files whose copy is missing.
func (st *store) sweep() (missing []string) {
	entries, err := os.ReadDir(st.dir)
	if err != nil {
		return nil // nothing is known
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	owner := make(map[string]string, len(st.records))
	for name, r := range st.records {
		owner[copyName(name, r.sum)] = name
	}
	for _, e := range entries {
		name := e.Name()
		if _, ok := owner[name]; !ok && isCopy.MatchString(name) && !st.suspect {
			_ = os.Remove(filepath.Join(st.dir, name))
		}
		delete(owner, name)
	}
	return slices.Collect(maps.Values(owner))
}

// renew writes the copy of a file again that is missing, if v is what it was of.
func (st *store) renew(name string, v *version) {
	st.mu.Lock()
	defer st.mu.Unlock()
	r, ok := st.records[name]
	if _, busy := st.pending[name]; ok && !busy && r.sum == v.id {
		st.pending[name] = entry{r, v}
		st.wake()
	}
}
