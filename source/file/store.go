package file

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// A store keeps a copy of the last accepted version of each file, as it was
// written, and an index of them. They are files that an admin can read and copy
// back: web.toml is kept as lastgood/web.<start of its checksum>.toml.
//
// A copy is written before the line of the index that says it counts; then both
// reach the disk (store_sync.go); only then what they replace is
// removed. So whenever the process is killed or the power fails, each file has its
// last good version or the one before. Checksums say what is damaged, and what
// the index no longer knows is read from the names of the copies (store_recover.go).
//
// Disks can be slow, so all of it is done by one goroutine, that of run, and
// nobody waits for it; nor does it wait for the disk to have what was accepted.
type store struct {
	dir     string // lastgood
	log     *slog.Logger
	err     atomic.Value // a string, see writeError
	history *history
	wakeups chan struct{} // holds something when writeMore has work
	tasks   chan func()   // what else is to be done beside it
	synced  chan synced   // how the sync ended that is under way

	mu      sync.Mutex // guards what follows, and version.data; never held while the disk is waited for
	records map[string]record
	damaged map[string]bool      // files whose copy is, by name
	pending map[string]entry     // what is not written yet, by file name
	writing map[string]entry     // those that the goroutine of run is about to record; pending may have later ones by now
	dirText []byte               // of the directory, if that is not written yet
	decided []byte               // of decisions, if they are not written yet
	needs   map[keptVersion]bool // that decisions name

	unsynced map[string]unsynced // what is written and may not be on the disk, by file name
	syncing  map[string]unsynced // that, of which the disk is asked; unsynced has what was written since

	// Of loadIndex, then of the goroutine of run.
	lines        int                  // of the index, without the header
	indexIntact  bool                 // the index on disk is as we know it, and can be added to
	indexDamaged bool                 // the index was damaged or lost: copies count that it does not name
	copies       map[string][]string  // those that loadIndex found, the newest first, by copyStem
	retained     map[keptVersion]bool // replaced copies that decisions need
	uncleanStop  bool                 // the host stopped without shutting down, see markerPath
	marked       bool
}

// An entry is a record to be written. v is nil when the file was removed.
type entry struct {
	record
	v   *read.Version
	was *read.Version // in use before, for the history; nil: none, or not known
}

// A job is one entry on its way to the disk.
type job struct {
	entry
	name string
	data []byte // of v
	old  record // what it replaces
}

// An unsynced is what was written of a file, and the disk may not have yet: its newest copy, and its line in the index.
type unsynced struct {
	entry
	data     []byte              // of v, to write it again
	replaced [][sha256.Size]byte // the versions before, whose copies go once the disk has this one
}

// A synced is how a sync ended: of what the store has, and of the history.
type synced struct{ err, history error }

// newStore returns a store in stateDir that does nothing before loadIndex.
func newStore(stateDir string, log *slog.Logger) *store {
	return &store{
		dir: filepath.Join(stateDir, "lastgood"), log: log,
		history: &history{dir: historyDir(stateDir), log: log},
		records: map[string]record{}, damaged: map[string]bool{}, pending: map[string]entry{}, writing: map[string]entry{}, retained: map[keptVersion]bool{},
		unsynced: map[string]unsynced{},
		wakeups:  make(chan struct{}, 1), tasks: make(chan func(), 8), synced: make(chan synced, 1),
	}
}

// enqueue has f done by the goroutine of run, unless that has more than enough to do.
func (st *store) enqueue(f func()) {
	select {
	case st.tasks <- f:
	default:
	}
}

// writeError returns why something could not be written, empty if all could be. It does not wait.
func (st *store) writeError() string {
	why, _ := st.err.Load().(string)
	return why
}

// noteError logs once why last good versions cannot be written.
func (st *store) noteError(err error) {
	was := st.writeError()
	switch {
	case err != nil && err.Error() != was:
		st.err.Store(err.Error())
		st.log.Error("last good versions of service files cannot be kept; a restart will not know them", "err", err)
	case err == nil && was != "" && st.onDisk():
		st.err.Store("")
		st.log.Info("last good versions of service files are kept again")
	}
}

func (st *store) hasPending() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.pends()
}

