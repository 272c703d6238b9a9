package file

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"svcproxy/source/disk"
)

const (
	// batch is how many files are written and synced in one go.
	batch = 64

	// few is how many are synced one by one: a sync of the whole file system also
	// waits for what everybody else has written to it.
	few = 8
)

// A store keeps a copy of the last accepted version of each file, as it was
// written, and an index of them. They are files that an admin can read and copy
// back: web.toml is kept as lastgood/web.<start of its checksum>.toml.
//
// A copy is written before the line of the index that says it counts; then both
// reach the disk, with one sync for a large batch; only then what they replace is
// removed. So whenever the process is killed or the power fails, each file has its
// last good version or the one before. Checksums say what is damaged, and what
// the index does not know any more the copies do (recover.go).
//
// Disks can be slow, so all of it is done by one goroutine, that of run, and
// nobody waits for it.
type store struct {
	dir    string // lastgood
	log    *slog.Logger
	err    atomic.Value  // a string, see trouble
	more   chan struct{} // holds something when writeMore has work
	chores chan func()   // what else is to be done beside it

	mu      sync.Mutex // guards what follows, and version.data; never held while the disk is waited for
	records map[string]record
	damaged map[string]bool  // files whose copy is, by name
	pending map[string]entry // what is not written yet, by file name
	home    []byte           // of the directory, if that is not written yet

	// Of load, then of the goroutine of run.
	lines   int                 // of the index, without the header
	whole   bool                // the index on disk is as we know it, and can be added to
	suspect bool                // the index was damaged or lost: copies count that it does not name
	copies  map[string][]string // those that load found, the newest first, by copyStem
	crashed bool                // the host stopped without shutting down, see marker
	marked  bool
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
		more: make(chan struct{}, 1), chores: make(chan func(), 8),
	}
}

// run writes what there is to write until ctx ends. What is pending then is
// written, but not synced: nothing that it replaces is removed before the next start.
func (st *store) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			for st.writeMore(false) {
			}
			st.unmark()
			return
		case <-st.more:
			if st.writeMore(true) {
				st.wake()
			}
		case f := <-st.chores:
			f()
		}
	}
}

// ask has f done by the goroutine of run, unless that has more than enough to do.
func (st *store) ask(f func()) {
	select {
	case st.chores <- f:
	default:
	}
}

// note logs once why last good versions cannot be written.
func (st *store) note(err error) {
	was := st.trouble()
	switch {
	case err != nil && err.Error() != was:
		st.err.Store(err.Error())
		st.log.Error("last good versions of service files cannot be kept; a restart will not know them", "err", err)
	case err == nil && was != "" && !st.busy():
		st.err.Store("")
		st.log.Info("last good versions of service files are kept again")
	}
}

// trouble returns why something could not be written, empty if all could be. It does not wait.
func (st *store) trouble() string {
	why, _ := st.err.Load().(string)
	return why
}

func (st *store) busy() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.pending) > 0 || st.home != nil
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

// restored notes that an older copy is used of a file whose copy is damaged. It
// stays damaged, so that it is written again, with a line of the index.
func (st *store) restored(name string, r record) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.records[name] = r
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

// text returns what an accepted version says; nil: nobody knows any more.
func (st *store) text(path string, v *version) []byte {
	st.mu.Lock()
	data := v.data
	st.mu.Unlock()
	if data != nil {
		return data
	}
	data, _, err := readContent(st.copyPath(filepath.Base(path), record{sum: v.id}), maxFileSize)
	if err != nil || sha256.Sum256(data) != v.id {
		return nil
	}
	return data
}

// put takes what is to be recorded, by file name, for writeMore: who calls it has
// something to do that is more urgent. What cannot be written is kept for retry.
func (st *store) put(entries map[string]entry) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for name, e := range entries {
		if st.has(name, e) {
			delete(st.pending, name)
			e.drop()
		} else {
			st.pending[name] = e
			st.wake()
		}
	}
}

// has reports whether e is recorded already.
func (st *store) has(name string, e entry) bool {
	r, ok := st.records[name]
	return r.sum == e.sum && ok == (e.v != nil) && !st.damaged[name]
}

// drop lets go of the text of e, which is kept.
func (e entry) drop() {
	if e.v != nil {
		e.v.data = nil
	}
}

// retry makes writeMore have work if anything is not written yet.
func (st *store) retry() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.pending) > 0 || st.home != nil {
		st.wake()
	}
}

