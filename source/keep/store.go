package keep

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

// A Store keeps a copy of the last accepted version of each file, as it was
// written, and an index of them. They are files that an admin can read and copy
// back: web.toml is kept as lastgood/web.<start of its checksum>.toml.
//
// A copy is written before the line of the index that says it counts; then both
// reach the disk (sync.go); only then what they replace is
// removed. So whenever the process is killed or the power fails, each file has its
// last good version or the one before. Checksums say what is damaged, and what
// the index no longer knows is read from the names of the copies (recover.go).
//
// Disks can be slow, so all of it is done by one goroutine, that of Run, and
// nobody waits for it; nor does it wait for the disk to have what was accepted.
type Store struct {
	lastgood string // its directory
	log      *slog.Logger
	err      atomic.Value // a string, see WriteError
	history  *history
	wakeups  chan struct{} // holds something when writeMore has work
	tasks    chan func()   // what else is to be done beside it
	synced   chan synced   // how the sync ended that is under way

	mu        sync.Mutex // guards what follows, and version.data; never held while the disk is waited for
	records   map[string]Record
	damaged   map[string]bool  // files whose copy is, by name
	unwritten map[string]Entry // what is not written yet, by file name
	writing   map[string]Entry // those that the goroutine of Run is about to record; unwritten may have later ones by now
	dirText   []byte           // of the directory, if that is not written yet
	decided   []byte           // of decisions, if they are not written yet
	needs     map[Version]bool // that decisions name

	unsynced map[string]unsynced // what is written and may not be on the disk, by file name
	syncing  map[string]unsynced // that, of which the disk is asked; unsynced has what was written since

	// Of Load, then of the goroutine of Run.
	lines        int                 // of the index, without the header
	indexIntact  bool                // the index on disk is as we know it, and can be added to
	indexDamaged bool                // the index was damaged or lost: copies count that it does not name
	copies       map[string][]string // those that Load found, the newest first, by copyStem
	retained     map[Version]bool    // replaced copies that decisions need
	unclean      bool                // the host stopped without shutting down, see markerPath
	marked       bool
}

// An Entry is a record to be written.
type Entry struct {
	Record
	Version *read.Version // nil: the file was removed
	Was     *read.Version // in use before, for the history; nil: none, or not known
}

// A job is one entry on its way to the disk.
type job struct {
	Entry
	name string
	data []byte // of the version
	old  Record // what it replaces
}

// An unsynced is what was written of a file, and the disk may not have yet: its newest copy, and its line in the index.
type unsynced struct {
	Entry
	data     []byte              // of the version, to write it again
	replaced [][sha256.Size]byte // the versions before, whose copies go once the disk has this one
}

// A synced is how a sync ended: of what the store has, and of the history.
type synced struct{ err, history error }

// New returns a store in stateDir that does nothing before Load.
func New(stateDir string, log *slog.Logger) *Store {
	return &Store{
		lastgood: filepath.Join(stateDir, "lastgood"), log: log,
		history: &history{dir: historyDir(stateDir), log: log},
		records: map[string]Record{}, damaged: map[string]bool{}, unwritten: map[string]Entry{}, writing: map[string]Entry{}, retained: map[Version]bool{},
		unsynced: map[string]unsynced{},
		wakeups:  make(chan struct{}, 1), tasks: make(chan func(), 8), synced: make(chan synced, 1),
	}
}

// WriteError returns why something could not be written, empty if all could be. It does not wait.
func (st *Store) WriteError() string {
	why, _ := st.err.Load().(string)
	return why
}

// noteError logs once why last good versions cannot be written.
func (st *Store) noteError(err error) {
	was := st.WriteError()
	switch {
	case err != nil && err.Error() != was:
		st.err.Store(err.Error())
		st.log.Error("cannot save last good versions of service files; they will not survive a restart", "err", err)
	case err == nil && was != "" && st.OnDisk():
		st.err.Store("")
		st.log.Info("last good versions of service files are saved again")
	}
}

// Pending reports whether anything is not written yet.
func (st *Store) Pending() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.pends()
}

// pends is pending for a caller that holds st.mu.
func (st *Store) pends() bool { return len(st.unwritten) > 0 || st.dirText != nil || st.decided != nil }

// OnDisk reports whether the disk has all that the store was given.
func (st *Store) OnDisk() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return !st.pends() && len(st.unsynced) == 0 && st.syncing == nil
}

func (st *Store) index() string { return filepath.Join(st.lastgood, "index") }

func (st *Store) stateDir() string { return filepath.Dir(st.lastgood) }

// Dir returns the directory of the copies.
func (st *Store) Dir() string { return st.lastgood }

// UncleanStop reports whether the host stopped without shutting down while the store was used.
func (st *Store) UncleanStop() bool { return st.unclean }

// SetKeep sets how many versions of each file the history has from now on, 0: 20.
func (st *Store) SetKeep(n int) { st.history.keep.Store(int64(n)) }

// Put takes what is to be recorded, by file name, for writeMore: who calls it has
// something to do that is more urgent. What cannot be written is kept for retry.
func (st *Store) Put(entries map[string]Entry) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for name, e := range entries {
		w, busy := st.writing[name] // then what is on the disk is about to be replaced
		if st.has(name, e) && !busy {
			if st.unwritten[name].Sum == e.Sum { // a copy that is missing, of rewriteCopy
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
			e.Was = p.Version
		} else if ok {
			e.Was = p.Was // which is on the disk, or about to be
		}
		st.unwritten[name] = e
		st.wake()
	}
}

// has reports whether e is recorded already.
func (st *Store) has(name string, e Entry) bool {
	r, ok := st.records[name]
	return r.Sum == e.Sum && ok == (e.Version != nil) && !st.damaged[name]
}

// releaseText lets go of the text of e, which is kept.
func (e Entry) releaseText() {
	if e.Version != nil {
		e.Version.Data = nil
	}
}

func (st *Store) wake() { wake.Once(st.wakeups) }

func (st *Store) set(name string, r Record) {
	if r.Removed() {
		delete(st.records, name)
	} else {
		st.records[name] = r
	}
}

// PutDirectory takes what is to be kept of the directory of files, for writeMore.
func (st *Store) PutDirectory(text []byte) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.dirText = text
	st.wake()
}

// PutDecisions takes what is to be kept of decisions, for writeMore, and the versions that these
// need, whose copies stay. A text of nil is on the disk already.
func (st *Store) PutDecisions(text []byte, needs map[Version]bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.decided, st.needs = text, needs
	st.wake()
}

// needed returns the versions that decisions name.
func (st *Store) needed() map[Version]bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.needs
}

// flushTime is how long a disk may take to hold a decision.
const flushTime = 10 * time.Second

// Flush waits until all that the store was given is on the disk.
func (st *Store) Flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	for {
		switch why := st.WriteError(); {
		case st.OnDisk():
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