// pends is hasPending for a caller that holds st.mu.
func (st *store) pends() bool { return len(st.pending) > 0 || st.dirText != nil || st.decided != nil }

// onDisk reports whether the disk has all that the store was given.
func (st *store) onDisk() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return !st.pends() && len(st.unsynced) == 0 && st.syncing == nil
}

func (st *store) index() string { return filepath.Join(st.dir, "index") }

func (st *store) stateDir() string { return filepath.Dir(st.dir) }

// recordOf returns what is recorded of a file.
func (st *store) recordOf(name string) (record, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	r, ok := st.records[name]
	return r, ok
}

// recordedNames returns the names of all files that have a record.
func (st *store) recordedNames() []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Collect(maps.Keys(st.records))
}

func (st *store) copyPath(name string, r record) string {
	return filepath.Join(st.dir, copyName(name, r.sum))
}

// useOlder notes that an older copy is used of a file whose copy is damaged. It
// stays damaged, so that it is written again, with a line of the index.
func (st *store) useOlder(name string, r record) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.records[name] = r
}

// read returns the recorded version of a file.
func (st *store) read(name string, r record) ([]byte, error) {
	data, _, err := disk.ReadContent(st.copyPath(name, r), read.MaxFileSize)
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

// textOf returns what an accepted version says; nil: nobody knows any more.
func (st *store) textOf(path string, v *read.Version) []byte {
	st.mu.Lock()
	data := v.Data
	st.mu.Unlock()
	if data != nil {
		return data
	}
	data, _, err := disk.ReadContent(st.copyPath(filepath.Base(path), record{sum: v.ID}), read.MaxFileSize)
	if err != nil || sha256.Sum256(data) != v.ID {
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
		w, busy := st.writing[name] // then what is on the disk is about to be replaced
		if st.has(name, e) && !busy {
			if st.pending[name].sum == e.sum { // a copy that is missing, of rewriteCopy
				continue
			}
			if _, was := st.pending[name]; was {
				delete(st.pending, name)
				st.wake() // if that could not be written, nothing is wrong any more
			}
			e.releaseText()
			continue
		}
		if p, ok := st.pending[name]; ok && busy && p == w {
			e.was = p.v
		} else if ok {
			e.was = p.was // which is on the disk, or about to be
		}
		st.pending[name] = e
		st.wake()
	}
}

// has reports whether e is recorded already.
func (st *store) has(name string, e entry) bool {
	r, ok := st.records[name]
	return r.sum == e.sum && ok == (e.v != nil) && !st.damaged[name]
}

// releaseText lets go of the text of e, which is kept.
func (e entry) releaseText() {
	if e.v != nil {
		e.v.Data = nil
	}
}

// retry makes writeMore have work if the disk may not have all.
func (st *store) retry() {
	if !st.onDisk() {
		st.wake()
	}
}

func (st *store) wake() { wake.Once(st.wakeups) }

func (st *store) set(name string, r record) {
	if r.removed() {
		delete(st.records, name)
	} else {
		st.records[name] = r
	}
}

// putDirID takes what is to be kept of the directory of files, for writeMore.
func (st *store) putDirID(text []byte) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.dirText = text
	st.wake()
}

// putDecisions takes what is to be kept of decisions, for writeMore.
func (st *store) putDecisions(text []byte, needs map[keptVersion]bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.decided, st.needs = text, needs
	st.wake()
}

func (st *store) noteNeeds(needs map[keptVersion]bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.needs = needs
}

// needed returns the versions that decisions name.
func (st *store) needed() map[keptVersion]bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.needs
}

// flushTime is how long a disk may take to hold a decision.
const flushTime = 10 * time.Second

// flush waits until all that the store was given is on the disk.
func (st *store) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	for {
		switch why := st.writeError(); {
		case st.onDisk():
			return nil
		case why != "":
			return errors.New(why)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("writing the state directory: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// rewriteCopy writes the copy of a file again that is missing, if v is what it was of.
func (st *store) rewriteCopy(name string, v *read.Version) {
	st.mu.Lock()
	defer st.mu.Unlock()
	r, ok := st.records[name]
	if _, busy := st.pending[name]; ok && !busy && r.sum == v.ID {
		st.pending[name] = entry{record: r, v: v}
		st.wake()
	}
}