func (st *store) wake() {
	select {
	case st.more <- struct{}{}:
	default: // it holds something
	}
}

// A job is one entry on its way to the disk.
type job struct {
	entry
	name string
	data []byte // of e.v
	old  record // what it replaces
}

// next returns some of what is pending.
func (st *store) next() []job {
	st.mu.Lock()
	defer st.mu.Unlock()
	jobs := make([]job, 0, batch)
	for name, e := range st.pending {
		j := job{entry: e, name: name, old: st.records[name]}
		if e.v != nil {
			j.data = e.v.data
		}
		if jobs = append(jobs, j); len(jobs) == batch {
			break
		}
	}
	return jobs
}

// writeMore writes some of what is pending, and reports whether there is more. After
// an error the rest waits for retry.
func (st *store) writeMore(sync bool) bool {
	err := st.writeHome()
	if jobs := st.next(); len(jobs) > 0 {
		err = cmp.Or(err, st.write(jobs, sync))
	}
	st.note(err)
	return err == nil && st.busy()
}

// write goes on after a copy that cannot be written, and returns the first error.
func (st *store) write(jobs []job, sync bool) (err error) {
	var lines strings.Builder
	written, each := jobs[:0], sync && len(jobs) <= few
	for _, j := range jobs {
		if e := st.writeCopy(j, each); e != nil {
			err = cmp.Or(err, e)
			continue
		}
		written = append(written, j)
		lines.WriteString(j.line(j.name))
	}
	if len(written) == 0 {
		return err
	}
	if e := st.add(lines.String(), len(written), each); e != nil {
		return e
	}
	if sync {
		if e := st.sync(each); e != nil {
			return e
		}
	}
	for _, j := range st.finish(written) {
		if sync && !j.old.removed() && copyName(j.name, j.old.sum) != copyName(j.name, j.sum) {
			_ = os.Remove(st.copyPath(j.name, j.old)) // or else as an orphan, at the next start
		}
	}
	return err
}

func (st *store) writeCopy(j job, sync bool) error {
	if j.v == nil {
		return nil
	}
	return st.replace(copyName(j.name, j.sum), j.data, sync)
}

// sync has the names of copies written that were synced each, or else everything
// that the file system of the store was given: one wait for many.
func (st *store) sync(each bool) error {
	d, err := os.Open(st.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if each {
		return d.Sync()
	}
	err = unix.Syncfs(int(d.Fd()))
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // a filter of system calls knows the older one only
		unix.Sync()
		return nil
	}
	return os.NewSyscallError("syncfs "+st.dir, err)
}

// finish notes that jobs are done, and returns them.
func (st *store) finish(jobs []job) []job {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, j := range jobs {
		st.set(j.name, j.record)
		delete(st.damaged, j.name)
		if st.pending[j.name] == j.entry { // else it has changed again
			delete(st.pending, j.name)
			j.drop()
		}
	}
	return jobs
}

func (st *store) set(name string, r record) {
	if r.removed() {
		delete(st.records, name)
	} else {
		st.records[name] = r
	}
}

// add adds n lines to the index, in one write.
func (st *store) add(lines string, n int, sync bool) error {
	if !st.whole {
		if err := st.rewrite(); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(st.index(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		st.whole = false
		return err
	}
	_, err = f.WriteString(lines)
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		st.whole = false // there may be half a line
		return err
	}
	st.lines += n
	return nil
}

// rewrite writes the index anew, with what counts only. Synced, even a power
// failure leaves one of the two.
func (st *store) rewrite() error {
	var b bytes.Buffer
	b.WriteString(indexHeader)
	st.mu.Lock()
	n := len(st.records)
	for name, r := range st.records {
		b.WriteString(r.line(name))
	}
	st.mu.Unlock()
	if err := st.replace("index", b.Bytes(), true); err != nil {
		return err
	}
	st.lines, st.whole = n, true
	return nil
}

// draft is where a file is written before it takes the place of another.
const draft = ".new"

// replace makes or replaces a file in one step.
func (st *store) replace(name string, data []byte, sync bool) error {
	if err := os.MkdirAll(st.dir, 0o700); err != nil {
		return err
	}
	return disk.Replace(filepath.Join(st.dir, name), filepath.Join(st.dir, draft), sync, disk.Bytes(data))
}
