package file

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/internal/wake"
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
	lastgood string // its directory
	log      *slog.Logger
	err      atomic.Value // a string, see writeError
	history  *history
	wakeups  chan struct{} // holds something when writeMore has work
	tasks    chan func()   // what else is to be done beside it
	synced   chan synced   // how the sync ended that is under way

	mu        sync.Mutex // guards what follows, and version.data; never held while the disk is waited for
	records   map[string]record
	damaged   map[string]bool  // files whose copy is, by name
	unwritten map[string]entry // what is not written yet, by file name
	writing   map[string]entry // those that the goroutine of run is about to record; unwritten may have later ones by now
	dirText   []byte           // of the directory, if that is not written yet
	decided   []byte           // of decisions, if they are not written yet
	needs     map[version]bool // that decisions name

	unsynced map[string]unsynced // what is written and may not be on the disk, by file name
	syncing  map[string]unsynced // that, of which the disk is asked; unsynced has what was written since

	// Of load, then of the goroutine of run.
	lines        int                 // of the index, without the header
	indexIntact  bool                // the index on disk is as we know it, and can be added to
	indexDamaged bool                // the index was damaged or lost: copies count that it does not name
	copies       map[string][]string // those that load found, the newest first, by copyStem
	retained     map[version]bool    // replaced copies that decisions need
	unclean      bool                // the host stopped without shutting down, see markerPath
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

// newStore returns a store in stateDir that does nothing before load.
func newStore(stateDir string, log *slog.Logger) *store {
	return &store{
		lastgood: filepath.Join(stateDir, "lastgood"), log: log,
		history: &history{dir: historyDir(stateDir), log: log},
		records: map[string]record{}, damaged: map[string]bool{}, unwritten: map[string]entry{}, writing: map[string]entry{}, retained: map[version]bool{},
		unsynced: map[string]unsynced{},
		wakeups:  make(chan struct{}, 1), tasks: make(chan func(), 8), synced: make(chan synced, 1),
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

// pending reports whether anything is not written yet.
func (st *store) pending() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.pends()
}

// pends is pending for a caller that holds st.mu.
func (st *store) pends() bool { return len(st.unwritten) > 0 || st.dirText != nil || st.decided != nil }

// onDisk reports whether the disk has all that the store was given.
func (st *store) onDisk() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return !st.pends() && len(st.unsynced) == 0 && st.syncing == nil
}

func (st *store) index() string { return filepath.Join(st.lastgood, "index") }

func (st *store) stateDir() string { return filepath.Dir(st.lastgood) }

// dir returns the directory of the copies.
func (st *store) dir() string { return st.lastgood }

// uncleanStop reports whether the host stopped without shutting down while the store was used.
func (st *store) uncleanStop() bool { return st.unclean }

// setKeep sets how many versions of each file the history has from now on, 0: 20.
func (st *store) setKeep(n int) { st.history.keep.Store(int64(n)) }

// put takes what is to be recorded, by file name, for writeMore: who calls it has
// something to do that is more urgent. What cannot be written is kept for retry.
func (st *store) put(entries map[string]entry) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for name, e := range entries {
		w, busy := st.writing[name] // then what is on the disk is about to be replaced
		if st.has(name, e) && !busy {
			if st.unwritten[name].sum == e.sum { // a copy that is missing, of rewriteCopy
				continue
			}
			if _, was := st.unwritten[name]; was {
				delete(st.unwritten, name)
				st.wake() // if that could not be written, nothing is wrong any more
			}
			e.releaseText()
			continue
		}
		if p, ok := st.unwritten[name]; ok && busy && p == w {
			e.was = p.v
		} else if ok {
			e.was = p.was // which is on the disk, or about to be
		}
		st.unwritten[name] = e
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

func (st *store) wake() { wake.Once(st.wakeups) }

func (st *store) set(name string, r record) {
	if r.removed() {
		delete(st.records, name)
	} else {
		st.records[name] = r
	}
}

// putDirectory takes what is to be kept of the directory of files, for writeMore.
func (st *store) putDirectory(text []byte) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.dirText = text
	st.wake()
}

// putDecisions takes what is to be kept of decisions, for writeMore, and the versions that these
// need, whose copies stay. A text of nil is on the disk already.
func (st *store) putDecisions(text []byte, needs map[version]bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.decided, st.needs = text, needs
	st.wake()
}

// needed returns the versions that decisions name.
func (st *store) needed() map[version]bool {
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
