package keep

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
)

// A Store keeps a copy of the last accepted version of each file, as it was
// written, and an index of them. They are files that an admin can read and copy
// back: web.toml is kept as lastgood/web.<start of its checksum>.toml.
//
// A copy is written before the line of the index that says it counts; then both
// reach the disk (beginSync); only then what they replace is
// removed. So whenever the process is killed or the power fails, each file has its
// last good version or the one before. Checksums say what is damaged, and what
// the index no longer knows is read from the names of the copies (recover.go).
//
// Disks can be slow, so all of it is done by one goroutine, that of Run, and
// nobody waits for it; nor does it wait for the disk to have what was accepted.
type Store struct {
	queue
	history *history
	err     atomic.Value  // a string, see WriteError
	tasks   chan func()   // what else is to be done beside the queue
	synced  chan *syncing // a sync that has ended
	marked  bool          // see MarkUsed
}

// New returns a store in stateDir that does nothing before Load.
func New(stateDir string, log *slog.Logger) *Store {
	return &Store{
		queue: queue{
			records: newRecords(stateDir, log), wakeups: make(chan struct{}, 1),
			pending: map[string]*change{}, texts: map[string][]byte{}, written: map[string]*change{},
			replaced: map[Version]bool{}, retained: map[Version]bool{},
		},
		history: newHistory(stateDir, log), tasks: make(chan func(), 8), synced: make(chan *syncing, 1),
	}
}

// Run writes what there is to write until ctx ends. What is pending then is
// written, but not synced: nothing that it replaces is removed before the next start.
func (st *Store) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			for st.writeMore() {
			}
			if st.marked {
				_ = os.Remove(st.markerPath()) // or else missing files are kept until a reload
			}
			if st.syncing != nil {
				st.endSync(<-st.synced)
			}
			return
		case <-st.wakeups:
			if st.writeMore() {
				st.wake()
			}
			st.beginSync()
		case s := <-st.synced:
			if st.endSync(s); s.err == nil { // else it is tried again with what is written next
				st.beginSync()
			}
		case f := <-st.tasks:
			f()
		}
	}
}

