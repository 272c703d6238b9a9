package keep

import (
	"cmp"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source/disk"
)

// maxSyncEach is how many files are synced one by one: a sync of the whole file system also
// waits for what everybody else has written to it.
const maxSyncEach = 8

// A syncing is what the disk is asked for.
type syncing struct {
	files    map[string]*change // by name
	replaced map[Version]bool   // what goes once the disk has these

	err, history error // why it does not say that it has these, and the index of the history
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
	news := st.history.takeNews()
	go func() {
		if s.err = st.dir.sync(s.files); s.err == nil && news {
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

// sync waits until the disk has what was written of a few files, or of many everything
// that their file system was given.
func (d copies) sync(files map[string]*change) error {
	if len(files) > maxSyncEach {
		return d.syncAll()
	}
	for name, c := range files {
		if c.Version == nil { // it has no copy
			continue
		}
		if err := disk.Sync(d.path(Version{name, c.Sum})); err != nil {
			return err
		}
	}
	return cmp.Or(disk.Sync(d.file("index")), disk.Sync(string(d)))
}

func (d copies) syncAll() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Syncfs(int(f.Fd()))
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // a filter of system calls knows the older one only
		unix.Sync()
		return nil
	}
	return os.NewSyscallError("syncfs "+string(d), err)
}