// enqueue has f done by the goroutine of Run, unless that has more than enough to do.
func (st *Store) enqueue(f func()) {
	select {
	case st.tasks <- f:
	default:
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

// SetKeep sets how many versions of each file the history has from now on, 0: 20.
func (st *Store) SetKeep(n int) { st.history.keep.Store(int64(n)) }

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

// DecisionsPath returns the path of what PutDecisions takes.
func (st *Store) DecisionsPath() string { return st.dir.file(decisionsFile) }

// DirectoryPath returns the path of what PutDirectory has kept in stateDir.
func DirectoryPath(stateDir string) string { return lastGoodDir(stateDir).file(directoryFile) }

// writeMore writes some of what is pending, and reports whether there is more. After
// an error the rest waits for retry.
func (st *Store) writeMore() bool {
	changes := st.next() // first, so that the decisions which were put before them are written before
	err := st.writeText(directoryFile, false)
	if e := st.writeDecisions(); e != nil { // what changes replace may be needed, and nothing would name it
		st.endWriting(changes, nil)
		err = cmp.Or(err, e)
	} else if len(changes) > 0 {
		err = cmp.Or(err, st.write(changes))
	}
	st.noteError(err)
	return err == nil && st.Pending()
}

// writeDecisions writes decisions, if they are not written yet, after the copies that they need and nothing else may have written.
func (st *Store) writeDecisions() error {
	for v, text := range st.missing() {
		if err := replace(st.dir.path(v), text, true); err != nil {
			return err
		}
		st.retain(v)
	}
	return st.writeText(decisionsFile, true)
}

// writeText writes what is beside the index in a file, if it is not written yet. Copies that only decisions
// of before needed go then.
func (st *Store) writeText(name string, sync bool) error {
	st.mu.Lock()
	text, pends := st.texts[name]
	st.mu.Unlock()
	if !pends {
		return nil
	}
	if err := replace(st.dir.file(name), text, sync); err != nil {
		return err
	}
	st.mu.Lock()
	if bytes.Equal(st.texts[name], text) { // else there is another by now
		delete(st.texts, name)
	}
	st.mu.Unlock()
	if name == decisionsFile {
		st.drop(st.takeRetained())
	}
	return nil
}

// write goes on after a copy that cannot be written, and returns the first error. Whether the disk
// has all that, beginSync asks.
func (st *Store) write(changes []*change) (err error) {
	var written []*change
	defer func() { st.endWriting(changes, written) }()
	var lines strings.Builder
	var copied []*change
	for _, c := range changes {
		if e := st.writeCopy(c); e != nil {
			err = cmp.Or(err, e)
			continue
		}
		copied = append(copied, c)
		lines.WriteString(c.encode(c.name))
	}
	if len(copied) == 0 {
		return err
	}
	if !st.index.whole {
		if err := st.rewrite(); err != nil {
			return err
		}
	}
	if err := st.index.add(lines.String(), len(copied)); err != nil {
		return err
	}
	written = copied
	st.history.add(st.dir, written, st.needed())
	return err
}

func (st *Store) writeCopy(c *change) error {
	if c.Version == nil {
		return nil
	}
	v, hasText := Version{c.name, c.Sum}, c.data != nil || c.Version.Size == 0
	if c.kept || !hasText { // its copy is there: then a full disk does not matter
		if _, err := st.dir.read(v); err == nil {
			return nil
		}
	}
	if !hasText {
		return fmt.Errorf("the text of %s is not known any more", source.Quote(c.name))
	}
	return replace(st.dir.path(v), c.data, false)
}

// rewrite writes the index again, with what counts only.
func (st *Store) rewrite() error {
	var b bytes.Buffer
	b.WriteString(indexHeader)
	st.mu.Lock()
	n := len(st.known)
	for name, r := range st.known {
		b.WriteString(r.encode(name))
	}
	st.mu.Unlock()
	return st.index.rewrite(b.Bytes(), n)
}

// Maintain writes again what could not be written, and keeps the index short that has this many files.
func (st *Store) Maintain(files int) {
	if !st.OnDisk() {
		st.wake()
	}
	st.enqueue(func() { st.compact(files + indexSlack) })
}

// compact rewrites the index if it is damaged, or has more than slack lines that
// do not count.
func (st *Store) compact(slack int) {
	if st.index.lines > len(st.Names())+slack || st.indexDamaged && !st.index.whole {
		st.noteError(st.rewrite())
	}
}

// beginSync has a goroutine wait for the disk, which may take its time, unless one does.
func (st *Store) beginSync() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.syncing != nil || len(st.written) == 0 {
		return
	}
	s := &syncing{files: st.written, replaced: st.replaced}
	st.syncing, st.written, st.replaced = s, map[string]*change{}, map[Version]bool{}
	var versions []Version
	for name, c := range s.files {
		versions = append(versions, Version{name, c.Sum})
	}
	news := st.history.takeNews()
	go func() {
		if s.err = st.dir.sync(versions); s.err == nil && news {
			s.history = disk.Sync(st.history.index.path)
		}
		st.synced <- s
	}()
}

// endSync removes what was replaced by what the disk has now. Where it could not be asked, nobody knows what it has,
// and that and what was written since is written again, when retry or another change comes to it.
func (st *Store) endSync(s *syncing) {
	st.mu.Lock()
	st.syncing = nil
	if s.err != nil {
		st.index.whole = false
		for _, files := range []map[string]*change{st.written, s.files} {
			for name, c := range files {
				st.damaged[name] = true
				if st.pending[name] == nil {
					st.pending[name] = c
				}
			}
		}
		clear(st.written)
		for v := range s.replaced {
			st.replaced[v] = true
		}
	}
	st.mu.Unlock()
	if s.err == nil {
		st.history.noteSynced(s.history)
		st.drop(s.replaced)
	}
	st.noteError(s.err)
}

// drop removes the copies of versions that nothing needs.
func (st *Store) drop(versions map[Version]bool) {
	for _, v := range st.unneeded(versions) {
		_ = os.Remove(st.dir.path(v)) // or else as an orphan, at the next start
	}
}
